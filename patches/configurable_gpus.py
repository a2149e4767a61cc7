import re

import libcst as cst

from patcher import Patch, flag, places, syntax
from patcher.tree.names import MODULE
from patches.support.gpu_list import gpu_ids


class ConfigurableGpus(Patch):
    """Choose the GPUs with --gpus, or when patching; upstream has a list in its code.

    The default of `--gpus` is every visible GPU. The option `gpus=0,1` writes that list into the
    script instead, as the guide does by hand. With `optional` there may be no GPU, and the code
    stays in `support/`; without it the code is written into the script, which then stands alone.
    """

    sites = {"dataparallel.py": {"main": 1}}
    needles = (b"gpu", b"device", b"parse_args")
    origin = "https://github.com/tczhangzhi/pytorch-distributed"
    changes = [
        (
            "def main():\n    a = p.parse_args()\n    gpus = [0, 1]\n",
            "def main():\n    a = p.parse_args()\n"
            "    gpus = select_gpus(a.gpus, p, torch.cuda.device_count())\n",
        ),
        ("device_ids = [0, 1]  # all\n", "device_ids = [4, 5, 6]  # all\n", {"gpus": "4-6"}),
    ]
    leaves = ["def main(gpus=[0, 1]):\n    gpus = [args.gpu]\n"]

    def __init__(self, gpus: str | list[int] | None = None, optional: bool = False):
        spec = gpus if gpus is None or isinstance(gpus, str) else ",".join(map(str, gpus))
        self.gpus = None if spec is None else gpu_ids(spec)
        self.optional = flag(optional)
        self.parsed: dict[str, tuple[str, str]] = {}  # by function, its arguments and parser
        super().__init__(gpus=self.gpus, optional=self.optional)

    def done(self, node: cst.CSTNode) -> bool:
        if not isinstance(node, cst.Assign) or not _names_gpus(node):
            return False
        if self.gpus is not None:
            return _ids(node.value) == self.gpus
        args = self.names()[:1]
        names = (n.value for n in syntax.descendants(node.value) if isinstance(n, cst.Name))
        return any(name in ("select_gpus", *args) for name in names)

    def names(self) -> tuple[str, ...]:
        """What the function at hand calls its arguments and their parser, if it knows any."""
        return self.parsed.get(self.function, self.parsed.get(MODULE, ()))

    def visit_Assign(self, node: cst.Assign) -> None:
        call, target = places.parse_args_call(node.value), node.targets[0].target
        parser = call.func.value if call and isinstance(call.func, cst.Attribute) else None
        if isinstance(parser, cst.Name) and isinstance(target, cst.Name):
            self.parsed[self.function] = target.value, parser.value

    def leave_Assign(self, original: cst.Assign, updated: cst.Assign):
        if not _names_gpus(updated) or _ids(updated.value) in (None, self.gpus):
            return updated
        if self.gpus is not None:
            return updated.with_changes(value=cst.parse_expression(repr(self.gpus)))
        if not self.names():
            return updated
        args, parser = self.names()
        given = f"{args}.gpus, {parser}, {self.module_name('torch')}.cuda.device_count()"
        if self.optional:
            self.add_options(self.support("gpu_list"))
            code = f"gpu_list.select_gpus({given}, optional=True)"
        else:
            code = f"{self.inline('gpu_list', 'select_gpus')}({given})"
        return updated.with_changes(value=cst.parse_expression(code))


def _names_gpus(line: cst.Assign) -> bool:
    """Whether a line assigns to one name, and that says GPUs or devices."""
    target = line.targets[0].target if len(line.targets) == 1 else None
    named = r"gpus|gpu_ids|devices|device_ids"
    return isinstance(target, cst.Name) and re.fullmatch(named, target.value) is not None


def _ids(node: cst.BaseExpression) -> list[int] | None:
    """The ids of a literal list; None for anything else."""
    if not isinstance(node, cst.List) or not node.elements:
        return None
    ids = [syntax.integer(element.value) for element in node.elements]
    found = [number for number in ids if number is not None]
    return found if len(found) == len(ids) else None
