import libcst as cst

from patcher import Patch, places, syntax


class AnyDevice(Patch):
    """Run on CUDA, another accelerator or the CPU; upstream runs on CUDA alone.

    The device is chosen once, and everything moves to it. It is current before the process group is
    made, so no rank takes memory on GPU 0. More processes than devices are refused in one line.
    """

    sites = {
        "distributed.py": {"main_worker": 10, "train": 3, "validate": 3},
        "dataparallel.py": {"main_worker": 8, "train": 3, "validate": 3},
    }
    needles = (b".cuda", b"init_process_group", b".to(", b"train(", b"validate(")
    origin = "https://github.com/pytorch/examples/issues/969"
    changes = [
        (
            "def train(x, gpu, args):\n    x = x.cuda(gpu, non_blocking=True)\n",
            "def train(x, gpu, device, args):\n    x = x.to(device, non_blocking=True)\n",
        ),
        (
            "def f(gpus, o):\n    torch.cuda.set_device(gpus[0])\n    m.cuda()\n",
            "def f(gpus, o):\n    device = devices.home(o, gpus)\n    m.to(device)\n",
        ),
    ]
    leaves = ["def main_worker(args):\n    n = torch.cuda.device_count()\n    x = x.to(gpu)\n"]

    def __init__(self):
        super().__init__()
        self.joined = False  # whether there is a process group, which tells each rank its device

    def done(self, node: cst.CSTNode) -> bool:
        if syntax.is_method_call(node, "to"):
            return syntax.is_name(node.args[0].value, "device")
        return syntax.is_call(node, "devices.init_process_group")

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef):
        if self.function not in ("train", "validate") or "device" in self.parameters:
            return updated
        self.bring("device")
        return places.with_parameter(updated, "device")

    def leave_SimpleStatementLine(self, original, updated: cst.SimpleStatementLine):
        joins = syntax.is_call_of(syntax.expression(updated), "init_process_group")
        if not joins or self.is_done_in(updated):
            return updated
        self.joined = True
        join = f"devices.init_process_group(device, {self.args}.timeout)\n"
        first, *rest = self._choose(f"devices.select({self.args})\n{join}")
        first = first.with_changes(leading_lines=updated.leading_lines)
        return cst.FlattenSentinel([first, *rest])

    def leave_IndentedBlock(self, original: cst.IndentedBlock, updated: cst.IndentedBlock):
        return syntax.without(updated, _sets_device) if self.joined else updated

    def leave_Expr(self, original: cst.Expr, updated: cst.Expr):
        if self.joined or not syntax.is_call(updated.value, "torch.cuda.set_device"):
            return updated
        for node in syntax.descendants(updated):
            if isinstance(node, cst.Subscript):
                gpus = self.module.code_for_node(node.value)
                (line,) = self._choose(f"devices.home({self.args}, {gpus})\n")
                return line.body[0]
        return updated

    def leave_Call(self, original: cst.Call, updated: cst.Call):
        gpus = syntax.argument(updated, "device_ids")
        if gpus and syntax.is_call(updated, "nn.DataParallel"):
            model, ids = (self.module.code_for_node(a.value) for a in (updated.args[0], gpus))
            parallel = f"{self.support('devices')}.data_parallel"
            return cst.parse_expression(f"{parallel}({model}, {ids}, device)")
        if syntax.is_method_call(updated, "cuda"):
            kept = [arg for arg in updated.args if arg.keyword]
            func = updated.func.with_changes(attr=cst.Name("to"))
            return updated.with_changes(func=func, args=[cst.Arg(cst.Name("device")), *kept])
        trains = syntax.is_call(updated, "train") or syntax.is_call(updated, "validate")
        if trains and not any(syntax.is_name(arg.value, "device") for arg in updated.args):
            return places.with_argument(updated, "device")
        return updated

    def leave_Arg(self, original: cst.Arg, updated: cst.Arg):
        keyword, value = updated.keyword, updated.value
        if syntax.is_name(keyword, "pin_memory") and syntax.is_name(value, "True"):
            value = cst.parse_expression("device.type == 'cuda'")
        elif self.joined and syntax.is_name(keyword, "device_ids") and isinstance(value, cst.List):
            value = cst.parse_expression(f"{self.support('devices')}.ids(device)")
        return updated if value is updated.value else updated.with_changes(value=value)

    def _choose(self, code: str):
        self.add_options(self.support("devices"))
        return syntax.statements(f"{self.bring('device')} = {code}", self.module.default_newline)


def _sets_device(line: cst.CSTNode) -> bool:
    return syntax.is_call(syntax.expression(line), "torch.cuda.set_device")
