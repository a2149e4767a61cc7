import libcst as cst

from patcher import Patch, places
from patches.train_meters import calls


class FiniteLoss(Patch):
    """Stop at the first loss that is not a finite number, before anything of it is saved over a good checkpoint.

    Upstream trains on, ends with status 0 and leaves a checkpoint full of NaN.
    """

    sites = {"distributed.py": {"train": 1}, "dataparallel.py": {"train": 1}}
    needles = (b"def train(",)
    origin = "https://github.com/pytorch/examples/issues/1194"
    changes = [
        (
            "def train(loader, net, opt, n):\n"
            "    meter = AverageMeter('Loss', ':.4e')\n"
            "    p = ProgressMeter(9, [meter], prefix='Epoch: [{}]'.format(n))\n"
            "    net.train()\n"
            "    for i, x in enumerate(loader):\n"
            "        opt.step()\n",
            "...\n"
            "def train(loader, net, opt, n):\n"
            "    meter = AverageMeter('Loss', ':.4e')\n"
            "    p = ProgressMeter(9, [meter], prefix='Epoch: [{}]'.format(n))\n"
            "    net.train()\n"
            "    for i, x in while_finite(enumerate(loader), net, meter, opt, n):\n"
            "        opt.step()\n",
        ),
    ]
    leaves = [
        "def validate(loader):\n    for i, x in enumerate(loader):\n        f(x)\n",
        "def train(loader):\n    for i, x in enumerate(loader):\n        f(x)\n",
    ]

    def __init__(self):
        self.names = None
        super().__init__()

    def done(self, node: cst.CSTNode) -> bool:
        return calls(node, "while_finite")

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        if self.function == "train":
            names = places.training_names(node)
            self.names = [names.get(name) for name in ("model", "losses", "optimizer", "epoch")]

    def leave_For(self, original: cst.For, updated: cst.For) -> cst.For:
        if (
            self.function != "train"
            or places.innermost(updated.iter, "enumerate", "steps_left") is None
            or None in self.names
        ):
            return updated
        if places.innermost(updated.iter, "while_finite") or self.has_function("stop_unless_finite", "while_finite"):
            return updated
        self.insert_function("while_finite", "while_finite.py")
        watched = cst.Call(cst.Name("while_finite"), [cst.Arg(node) for node in (updated.iter, *self.names)])
        return updated.with_changes(iter=watched)
