import libcst as cst

from patcher import Patch, places, syntax


class AnyDevice(Patch):
    """Run on CUDA, another accelerator or the CPU: choose the device once, then move everything to it.

    The device is current before the process group is made, so no rank takes memory on GPU 0.
    More processes than devices are refused in one line.
    """

    sites = {
        "distributed.py": {"main_worker": 10, "train": 3, "validate": 3},
        "dataparallel.py": {"main_worker": 8, "train": 3, "validate": 3},
    }
    needles = (b".cuda", b"init_process_group", b".to(", b"train(", b"validate(")
    origin = "https://github.com/pytorch/examples/issues/969"
    changes = [
        (
            "def train(loader, gpu, args):\n    x = x.cuda(gpu, non_blocking=True)\n",
            "def train(loader, gpu, device, args):\n    x = x.to(device, non_blocking=True)\n",
        ),
        (
            "def main_worker(ids, o):\n    torch.cuda.set_device(ids[0])\n    m.cuda()\n    train(m, o)\n",
            "def main_worker(ids, o):\n    device = devices.home(o, ids)\n    m.to(device)\n    train(m, device, o)\n",
        ),
    ]
    leaves = ["def main_worker(args):\n    n = torch.cuda.device_count()\n    x = x.to(gpu)\n"]

    def __init__(self):
        super().__init__()
        self.joined = False  # whether there is a process group, which tells each rank its device

    def done(self, node: cst.CSTNode) -> bool:
        joins = syntax.is_call(node, "devices.init_process_group")
        return joins or (
            syntax.is_method_call(node, "to") and syntax.is_name(node.args[0].value, "device")
        )

    def leave_FunctionDef(
        self, original: cst.FunctionDef, updated: cst.FunctionDef
    ) -> cst.FunctionDef:
        if self.function not in ("train", "validate") or "device" in self.parameters:
            return updated
        self.bring("device")
        return places.with_parameter(updated, "device")

    def leave_SimpleStatementLine(
        self, original: cst.SimpleStatementLine, updated: cst.SimpleStatementLine
    ):
        call = syntax.expression(updated)
        if (
            call is None
            or not syntax.is_call_of(call, "init_process_group")
            or self.is_done_in(updated)
        ):
            return updated
        self.joined = True
        code = f"device = devices.select({self.args})\n"
        return self._chosen(
            updated, f"{code}devices.init_process_group(device, {self.args}.timeout)\n"
        )

    def leave_IndentedBlock(
        self, original: cst.IndentedBlock, updated: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        if self.joined:
            return syntax.without(updated, _sets_device)
        return updated

    def leave_Expr(self, original: cst.Expr, updated: cst.Expr) -> "cst.Expr | cst.Assign":
        gpus = [
            node.value for node in syntax.descendants(updated) if isinstance(node, cst.Subscript)
        ]
        if self.joined or not gpus or not syntax.is_call(updated.value, "torch.cuda.set_device"):
            return updated
        code = f"device = devices.home({self.args}, {self.module.code_for_node(gpus[0])})\n"
        return self._chosen(None, code)[0].body[0]

    def leave_Call(self, original: cst.Call, updated: cst.Call) -> cst.Call:
        if syntax.is_call(updated, "nn.DataParallel") and syntax.argument(updated, "device_ids"):
            given = updated.args[0], syntax.argument(updated, "device_ids")
            model, gpus = (self.module.code_for_node(arg.value) for arg in given)
            return cst.parse_expression(
                f"{self.support('devices')}.data_parallel({model}, {gpus}, device)"
            )
        trains = any(syntax.is_call(updated, name) for name in ("train", "validate"))
        if trains and not any(syntax.is_name(arg.value, "device") for arg in updated.args):
            return places.with_argument(updated, "device")
        if not syntax.is_method_call(updated, "cuda"):
            return updated
        kept = (arg for arg in updated.args if arg.keyword)
        func = updated.func.with_changes(attr=cst.Name("to"))
        return updated.with_changes(func=func, args=[cst.Arg(cst.Name("device")), *kept])

    def leave_Arg(self, original: cst.Arg, updated: cst.Arg) -> cst.Arg:
        if syntax.is_name(updated.keyword, "pin_memory") and syntax.is_name(updated.value, "True"):
            return updated.with_changes(value=cst.parse_expression("device.type == 'cuda'"))
        if (
            syntax.is_name(updated.keyword, "device_ids")
            and self.joined
            and isinstance(updated.value, cst.List)
        ):
            return updated.with_changes(
                value=cst.parse_expression(f"{self.support('devices')}.ids(device)")
            )
        return updated

    def _chosen(self, line: "cst.SimpleStatementLine | None", code: str) -> cst.FlattenSentinel:
        self.add_options(self.support("devices"))
        self.bring("device")
        first, *rest = syntax.statements(code, self.module.default_newline)
        above = line.leading_lines if line else ()
        return cst.FlattenSentinel([first.with_changes(leading_lines=above), *rest])


def _sets_device(line: cst.CSTNode) -> bool:
    call = syntax.expression(line)
    return call is not None and syntax.is_call(call, "torch.cuda.set_device")
