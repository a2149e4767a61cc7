import libcst as cst

from patcher import Patch, syntax
from patches.train_meters import calls, measuring, waits_for_ranks


class ExactValidation(Patch):
    """Add up losses, hits and images over the ranks once, behind the validation loop: a mean of means is not the mean.

    Upstream averages over the ranks in each step, as if each had as many images, and a rank with more batches than
    another waits for ever.  Barrier and reductions go; the meters are this rank's until `totalled` adds them up.
    """

    sites = {"distributed.py": {"validate": 8}, "dataparallel.py": {"validate": 4}}
    needles = (b"def validate(",)
    origin = "https://github.com/pytorch/vision/issues/4559"
    changes = [
        (
            "def validate():\n    p = ProgressMeter(n)\n    for x in enumerate(loader):\n        f(x)\n",
            "...\n"
            "def validate():\n    p = ProgressMeter(n)\n    for x in enumerate(totalled(loader, p)):\n        f(x)\n",
        ),
        ("def validate():\n    m.update(loss.item(), n)\n", "...\ndef validate():\n    m.update(measured(loss), n)\n"),
        ("def validate():\n    m.update(acc1[0], n)\n", "...\ndef validate():\n    m.update(measured(acc1), n)\n"),
    ]
    leaves = [
        "def train():\n    p = ProgressMeter(n)\n    dist.barrier()\n    for x in enumerate(loader):\n        f(x)\n",
        "def validate():\n    m.update(time.time() - end)\n    for i, x in enumerate(loader):\n        p.display(i)\n",
    ]

    def __init__(self):
        self.means = {}  # what the script calls a number that is reduced, and what it is the mean of
        self.progress = None  # what it calls the meters of this loop
        super().__init__()

    def done(self, node: cst.CSTNode) -> bool:
        return self.function == "validate" and calls(node, "measured", "totalled")

    def visit_Assign(self, node: cst.Assign) -> None:
        if self.function == "validate" and calls(node.value, "ProgressMeter"):
            self.progress = node.targets[0].target

    def leave_SimpleStatementLine(self, original: cst.SimpleStatementLine, updated: cst.SimpleStatementLine):
        waits = self.function == "validate" and waits_for_ranks(updated, self.means)
        return cst.RemovalSentinel.REMOVE if waits else updated

    def leave_Call(self, original: cst.Call, updated: cst.Call) -> cst.Call:
        if self.function != "validate":
            return updated
        if not calls(updated, "enumerate"):
            return measuring(self, updated, self.means)
        loader = updated.args[0]
        plain = isinstance(loader.value, cst.Name) or syntax.is_call(loader.value, "left_if_asked")
        if not plain or self.progress is None or self.has_function("totalled"):
            return updated
        self.insert_function("totalled", "totalled.py")
        total = cst.Call(cst.Name("totalled"), [cst.Arg(loader.value), cst.Arg(self.progress)])
        return updated.with_changes(args=[loader.with_changes(value=total), *updated.args[1:]])
