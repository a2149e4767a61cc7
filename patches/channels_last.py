import libcst as cst

from patcher import Patch, places, syntax


class ChannelsLast(Patch):
    """Keep the weights of convolutions channels-last, as their fast kernels read them.

    Upstream keeps them channels-first, so each such kernel rearranges its input, its weights and
    its output. The keys of a checkpoint stay what they are. With --amp off nothing changes: these
    kernels round in another way, and nets with BatchNorm make much of that.
    """

    sites = {"distributed.py": {"main_worker": 1}, "dataparallel.py": {"main_worker": 1}}
    needles = places.MAKES_OPTIMIZER
    origin = "https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html"
    changes = [
        (
            "def f(o):\n    net.to(device)\n    sgd = torch.optim.SGD(net.parameters(), 1)\n",
            "def f(o):\n    net.to(device, memory_format=kernels.layout_of(net, device, o))\n"
            "    sgd = torch.optim.SGD(net.parameters(), 1)\n",
        )
    ]
    leaves = [
        "def f(o):\n    x.to(device)\n    sgd = torch.optim.SGD(net.parameters(), 1)\n",
        "def validate(net):\n    net.to(device)\n",
    ]
    needs = ("any_device",)  # it writes `.to(device)`; `.cuda()` takes no layout

    def __init__(self):
        super().__init__()
        self.model = ""  # what the function at hand trains

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "kernels.layout_of")

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        if "." not in self.function:  # not a nested one
            self.model = (places.optimizer_in(node) or ("",))[0]

    def leave_Call(self, original: cst.Call, updated: cst.Call):
        moves = syntax.is_method_call(updated, "to") and len(updated.args) == 1
        if not self.model or not moves or not syntax.is_name(syntax.receiver(updated), self.model):
            return updated
        device = self.module.code_for_node(updated.args[0].value)
        layout = f"{self.support('kernels')}.layout_of({self.model}, {device}, {self.args})"
        return syntax.with_keyword(updated, "memory_format", cst.parse_expression(layout))
