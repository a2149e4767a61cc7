import libcst as cst

from patcher import Patch, places, syntax


class ValInterval(Patch):
    """Validate every N epochs with --val-every; upstream does after each one, however short it is.

    The last epoch is always validated. An epoch that is not has no new best.
    """

    sites = {"distributed.py": {"main_worker": 1}, "dataparallel.py": {"main_worker": 1}}
    needles = (b"def main_worker(",)
    origin = "https://lightning.ai/docs/pytorch/stable/common/trainer.html"
    changes = [
        (
            "def main_worker(o):\n    for n in range(o.epochs):\n"
            "        acc = validate(d, net, o)\n",
            "def main_worker(o):\n    for n in range(o.epochs):\n        acc = 0.\n"
            "        if validation.is_due(n, o):\n            acc = validate(d, net, o)\n",
        )
    ]
    leaves = [
        "def main_worker(o):\n    if o.e:\n        validate(d, net, o)\n",
        "def f(o):\n    for n in range(o.epochs):\n        acc = validate(d, net, o)\n",
    ]

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "validation.is_due")

    def __init__(self):
        super().__init__()
        self.loop: cst.CSTNode | None = None  # over epochs, unless it has the edit already
        self.epoch: str | None = None

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        if "." not in self.function:  # not a nested one
            loops = filter(places.is_loop(node), syntax.descendants(node))
            self.loop = None if self.is_done_in(node) else next(loops, None)
            self.epoch = places.loop_variable(node)

    def leave_For(self, original: cst.For, updated: cst.For):
        if self.function != "main_worker" or original is not self.loop:
            return updated
        body: list[cst.CSTNode] = []
        for line in updated.body.body:
            name = _accuracy(line)
            body += self._where_due(line, name) if name else [line]
        return updated.with_deep_changes(updated.body, body=body)

    def _where_due(self, line, accuracy: str) -> list[cst.CSTNode]:
        if self.epoch is None:
            self.refuse("the loop over epochs has no name for them", line)
        due = f"{self.add_options('validation')}.is_due({self.epoch}, {self.args})"
        code = f"{accuracy} = 0.\nif {due}:\n    pass\n"
        none, choice = syntax.statements(code, self.module.default_newline)
        body = cst.IndentedBlock([line.with_changes(leading_lines=())])
        first = none.with_changes(leading_lines=line.leading_lines)
        return [first, choice.with_changes(body=body)]


def _accuracy(line: cst.CSTNode) -> str | None:
    """What a line, or a loop in it, assigns the result of `validate(...)` to."""
    bound = filter(None, map(syntax.binding, [line, *syntax.descendants(line)]))
    return next((name for name, value in bound if syntax.is_call(value, "validate")), None)
