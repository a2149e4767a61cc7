import libcst as cst

from patcher import Patch, syntax


class ModelForData(Patch):
    """Give the model one output for each class in the data; upstream always makes 1000.

    With more classes its loss fails in the middle, with fewer most outputs are dead. A model that
    cannot be trained is refused before anything starts. torchvision has removed `pretrained=` from
    its models step by step; `weights=` takes its place.
    """

    sites = {
        "distributed.py": {"main": 1, "main_worker": 2},
        "dataparallel.py": {"main": 1, "main_worker": 2},
    }
    needles = (b"__dict__[", b"network.", b"parse_args")
    origin = "https://github.com/pytorch/examples/issues/544"
    changes = [
        (
            "def f(a):\n    m = models.__dict__[a.arch](pretrained=True)\n"
            "    n = models.__dict__[a.arch]()\n",
            "def f(a):\n    m = network.build(a, pretrained=True)\n    n = network.build(a)\n",
        ),
        (
            "def main():\n    o = p.parse_args()\n",
            "def main():\n    o = p.parse_args()\n    network.check(o)\n",
        ),
    ]
    leaves = [
        "def f(a):\n    model = models.__dict__[a.arch](num_classes=10)\n",
        "def f(a):\n    model = models.__dict__[name]()\n",
    ]

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "network.build") or syntax.is_call(node, "network.check")

    def leave_Call(self, original: cst.Call, updated: cst.Call):
        args, pretrained = _arguments(updated.func), syntax.argument(updated, "pretrained")
        if args is None or [*updated.args] != ([pretrained] if pretrained else []):
            return updated
        self.add_options(self.support("network"))
        more = f", pretrained={self.module.code_for_node(pretrained.value)}" if pretrained else ""
        return cst.parse_expression(f"network.build({args}{more})")

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef):
        return self.insert_check(updated, "network.check", rank=40)


def _arguments(node: cst.CSTNode) -> str | None:
    """The `args` of `models.__dict__[args.arch]`."""
    if not isinstance(node, cst.Subscript) or not isinstance(node.value, cst.Attribute):
        return None
    index = getattr(node.slice[0].slice, "value", None)
    if node.value.attr.value != "__dict__" or not isinstance(index, cst.Attribute):
        return None
    args = index.value if index.attr.value == "arch" else None
    return args.value if isinstance(args, cst.Name) else None
