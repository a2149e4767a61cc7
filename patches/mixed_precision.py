import libcst as cst

from patcher import Patch, Place, places, syntax


class MixedPrecision(Patch):
    """Compute in bfloat16 where the device does so fast; upstream computes in float32 alone.

    Loss, accuracy, weights and checkpoints stay in float32. --amp off is float32 throughout, --amp
    fp16 is for GPUs without bfloat16: it scales the loss, since small gradients would be nought.
    """

    sites = {
        f"{name}.py": {"main_worker": 1, "train": 3, "validate": 1}
        for name in ("distributed", "dataparallel")
    }
    needles = (*places.MAKES_OPTIMIZER, b"def train(", b"def validate(")
    origin = "https://docs.pytorch.org/docs/stable/notes/amp_examples.html"
    changes = [
        (
            "def train(net, x):\n    s = net(x)\n    f(s).backward()\n    sgd.step()\n",
            "def train(net, x):\n    s = precision.forward(net, x)\n"
            "    precision.backward(f(s))\n    precision.step(sgd)\n",
        ),
        (
            "def f(o):\n    sgd = torch.optim.SGD(net.parameters(), 1)\n",
            "def f(o):\n    sgd = torch.optim.SGD(net.parameters(), 1)\n"
            "    precision.begin(run, device, o)\n",
        ),
    ]
    leaves = [
        "def train(net, f, x):\n    loss = f(net.head(x), y)\n    loss.backward(grad)\n",
        "def validate(net, x):\n    x = torch.relu(x)\n    timer.step()\n",
    ]
    needs = ("any_device", "resume")

    def done(self, node: cst.CSTNode) -> bool:
        calls = ("begin", "forward", "backward", "step")
        return any(syntax.is_call(node, f"precision.{name}") for name in calls)

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef):
        if places.optimizer_in(updated) is None or self.is_done_in(updated):
            return updated
        begin = f"{self.add_options('precision')}.begin(run, device, {self.args})\n"
        return self.insert(updated, Place.OPTIMIZER, begin, rank=30)

    def leave_Call(self, original: cst.Call, updated: cst.Call):
        if self.function not in ("train", "validate"):
            return updated
        model, given = updated.func, updated.args
        is_model = isinstance(model, cst.Name) and model.value in self.parameters
        if is_model and len(given) == 1 and given[0].keyword is None and not given[0].star:
            call = syntax.wrapped(f"{self.support('precision')}.forward", model)
            first = call.args[0].with_changes(comma=syntax.COMMA)
            return call.with_changes(args=[first, given[0]])
        for name in ("backward", "step") if self.function == "train" and not given else ():
            value = syntax.receiver(updated) if syntax.is_method_call(updated, name) else None
            if value is not None:
                return syntax.wrapped(f"{self.support('precision')}.{name}", value)
        return updated
