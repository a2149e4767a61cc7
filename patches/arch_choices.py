import libcst as cst

from patcher import Patch, syntax


class ArchChoices(Patch):
    """Let --arch offer models only; torchvision has other functions beside them today.

    Upstream offers `get_model`, `get_weight` and `list_models` as architectures.
    """

    sites = {"distributed.py": {"<module>": 1}, "dataparallel.py": {"<module>": 1}}
    needles = (b"__dict__", b"list_models")
    origin = "https://github.com/intel/neural-compressor/issues/111"
    changes = [
        (
            "names = sorted(n for n in models.__dict__ if n.islower() and n[0] != '_')\n",
            "names = models.list_models(module=models)\n",
        ),
        (
            "tv = sorted([n for n in zoo.__dict__ if n.islower()])\n",
            "tv = zoo.list_models(module=zoo)\n",
        ),
    ]
    leaves = [
        "names = sorted(n for n in models.__dict__)\n",
        "names = sorted(n for n in models if n.islower())\n",
        "names = sorted(models.__dict__)\n",
        "names = [n for n in models.__dict__ if n.islower()]\n",
    ]

    def done(self, node: cst.CSTNode) -> bool:
        if not syntax.is_method_call(node, "list_models"):
            return False
        return syntax.argument(node, "module") is not None

    def leave_Call(self, original: cst.Call, updated: cst.Call):
        if not syntax.is_name(updated.func, "sorted") or len(updated.args) != 1:
            return updated
        names = updated.args[0].value
        loop = names.for_in if isinstance(names, (cst.GeneratorExp, cst.ListComp)) else None
        package = _package(loop.iter) if loop and loop.ifs else None
        if package is None:
            return updated
        return cst.parse_expression(f"{package}.list_models(module={package})")


def _package(node: cst.BaseExpression) -> str | None:
    """The `package` of `package.__dict__`."""
    if not isinstance(node, cst.Attribute) or node.attr.value != "__dict__":
        return None
    return node.value.value if isinstance(node.value, cst.Name) else None
