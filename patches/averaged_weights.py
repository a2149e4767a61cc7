import libcst as cst

from patcher import Patch, Place, places, syntax


class AveragedWeights(Patch):
    """Keep a moving average of the weights with --ema, and validate it too: it is often better.

    It is saved beside the weights that train, and the best checkpoint is the one whose average is.
    """

    sites = {
        f"{name}.py": {"main_worker": 3, "train": 1} for name in ("distributed", "dataparallel")
    }
    needles = (b"def main_worker(", b"def train(")
    origin = "https://docs.pytorch.org/docs/stable/optim.html#putting-it-all-together-ema"
    needs = ("resume", "saved_steps", "any_device")
    changes = [
        (
            "def train(d, net, run, o):\n    for i, x in enumerate(d):\n        sgd.step()\n",
            "def train(d, net, run, o):\n    for i, x in enumerate(d):\n        sgd.step()\n"
            "        averaging.update(run, i)\n",
        ),
        (
            "def main_worker(o):\n    d = DataLoader(x)\n    e = DataLoader(y)\n"
            "    train(d, net, o)\n    acc = validate(e, net, o)\n",
            "def main_worker(o):\n    d = DataLoader(x)\n    e = DataLoader(y)\n"
            "    averaging.begin(run, d, o)\n"
            "    train(d, net, o)\n    for version in averaging.versions(net):\n"
            "        acc = validate(e, version, o)\n",
        ),
    ]
    leaves = [
        "def main_worker(o):\n    d = DataLoader(x)\n    train(d, net, o)\n    check(d, net, o)\n",
        "def f(d, net, o):\n    validate(d, net, o)\n",
    ]

    def done(self, node: cst.CSTNode) -> bool:
        calls = ("begin", "update", "versions")
        return any(syntax.is_call(node, f"averaging.{name}") for name in calls)

    def __init__(self):
        super().__init__()
        self.is_there = False  # whether the function at hand has it already

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        if "." not in self.function:  # not a nested one
            self.is_there = self.is_done_in(node)

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef):
        if "." in self.function or self.is_there:
            return updated
        if self.function == "train":
            step = places.training_names(updated).get("step")
            if step is None:
                self.refuse("train does not show its step", original)
            code = f"{self.support('averaging')}.update(run, {step})\n"
            return self.insert(updated, Place.LAST_IN_LOOP, code, rank=15)
        loaders = places.loaders_in(updated)
        if self.function != "main_worker" or loaders is None:
            return updated
        begin = f"{self.add_options('averaging')}.begin(run, {loaders[0]}, {self.args})\n"
        return self.insert(updated, Place.LOADERS, begin, rank=27)

    def leave_SimpleStatementLine(self, original, updated: cst.SimpleStatementLine):
        call = syntax.expression(updated)
        if self.function != "main_worker" or self.is_there:
            return updated
        if not syntax.is_call(call, "validate") or len(call.args) < 2:
            return updated
        loader, model, *others = call.args
        each = self.bring("version")
        versions = f"{self.support('averaging')}.versions({self.module.code_for_node(model.value)})"
        args = [loader, model.with_changes(value=cst.Name(each)), *others]
        line = updated.with_deep_changes(call, args=args).with_changes(leading_lines=())
        (loop,) = syntax.statements(
            f"for {each} in {versions}:\n    pass\n", self.module.default_newline
        )
        body = cst.IndentedBlock([line])
        return loop.with_changes(body=body, leading_lines=updated.leading_lines)
