import re

import libcst as cst

from patcher import Patch, flag, places, syntax
from patcher.tree.names import MODULE
from patches.support.gpu_list import gpu_ids


class ConfigurableGpus(Patch):
    """Choose the GPUs with --gpus at run time, or write another list at patch time.

    The default of `--gpus` is every visible GPU.  The option `gpus=0,1` writes that list into the
    script, as the guide does by hand.  With `optional` it is no error that there is no GPU, and the
    code for it stays in `support/`; else the script gets it, and stands alone as the guide's does.
    """

    sites = {"dataparallel.py": {"main": 1}}
    needles = (b"gpu", b"device", b"parse_args")
    origin = "https://github.com/tczhangzhi/pytorch-distributed"
    changes = [
        (
            "def main():\n    a = p.parse_args()\n    gpus = [0, 1]\n",
            "def main():\n    a = p.parse_args()\n    gpus = select_gpus(a.gpus, p, torch.cuda.device_count())\n",
        ),
        ("device_ids = [0, 1]  # all\n", "device_ids = [4, 5, 6]  # all\n", {"gpus": "4-6"}),
    ]
    leaves = ["def main(gpus=[0, 1]):\n    gpus = [args.gpu]\n"]

    def __init__(self, gpus: "str | list[int] | None" = None, optional: bool = False):
        self.gpus = (
            None
            if gpus is None
            else gpu_ids(gpus if isinstance(gpus, str) else ",".join(map(str, gpus)))
        )
        self.parsed = {}  # by function, what the script calls its parsed arguments and its parser
        self.optional = flag(optional)
        super().__init__(gpus=self.gpus, optional=self.optional)

    def done(self, node: cst.CSTNode) -> bool:
        if not _names_gpus(node):
            return False
        if self.gpus is not None:
            return _ids(node.value) == self.gpus
        names = (n for n in syntax.descendants(node.value) if isinstance(n, cst.Name))
        return any(n.value in ("select_gpus", self.names()[0]) for n in names)

    def names(self) -> tuple:
        return self.parsed.get(self.function, self.parsed.get(MODULE, (None, None)))

    def visit_Assign(self, node: cst.Assign) -> None:
        target = node.targets[0].target
        parsed = places.parse_args_call(node.value)
        if (
            parsed is not None
            and isinstance(parsed.func.value, cst.Name)
            and isinstance(target, cst.Name)
        ):
            self.parsed[self.function] = target.value, parsed.func.value.value

    def leave_Assign(self, original: cst.Assign, updated: cst.Assign) -> cst.Assign:
        if not _names_gpus(updated) or _ids(updated.value) in (None, self.gpus):
            return updated
        if self.gpus is not None:
            return updated.with_changes(value=cst.parse_expression(repr(self.gpus)))
        args, parser = self.names()
        if args is None:
            return updated
        given = f"{args}.gpus, {parser}, {self.module_name('torch')}.cuda.device_count()"
        if self.optional:
            self.add_options(self.support("gpu_list"))
            return updated.with_changes(
                value=cst.parse_expression(f"gpu_list.select_gpus({given}, optional=True)")
            )
        select = self.inline("gpu_list", "select_gpus")
        return updated.with_changes(value=cst.parse_expression(f"{select}({given})"))


def _names_gpus(node: cst.CSTNode) -> bool:
    """An assignment to one name that says GPUs or devices."""
    target = (
        node.targets[0].target if isinstance(node, cst.Assign) and len(node.targets) == 1 else None
    )
    return isinstance(target, cst.Name) and bool(
        re.fullmatch(r"gpus|gpu_ids|devices|device_ids", target.value)
    )


def _ids(node: cst.BaseExpression) -> "list[int] | None":
    """The ids of a literal list; None for anything else."""
    if not isinstance(node, cst.List) or not node.elements:
        return None
    ids = [syntax.integer(element.value) for element in node.elements]
    return None if None in ids else ids
