import libcst as cst

from patcher import Patch, syntax


class WholeState(Patch):
    """Save all that a run needs to go on, as tensors and plain Python, under the model's own keys.

    Upstream saves neither the optimizer nor what the data order follows from, and the best accuracy
    as whatever type it has.
    """

    sites = {"distributed.py": {"main_worker": 1}, "dataparallel.py": {"main_worker": 1}}
    needles = (b"save_checkpoint(", b"torch.optim.")
    origin = "https://github.com/pytorch/examples/issues/1194"
    changes = [
        (
            "import os\nimport random\nimport torch.distributed as dist\ndef f(o):\n"
            "    sgd = torch.optim.SGD(net.parameters())\n"
            "    save_checkpoint({'epoch': n, 'weights': net.module.state_dict()}, best)\n",
            "import os\nimport random\nimport torch.distributed as dist\n...\ndef f(o):\n"
            "    sgd = torch.optim.SGD(net.parameters())\n"
            "    save_checkpoint(whole_state({'epoch': n, 'weights': net.module.state_dict()}, net, sgd, o), best)\n",
        ),
    ]
    leaves = [
        "def f(o):\n    sgd = torch.optim.SGD(net.parameters())\n    save_checkpoint(state, best)\n",
        "def f(o):\n    save_checkpoint({'epoch': n}, best)\n",
    ]

    def __init__(self):
        super().__init__()
        self.optimizers = {}  # by function: what it calls its model and its optimizer

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "whole_state")

    def visit_Assign(self, node: cst.Assign) -> None:
        made = optimizer_made(node.value)
        if made is not None:
            self.optimizers[self.function] = made, node.targets[0].target

    def leave_Call(self, original: cst.Call, updated: cst.Call) -> cst.Call:
        state = updated.args[0] if syntax.is_call(updated, "save_checkpoint") and updated.args else None
        if state is None or not isinstance(state.value, cst.Dict) or self.function not in self.optimizers:
            return updated
        if self.has_function("whole_state", "bare"):
            return updated
        self.insert_function("whole_state", "checkpoint.py")
        names = (*self.optimizers[self.function], cst.Name(self.args))
        whole = cst.Call(cst.Name("whole_state"), [cst.Arg(node) for node in (state.value, *names)])
        return updated.with_changes(args=[state.with_changes(value=whole), *updated.args[1:]])


def optimizer_made(value: cst.BaseExpression) -> "cst.BaseExpression | None":
    """The model for whose parameters `torch.optim.<any>(model.parameters(), ...)` is made, here or in an argument."""
    for node in syntax.descendants(value) if isinstance(value, cst.Call) else ():
        made = isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute)
        if made and syntax.is_dotted(node.func.value, "torch.optim") and node.args:
            parameters = node.args[0].value
            return parameters.func.value if syntax.is_method_call(parameters, "parameters") else None
    return None
