import libcst as cst

from patcher import Patch, Place, places, syntax


class Resume(Patch):
    """Save all that a run needs, go on from it with --resume, and never replace a checkpoint of another run unasked.

    Upstream saves neither the optimizer nor what the data order follows from.  Its --start-epoch starts from
    random weights, at a best accuracy of 0, over the files of the run before.
    """

    sites = {
        "distributed.py": {"main": 1, "main_worker": 7},
        "dataparallel.py": {"main": 1, "main_worker": 7},
    }
    needles = (b"parse_args", b"torch.optim.")
    origin = "https://github.com/D-X-Y/NAS-Bench-201/issues/19"
    changes = [
        (
            "def f(o):\n    print('random')\n    sgd = torch.optim.SGD(net.parameters(), 1)\n"
            "    for n in range(o.start_epoch, o.epochs):\n"
            "        better = acc > best\n        best = max(acc, best)\n"
            "        save({'epoch': n + 1, 'best_acc1': best}, better)\n",
            "def f(o):\n    if not checkpoint.to_resume(o):\n        print('random')\n"
            "    sgd = torch.optim.SGD(net.parameters(), 1)\n    run = checkpoint.start(net, sgd, o)\n"
            "    for n in range(run.epoch, o.epochs):\n        run.epoch = n\n"
            "        better = acc > run.best_acc1\n        run.best_acc1 = max(acc, run.best_acc1)\n"
            "        save({'epoch': n + 1, 'best_acc1': run.best_acc1, **run.state()}, better)\n",
        ),
        (
            "def main():\n    o = p.parse_args()\n",
            "def main():\n    o = p.parse_args()\n    checkpoint.check(o)\n",
        ),
    ]
    leaves = ["def f(o):\n    for n in range(o.start_epoch, 9):\n        best = max(acc, best)\n"]

    def __init__(self):
        super().__init__()
        self.made = self.best = None

    def done(self, node: cst.CSTNode) -> bool:
        return any(syntax.is_call(node, f"checkpoint.{name}") for name in ("check", "start"))

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        if "." in self.function:
            return  # a function in it makes no optimizer
        self.made, self.best = places.optimizer_in(node), None
        if self.made is not None and not self.is_done_in(node):
            values = [
                _best(part) for part in syntax.descendants(node) if isinstance(part, cst.Dict)
            ]
            self.best = next((value.value for value in values if isinstance(value, cst.Name)), None)

    def leave_FunctionDef(
        self, original: cst.FunctionDef, updated: cst.FunctionDef
    ) -> cst.FunctionDef:
        if self.best is None or "." in self.function:
            return self.insert_check(updated, "checkpoint.check", rank=60, options=True)
        self.support("checkpoint")
        model, optimizer = self.made
        made = f"{self.bring('run')} = checkpoint.start({model}, {optimizer}, {self.args})\n"
        updated = self.insert(updated, Place.OPTIMIZER, made, rank=20)
        return self.insert(
            updated, Place.FIRST_IN_LOOP, f"run.epoch = {places.loop_variable(updated)}\n", rank=10
        )

    def leave_SimpleStatementLine(
        self, original: cst.SimpleStatementLine, updated: cst.SimpleStatementLine
    ):
        call = syntax.expression(updated)  # `--resume` says what it has loaded
        prints = call is not None and any(
            syntax.is_call_of(call, name) for name in ("print", "print_once")
        )
        if self.best is None or not prints:
            return updated
        code = f"if not {self.support('checkpoint')}.to_resume({self.args}):\n    pass\n"
        (guard,) = syntax.statements(code, self.module.default_newline)
        body = guard.body.with_changes(body=[updated.with_changes(leading_lines=())])
        return guard.with_changes(body=body, leading_lines=updated.leading_lines)

    def leave_Call(self, original: cst.Call, updated: cst.Call) -> cst.Call:
        first = updated.args[0] if syntax.is_call(updated, "range") and updated.args else None
        begins = (
            first
            and isinstance(first.value, cst.Attribute)
            and first.value.attr.value == "start_epoch"
        )
        if self.best is None or not begins:
            return updated
        return updated.with_changes(
            args=[first.with_changes(value=_run("epoch")), *updated.args[1:]]
        )

    def leave_Assign(self, original: cst.Assign, updated: cst.Assign) -> cst.Assign:
        value, target = updated.value, updated.targets[0].target
        compared = isinstance(value, cst.Comparison) and self._is_best(
            value.comparisons[0].comparator
        )
        if compared or (syntax.is_call(value, "max") and self._is_best(target)):
            return syntax.replaced(updated, self.best, _run("best_acc1"))
        return updated

    def leave_Dict(self, original: cst.Dict, updated: cst.Dict) -> cst.Dict:
        if not self._is_best(_best(updated)):
            return updated
        return syntax.with_element(
            syntax.replaced(updated, self.best, _run("best_acc1")), _run("state()")
        )

    def _is_best(self, node: "cst.CSTNode | None") -> bool:
        return self.best is not None and syntax.is_name(node, self.best)


def _run(field: str) -> cst.BaseExpression:
    return cst.parse_expression(f"run.{field}")


def _best(state: cst.Dict) -> "cst.BaseExpression | None":
    """The value of 'best_acc1' in a dict literal."""
    pairs = [one for one in state.elements if isinstance(one, cst.DictElement)]
    return next((one.value for one in pairs if syntax.string(one.key) == "best_acc1"), None)
