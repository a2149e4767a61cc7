import libcst as cst

from patcher import Patch, syntax


class AnyDevice(Patch):
    """Run on CUDA, another accelerator or the CPU: choose the device once, then move everything to it.

    The device is current before the process group is made, so that no rank takes memory on
    GPU 0; more processes than devices are refused in one line.
    """

    sites = {
        "distributed.py": {"main_worker": 7, "train": 2, "validate": 2},
        "dataparallel.py": {"main_worker": 6, "train": 2, "validate": 2},
    }
    needles = (b".cuda", b"init_process_group", b".to(")
    origin = "https://github.com/pytorch/examples/issues/969"
    changes = [
        (
            "def train(loader, gpu, args):\n    x = x.cuda(gpu, non_blocking=True)\n",
            "def train(loader, gpu, args):\n    x = x.to(args.device, non_blocking=True)\n",
        ),
        (
            "def f(ids, o):\n    m.cuda()\n    m = nn.DataParallel(m, device_ids=ids)\n",
            "...\ndef f(ids, o):\n    m.to(o.device)\n    m = data_parallel(m, ids, o.device)\n",
        ),
    ]
    leaves = ["def main_worker(args):\n    n = torch.cuda.device_count()\n    x = x.to(device)\n"]

    def __init__(self):
        super().__init__()
        self.joined = False  # whether there is a process group, which then sees to the device

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_method_call(node, "to") and syntax.is_dotted(node.args[0].value, f"{self.args}.device")

    def leave_Call(self, original: cst.Call, updated: cst.Call) -> cst.Call:
        if syntax.is_method_call(updated, "init_process_group"):
            self.joined = True
            self.insert_option("--timeout", "device.py", self.parser_name())
            self._choose_with("join_process_group")
            return cst.parse_expression(f"join_process_group({self.args})")
        if syntax.is_call(updated, "nn.DataParallel") and syntax.argument(updated, "device_ids"):
            self.insert_function("data_parallel", "device.py")
            given = updated.args[0], syntax.argument(updated, "device_ids")
            model, gpus = (self.module.code_for_node(arg.value) for arg in given)
            return cst.parse_expression(f"data_parallel({model}, {gpus}, {self.args}.device)")
        if not syntax.is_method_call(updated, "cuda"):
            return updated
        kept = (arg for arg in updated.args if arg.keyword)
        func = updated.func.with_changes(attr=cst.Name("to"))
        return updated.with_changes(func=func, args=[cst.Arg(cst.parse_expression(f"{self.args}.device")), *kept])

    def leave_Arg(self, original: cst.Arg, updated: cst.Arg) -> cst.Arg:
        if syntax.is_name(updated.keyword, "pin_memory") and syntax.is_name(updated.value, "True"):
            return updated.with_changes(value=cst.parse_expression(f"{self.args}.device.type == 'cuda'"))
        if syntax.is_name(updated.keyword, "device_ids") and self.joined and isinstance(updated.value, cst.List):
            ids = f"[{self.args}.device] if {self.args}.device.type == 'cuda' else None"
            return updated.with_changes(value=cst.parse_expression(ids))
        return updated

    def leave_Expr(self, original: cst.Expr, updated: cst.Expr) -> "cst.Expr | cst.Assign":
        lists = [node.value for node in syntax.descendants(updated) if isinstance(node, cst.Subscript)]
        if not syntax.is_call(updated.value, "torch.cuda.set_device") or self.joined or not lists:
            return updated
        gpus = self.module.code_for_node(lists[0])  # of `set_device(gpus[0])`, in whichever words
        self._choose_with("home_device")
        return cst.parse_statement(f"{self.args}.device = home_device({self.args}.device, {gpus})").body[0]

    def leave_IndentedBlock(self, original: cst.IndentedBlock, updated: cst.IndentedBlock) -> cst.IndentedBlock:
        if not self.joined:
            return updated
        return syntax.without(updated, lambda line: syntax.is_call(syntax.expression(line), "torch.cuda.set_device"))

    def _choose_with(self, function: str) -> None:
        self.insert_option("--device", "device.py", self.parser_name())
        self.insert_function(function, "device.py")
