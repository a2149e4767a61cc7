import libcst as cst

from patcher import Patch, syntax


class Measuring(Patch):
    """Of a loop: takes barriers and reductions out, and lets meters take numbers that stay on their device."""

    loop = ""

    def __init__(self):
        super().__init__()
        self.means = {}  # what the script calls a number that is reduced, and what it is the mean of

    def leave_SimpleStatementLine(
        self, original: cst.SimpleStatementLine, updated: cst.SimpleStatementLine
    ):
        call = syntax.expression(updated)
        if self.function != self.loop or call is None:
            return updated
        if syntax.is_call(call, "reduce_mean") and isinstance(updated.body[0], cst.Assign):
            self.means[updated.body[0].targets[0].target.value] = call.args[0].value
            return cst.RemovalSentinel.REMOVE
        group = call.func.value if syntax.is_method_call(call, "barrier") else None
        waits = syntax.is_name(getattr(group, "attr", group), "distributed") or syntax.is_name(
            group, "dist"
        )
        return cst.RemovalSentinel.REMOVE if waits else updated

    def leave_Call(self, original: cst.Call, updated: cst.Call) -> cst.Call:
        """`m.update(x.item(), n)` or `m.update(x[0], n)`."""
        if (
            self.function != self.loop
            or not syntax.is_method_call(updated, "update")
            or len(updated.args) != 2
        ):
            return updated
        first, value = updated.args[0], updated.args[0].value
        if syntax.is_method_call(value, "item"):
            value = value.func.value
        elif (
            isinstance(value, cst.Subscript)
            and syntax.integer(getattr(value.slice[0].slice, "value", None)) == 0
        ):
            value = value.value
        else:
            return updated
        value = self.means.get(getattr(value, "value", None), value)
        measured = syntax.wrapped(f"{self.support('meters')}.measured", value)
        return updated.with_changes(args=[first.with_changes(value=measured), updated.args[1]])


REDUCED = """
if {due}:
    meters.reduce({progress})  # waits for the device, so it is time of this step
"""


class TrainMeters(Measuring):
    """Average the training meters over all samples of all ranks, and only where a line is printed.

    Upstream holds all ranks up in each step: a barrier, three reductions, and three numbers read from the
    device.  Those go; the meters add up on the device, and are reduced for a line, before the clock is read: the
    host waits there for all the steps that it has run ahead.
    """

    loop = "train"
    sites = {"distributed.py": {"train": 8}, "dataparallel.py": {"train": 4}}
    needles = (b"def train(",)
    origin = "https://github.com/facebookresearch/ClassyVision/pull/531"
    drops = ("# All ranks arrive here before their numbers are averaged.",)
    changes = [
        (
            "def train(x):\n    for i in x:\n        m.update( acc1[0], n )\n        t = time.time()\n"
            "        s.update(t - u)\n        if i < 9:\n            p.display(i)\n",
            "def train(x):\n    for i in x:\n        m.update( meters.measured(acc1), n )\n"
            "\n        if i < 9:\n            meters.reduce(p)  # waits for the device, so it is time of this step\n"
            "        t = time.time()\n        s.update(t - u)\n        if i < 9:\n            p.display(i)\n",
        )
    ]
    leaves = [
        "def validate():\n    dist.barrier()\n    m.update(loss.item(), n)\n    p.display(i)\n",
        "def train():\n    pool.barrier()\n    m.update(time.time() - end)\n    m.update(acc1[1], n)\n",
    ]

    def done(self, node: cst.CSTNode) -> bool:
        return self.function == "train" and syntax.is_call(node, "meters.reduce")

    def leave_For(self, original: cst.For, updated: cst.For) -> cst.For:
        lines = updated.body.body
        end = next((number for number, line in enumerate(lines) if _display(line)), None)
        if self.function != "train" or end is None or self.is_done_in(updated):
            return updated
        at = max((number for number in range(end) if _reads_clock(lines[number])), default=end)
        while at > 0 and _reads_clock(lines[at - 1]):
            at -= 1
        self.support("meters")
        due, progress = map(
            self.module.code_for_node, (lines[end].test, _display(lines[end]).func.value)
        )
        reduced = syntax.statements(
            REDUCED.format(due=due, progress=progress), self.module.default_newline
        )
        return updated.with_changes(
            body=updated.body.with_changes(body=[*lines[:at], *reduced, *lines[at:]])
        )


def _display(line: cst.CSTNode) -> "cst.Call | None":
    """The call in `if i % 9 == 0: progress.display(i)`, above which the clock is read."""
    calls = map(syntax.expression, line.body.body) if isinstance(line, cst.If) else ()
    return next(
        (call for call in calls if call is not None and syntax.is_method_call(call, "display")),
        None,
    )


def _reads_clock(line: cst.CSTNode) -> bool:
    return any(syntax.is_call(node, "time.time") for node in syntax.descendants(line))
