import libcst as cst

from patcher import Patch, syntax


class TrainMeters(Patch):
    """Average the training meters over all samples of all ranks, and only where a line is printed.

    Upstream holds all ranks up in each step: a barrier, three reductions, and three numbers
    read from the device.  Those go; the meters add up on the device, and `over_ranks` reduces them for a line.
    """

    sites = {"distributed.py": {"train": 8}, "dataparallel.py": {"train": 4}}
    needles = (b"def train(",)
    origin = "https://github.com/facebookresearch/ClassyVision/pull/531"
    changes = [
        ("def train():\n    m.update(loss.item(), n)\n", "...\ndef train():\n    m.update(measured(loss), n)\n"),
        ("def train():\n    m.update( acc1[0], n )\n", "...\ndef train():\n    m.update( measured(acc1), n )\n"),
        ("def train():\n    p.display(i)\n", "...\ndef train():\n    over_ranks(p).display(i)\n"),
    ]
    leaves = [
        "def validate():\n    dist.barrier()\n    m.update(loss.item(), n)\n    p.display(i)\n",
        "def train():\n    pool.barrier()\n    m.update(time.time() - end)\n    m.update(acc1[1], n)\n",
    ]

    def __init__(self):
        self.means = {}  # what the script calls a number that is reduced, and what it is the mean of
        super().__init__()

    def done(self, node: cst.CSTNode) -> bool:
        return self.function == "train" and calls(node, "measured", "over_ranks")

    def leave_SimpleStatementLine(self, original: cst.SimpleStatementLine, updated: cst.SimpleStatementLine):
        waits = self.function == "train" and waits_for_ranks(updated, self.means)
        return cst.RemovalSentinel.REMOVE if waits else updated

    def leave_Call(self, original: cst.Call, updated: cst.Call) -> cst.Call:
        if self.function != "train":
            return updated
        if syntax.is_method_call(updated, "display") and isinstance(updated.func.value, cst.Name):
            if self.has_function("over_ranks"):
                return updated
            self.insert_function("over_ranks", "over_ranks.py")
            ready = syntax.wrapped("over_ranks", updated.func.value)
            return updated.with_changes(func=updated.func.with_changes(value=ready))
        return measuring(self, updated, self.means)


def calls(node: cst.CSTNode, *names: str) -> bool:
    return any(syntax.is_call(node, name) for name in names)


def waits_for_ranks(line: cst.SimpleStatementLine, means: dict) -> bool:
    """A barrier of the process group, or `x = reduce_mean(y, n)`, which is written into `means`."""
    call = syntax.expression(line)
    if call is not None and calls(call, "reduce_mean") and isinstance(line.body[0], cst.Assign):
        means[line.body[0].targets[0].target.value] = call.args[0].value
        return True
    group = call.func.value if call is not None and syntax.is_method_call(call, "barrier") else None
    return syntax.is_name(getattr(group, "attr", group), "distributed") or syntax.is_name(group, "dist")


def measuring(patch: Patch, call: cst.Call, means: dict) -> cst.Call:
    """`m.update(x.item(), n)` or `m.update(x[0], n)` with a number that stays on its device; others as they are."""
    first = call.args[0].value if syntax.is_method_call(call, "update") and len(call.args) == 2 else None
    value = None
    if isinstance(first, cst.Call) and syntax.is_method_call(first, "item"):
        value = first.func.value
    elif isinstance(first, cst.Subscript) and syntax.integer(getattr(first.slice[0].slice, "value", None)) == 0:
        value = first.value
    if value is None or patch.has_function("measured"):
        return call
    patch.insert_function("measured", "measured.py")
    value = means.get(getattr(value, "value", None), value)
    return call.with_changes(args=[call.args[0].with_changes(value=syntax.wrapped("measured", value)), call.args[1]])
