import libcst as cst

from patcher import Patch, syntax


class ModelForData(Patch):
    """Give the model as many outputs as the data has classes, and refuse what cannot be trained before anything starts.

    Upstream always makes 1000 outputs: of more classes the loss fails in the middle, of fewer most are dead.
    `pretrained=` has been removed from torchvision's models step by step; `weights=` takes its place.
    """

    sites = {"distributed.py": {"main_worker": 2}, "dataparallel.py": {"main_worker": 2}}
    needles = (b"__dict__[", b"build_model")
    origin = "https://github.com/pytorch/examples/issues/544"
    changes = [
        (
            "import torch\nimport torch.nn as nn\nimport torchvision.models as models\np.add_argument('-x')\n"
            "def main():\n    a = p.parse_args()\n    model = models.__dict__[a.arch](pretrained=True)\n",
            "import os\nimport signal\nimport socket\nimport sys\nimport time\nimport torch\nimport torch.nn as nn\n"
            "import torchvision.models as models\nimport warnings\np.add_argument('-x')\n...\n"
            "def main():\n    a = p.parse_args()\n    check_model(a)\n"
            "    model = build_model(a.arch, True, a.num_classes)\n",
        ),
        (
            "p.add_argument('-x')\ndef work(o):\n    m = zoo.__dict__[o.arch]()\n"
            "def main():\n    o = p.parse_args()\n    work(o)\n",
            "...\np.add_argument('-x')\n...\ndef work(o):\n    m = build_model(o.arch, False, o.num_classes)\n"
            "def main():\n    o = p.parse_args()\n    check_model(o)\n    work(o)\n",
        ),
    ]
    leaves = [
        "def main():\n    a = p.parse_args()\n    model = models.__dict__[a.arch](num_classes=10)\n",
        "def main():\n    a = p.parse_args()\n    model = models.__dict__[name]()\n",
        "def main(a):\n    model = models.__dict__[a.arch]()\n",
    ]

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "build_model")

    def leave_Call(self, original: cst.Call, updated: cst.Call) -> cst.Call:
        arch, pretrained = _arch(updated.func), syntax.argument(updated, "pretrained")
        if arch is None or [*updated.args] != ([pretrained] if pretrained else []):
            return updated
        own = self.has_function("build_model", "class_folders", "fail", "fetch_weights")
        if own or self.has_option("--num-classes"):
            return updated
        if not self.insert_check("check_model", "model.py"):
            return updated
        self.insert_option("--num-classes", "model.py", self.parser_name())
        self.insert_function("build_model", "model.py")
        args, wanted = arch.value.value, pretrained.value if pretrained else cst.Name("False")
        code = f"build_model({args}.{arch.attr.value}, {self.module.code_for_node(wanted)}, {args}.num_classes)"
        return cst.parse_expression(code)


def _arch(node: cst.CSTNode) -> "cst.Attribute | None":
    """The `args.arch` of `models.__dict__[args.arch]`."""
    if not isinstance(node, cst.Subscript) or not isinstance(node.value, cst.Attribute):
        return None
    index = node.slice[0].slice
    named = isinstance(index, cst.Index) and isinstance(index.value, cst.Attribute)
    fits = node.value.attr.value == "__dict__" and named and isinstance(index.value.value, cst.Name)
    return index.value if fits else None
