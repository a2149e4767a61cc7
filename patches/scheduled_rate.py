import libcst as cst

from patcher import Patch, Place, places, syntax

ADJUST = "adjust_learning_rate"


class ScheduledRate(Patch):
    """Set the learning rate in each step, by --schedule and after a warm-up; upstream has neither.

    It divides the rate by ten every 30 epochs. From 0.001 that is 1e-6 after 90 epochs, and all
    later ones train next to nothing. A transformer that begins at its full rate may not train.
    """

    sites = {
        f"{name}.py": {"main_worker": 2, "train": 1, ADJUST: 1}
        for name in ("distributed", "dataparallel")
    }
    needles = (b"adjust_learning_rate(", b"def train(", b"schedules.")
    origin = "https://github.com/pytorch/vision/tree/main/references/classification"
    changes = [
        (
            "def f(o):\n    sgd = torch.optim.SGD(net.parameters(), 1)\n"
            "    a = DataLoader(x)\n    b = DataLoader(y)\n"
            "    for n in range(o.epochs):\n        adjust_learning_rate(sgd, n, o)\n"
            "        train(a, net, sgd, n)\n",
            "def f(o):\n    sgd = torch.optim.SGD(net.parameters(), 1)\n"
            "    a = DataLoader(x)\n    b = DataLoader(y)\n"
            "    schedules.begin(net, a, o)\n"
            "    for n in range(o.epochs):\n        train(a, net, sgd, n)\n",
        ),
        (
            "def train(d, net, sgd, n, o):\n    s = 'Epoch {}'.format(n)\n"
            "    for i, x in enumerate(d):\n        sgd.step()\n",
            "def train(d, net, sgd, n, o):\n    s = 'Epoch {}'.format(n)\n"
            "    for i, x in enumerate(d):\n"
            "        adjust_learning_rate(sgd, n + i / len(d), o)\n        sgd.step()\n",
        ),
        (
            'def adjust_learning_rate(sgd, n, o):\n    """Divides it by ten."""\n'
            "    lr = o.lr * 0.1 ** (n // 30)\n",
            'def adjust_learning_rate(sgd, n, o):\n    """Sets the rate of --schedule; an epoch '
            'may have a fraction."""\n    lr = schedules.rate(n, o)\n',
        ),
    ]
    leaves = [
        "def adjust_learning_rate(sgd, n, o):\n    for group in sgd.param_groups:\n        n\n"
    ]

    def done(self, node: cst.CSTNode) -> bool:
        if self.function == "train":
            return syntax.is_call(node, ADJUST)
        return syntax.is_call(node, "schedules.rate") or syntax.is_call(node, "schedules.begin")

    def leave_SimpleStatementLine(self, original, updated: cst.SimpleStatementLine):
        moves = self.function != "train" and syntax.is_call(syntax.expression(updated), ADJUST)
        return cst.RemoveFromParent() if moves else updated

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef):
        if self.is_done_in(updated):
            return updated
        if self.function == ADJUST:
            return self.from_module(updated)
        if self.function == "train":
            return self.in_each_step(original, updated)
        made, loaders = places.optimizer_in(updated), places.loaders_in(updated)
        if made is None or loaders is None:
            return updated
        begin = f"{self.add_options('schedules')}.begin({made[0]}, {loaders[0]}, {self.args})\n"
        return self.insert(updated, Place.LOADERS, begin, rank=25)

    def in_each_step(self, original: cst.FunctionDef, updated: cst.FunctionDef):
        names = places.training_names(updated)
        missing = [name for name in ("optimizer", "epoch", "step") if name not in names]
        if missing:
            self.refuse(f"train does not show its {', '.join(missing)}", original)
        epoch = f"{names['epoch']} + {names['step']} / len({self.parameters[0]})"
        line = f"{ADJUST}({names['optimizer']}, {epoch}, {self.args})\n"
        return self.insert(updated, Place.FIRST_IN_LOOP, line, rank=20)

    def from_module(self, updated: cst.FunctionDef) -> cst.FunctionDef:
        """The function with the rate that the module gives, and a docstring that says so."""
        rates = (n for n in syntax.descendants(updated) if isinstance(n, cst.BinaryOperation))
        steps = next((n for n in rates if _has_steps(n)), None)
        if steps is None:
            return updated
        rate = f"{self.support('schedules')}.rate({self.parameters[1]}, {self.args})"
        updated = cst.ensure_type(
            updated.deep_replace(steps, cst.parse_expression(rate)), cst.FunctionDef
        )
        docs = syntax.expression(places.lines_of(updated)[0])
        if not isinstance(docs, cst.SimpleString):
            return updated
        said = '"""Sets the rate of --schedule; an epoch may have a fraction."""'
        return cst.ensure_type(updated.deep_replace(docs, cst.SimpleString(said)), cst.FunctionDef)


def _has_steps(node: cst.CSTNode) -> bool:
    return any(isinstance(part, cst.FloorDivide) for part in syntax.descendants(node))
