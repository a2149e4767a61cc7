import libcst as cst

from patcher import Patch, Place, places, syntax


class Resume(Patch):
    """Go on with --resume from all that a run needs; upstream starts from random weights.

    Upstream saves neither the optimizer nor what the data order follows from. Its --start-epoch
    begins at a best accuracy of 0, and replaces the files of the run before; here a checkpoint of
    another run is never replaced unasked.
    """

    sites = {
        f"{name}.py": {"main": 1, "main_worker": 7} for name in ("distributed", "dataparallel")
    }
    needles = (*places.MAKES_OPTIMIZER, b"parse_args")
    origin = "https://github.com/D-X-Y/NAS-Bench-201/issues/19"
    changes = [
        (
            "def f(o):\n    sgd = torch.optim.SGD(net.parameters(), 1)\n"
            "    for n in range(o.start_epoch, o.epochs):\n"
            "        best = max(acc, best)\n        save({'best_acc1': best})\n",
            "def f(o):\n    sgd = torch.optim.SGD(net.parameters(), 1)\n"
            "    run = checkpoint.start(net, sgd, o)\n"
            "    for n in range(run.epoch, o.epochs):\n        run.epoch = n\n"
            "        run.best_acc1 = max(acc, run.best_acc1)\n"
            "        save({'best_acc1': run.best_acc1, **run.state()})\n",
        ),
        (
            "def main():\n    o = p.parse_args()\n",
            "def main():\n    o = p.parse_args()\n    checkpoint.check(o)\n",
        ),
    ]
    leaves = ["def f(o):\n    for n in range(o.start_epoch, 9):\n        best = max(acc, best)\n"]

    def __init__(self):
        super().__init__()
        self.made: tuple[str, str] | None = None  # model and optimizer of the function at hand
        self.best = ""  # what it calls its best accuracy, unless it resumes already

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "checkpoint.check") or syntax.is_call(node, "checkpoint.start")

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        if "." in self.function:
            return  # a nested function makes no optimizer
        self.made, self.best = places.optimizer_in(node), ""
        if self.made is not None and not self.is_done_in(node):
            values = (_best(n) for n in syntax.descendants(node) if isinstance(n, cst.Dict))
            self.best = next((n.value for n in values if isinstance(n, cst.Name)), "")

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef):
        if self.made is None or not self.best or "." in self.function:
            return self.insert_check(updated, "checkpoint.check", rank=60, options=True)
        start = f"{self.support('checkpoint')}.start({', '.join(self.made)}, {self.args})"
        made = f"{self.bring('run')} = {start}\n"
        updated = self.insert(updated, Place.OPTIMIZER, made, rank=20)
        epoch = f"run.epoch = {places.loop_variable(updated)}\n"
        return self.insert(updated, Place.FIRST_IN_LOOP, epoch, rank=10)

    def leave_SimpleStatementLine(self, original, updated: cst.SimpleStatementLine):
        call = syntax.expression(updated)
        prints = syntax.is_call_of(call, "print") or syntax.is_call_of(call, "print_once")
        if not self.best or not prints:
            return updated  # `--resume` says itself what it has loaded
        resumes = cst.parse_expression(f"not {self.support('checkpoint')}.to_resume({self.args})")
        body = cst.IndentedBlock([updated.with_changes(leading_lines=())])
        return cst.If(resumes, body, leading_lines=updated.leading_lines)

    def leave_Call(self, original: cst.Call, updated: cst.Call):
        if not self.best or not syntax.is_call(updated, "range") or not updated.args:
            return updated
        first, *rest = updated.args
        if not isinstance(first.value, cst.Attribute) or first.value.attr.value != "start_epoch":
            return updated
        epoch = first.with_changes(value=cst.parse_expression("run.epoch"))
        return updated.with_changes(args=[epoch, *rest])

    def leave_Assign(self, original: cst.Assign, updated: cst.Assign):
        value, best = updated.value, updated.targets[0].target
        kept = syntax.is_call(value, "max") and syntax.is_name(best, self.best)
        if isinstance(value, cst.Comparison):
            kept = syntax.is_name(value.comparisons[0].comparator, self.best)
        return self._kept_in_run(updated) if kept else updated

    def leave_Dict(self, original: cst.Dict, updated: cst.Dict):
        if not syntax.is_name(_best(updated), self.best):
            return updated
        return syntax.with_element(self._kept_in_run(updated), cst.parse_expression("run.state()"))

    def _kept_in_run(self, node):
        return syntax.replaced(node, self.best, cst.parse_expression("run.best_acc1"))


def _best(state: cst.Dict) -> cst.BaseExpression | None:
    """The value of 'best_acc1' in a dict literal."""
    pairs = [one for one in state.elements if isinstance(one, cst.DictElement)]
    return next((one.value for one in pairs if syntax.string(one.key) == "best_acc1"), None)
