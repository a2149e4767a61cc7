import libcst as cst

from patcher import Patch, syntax


class ArchChoices(Patch):
    """Let --arch offer models only, without the functions that torchvision has since put beside them.

    With today's torchvision it offers `get_model`, `get_weight` and `list_models` as architectures.
    """

    sites = {"distributed.py": {"<module>": 1}, "dataparallel.py": {"<module>": 1}}
    needles = (b"__dict__", b"list_models")
    origin = "https://github.com/intel/neural-compressor/issues/111"
    changes = [
        (
            "names = sorted(n for n in models.__dict__ if n.islower() and callable(models.__dict__[n]))\n",
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
        return (
            syntax.is_method_call(node, "list_models")
            and syntax.argument(node, "module") is not None
        )

    def leave_Call(self, original: cst.Call, updated: cst.Call) -> cst.Call:
        if not syntax.is_name(updated.func, "sorted") or len(updated.args) != 1:
            return updated
        names = updated.args[0].value
        loop = names.for_in if isinstance(names, (cst.GeneratorExp, cst.ListComp)) else None
        if loop is None or not loop.ifs or not _is_namespace(loop.iter):
            return updated
        package = self.module.code_for_node(loop.iter.value)
        return cst.parse_expression(f"{package}.list_models(module={package})")


def _is_namespace(node: cst.CSTNode) -> bool:
    """`package.__dict__`."""
    return (
        isinstance(node, cst.Attribute)
        and node.attr.value == "__dict__"
        and isinstance(node.value, cst.Name)
    )
