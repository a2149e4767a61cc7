import libcst as cst

from patcher import Patch, syntax


class Measuring(Patch):
    """In one loop, remove barriers and reductions, and meter numbers that stay on their device."""

    loop = ""

    def __init__(self):
        super().__init__()
        self.means: dict[str, cst.BaseExpression] = {}  # by its name, what a mean is made of

    def leave_SimpleStatementLine(self, original, updated: cst.SimpleStatementLine):
        call, line = syntax.expression(updated), updated.body[0]
        if self.function != self.loop:
            return updated
        if syntax.is_call(call, "reduce_mean") and isinstance(line, cst.Assign):
            self.means[self.module.code_for_node(line.targets[0].target)] = call.args[0].value
            return cst.RemovalSentinel.REMOVE
        group = syntax.receiver(call) if syntax.is_method_call(call, "barrier") else None
        last = getattr(group, "attr", group)
        waits = syntax.is_name(group, "dist") or syntax.is_name(last, "distributed")
        return cst.RemovalSentinel.REMOVE if waits else updated

    def leave_Call(self, original: cst.Call, updated: cst.Call):
        updates = syntax.is_method_call(updated, "update") and len(updated.args) == 2
        value = _measured(updated.args[0].value) if updates else None
        if value is None or self.function != self.loop:
            return updated
        mean = self.means.get(getattr(value, "value", ""), value)
        measured = syntax.wrapped(f"{self.support('meters')}.measured", mean)
        first, count = updated.args
        return updated.with_changes(args=[first.with_changes(value=measured), count])


class TrainMeters(Measuring):
    """Average training meters over the ranks when a line is due; upstream waits in each step.

    Its barrier, its reductions and its reads of the device go. The meters add up on the device, and
    are reduced before the clock is read: the host waits there for the steps that it is ahead.
    """

    loop = "train"
    why = "  # waits for the device, so it is time of this step\n"
    sites = {"distributed.py": {"train": 8}, "dataparallel.py": {"train": 4}}
    needles = (b"def train(",)
    origin = "https://github.com/facebookresearch/ClassyVision/pull/531"
    drops = ("# All ranks arrive here before their numbers are averaged.",)
    changes = [
        (
            "def train(x):\n    for i in x:\n        m.update( acc1[0], n )\n"
            "        t = time.time()\n        if i < 9:\n            p.display(i)\n",
            "def train(x):\n    for i in x:\n        m.update( meters.measured(acc1), n )\n"
            f"\n        if i < 9:\n            meters.reduce(p){why}"
            "        t = time.time()\n        if i < 9:\n            p.display(i)\n",
        )
    ]
    leaves = [
        "def validate():\n    dist.barrier()\n    m.update(loss.item(), n)\n    p.display(i)\n",
        "def train():\n    pool.barrier()\n    m.update(time.time())\n    m.update(acc[1], n)\n",
    ]

    def done(self, node: cst.CSTNode) -> bool:
        return self.function == "train" and syntax.is_call(node, "meters.reduce")

    def leave_For(self, original: cst.For, updated: cst.For):
        lines = [*updated.body.body]
        shown = [(at, *found) for at, line in enumerate(lines) if (found := _shown(line))]
        if self.function != "train" or not shown or self.is_done_in(updated):
            return updated
        at, test, meter = shown[0]
        nodes = [[*syntax.descendants(line)] for line in lines]
        clock = [any(syntax.is_call(node, "time.time") for node in line) for line in nodes]
        at = max((number for number in range(at) if clock[number]), default=at)
        while at > 0 and clock[at - 1]:
            at -= 1
        due, progress = map(self.module.code_for_node, (test, meter))
        code = f"\nif {due}:\n    {self.support('meters')}.reduce({progress}){self.why}"
        lines[at:at] = syntax.statements(code, self.module.default_newline)
        return updated.with_changes(body=updated.body.with_changes(body=lines))


def _measured(value: cst.BaseExpression) -> cst.BaseExpression | None:
    """The `x` of `x.item()` or `x[0]`."""
    if isinstance(value, cst.Subscript):
        index = getattr(value.slice[0].slice, "value", None)
        return value.value if syntax.integer(index) == 0 else None
    return syntax.receiver(value) if syntax.is_method_call(value, "item") else None


def _shown(line: cst.CSTNode) -> tuple[cst.CSTNode, cst.CSTNode] | None:
    """When and what a line shows: `i % 9 == 0`, `p` in `if i % 9 == 0: p.display(i)`."""
    if isinstance(line, cst.If):
        for call in map(syntax.expression, line.body.body):
            if syntax.is_method_call(call, "display") and (meter := syntax.receiver(call)):
                return line.test, meter
    return None
