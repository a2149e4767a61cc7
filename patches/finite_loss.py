import libcst as cst

from patcher import Patch, syntax
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
            "    for i, x in enumerate(while_finite(loader, net, meter, opt, n)):\n"
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
            self.names = _names(node)

    def leave_Call(self, original: cst.Call, updated: cst.Call) -> cst.Call:
        if self.function != "train" or not calls(updated, "enumerate") or None in self.names:
            return updated
        loader, *others = updated.args
        if not isinstance(loader.value, cst.Name) or self.has_function("fail", "stop_unless_finite", "while_finite"):
            return updated
        for name in ("fail", "stop_unless_finite", "while_finite"):
            self.insert_function(name, f"{name}.py")
        watched = cst.Call(cst.Name("while_finite"), [cst.Arg(node) for node in (loader.value, *self.names)])
        return updated.with_changes(args=[loader.with_changes(value=watched), *others])


def _names(function: cst.FunctionDef) -> list:
    """What the loop calls its model, the meter of the loss, the optimizer and the epoch; None for what is not there."""
    model = meter = optimizer = epoch = None
    for node in syntax.descendants(function):
        if syntax.is_method_call(node, "train"):
            model = node.func.value
        elif syntax.is_method_call(node, "step"):
            optimizer = node.func.value
        elif isinstance(node, cst.Assign) and calls(node.value, "AverageMeter"):
            meter = node.targets[0].target if syntax.string(node.value.args[0].value) == "Loss" else meter
        elif syntax.is_method_call(node, "format") and (syntax.string(node.func.value) or "").startswith("Epoch"):
            epoch = node.args[0].value
    return [model, meter, optimizer, epoch]
