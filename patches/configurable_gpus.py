"""The GPU list of dataparallel.py can be chosen."""

import re

import libcst as cst

from patcher import Patch, syntax
from patches.added.gpu_ids import gpu_ids


class ConfigurableGpus(Patch):
    """Choose the GPUs with --gpus at run time, or write another list at patch time.

    Upstream hard-codes `[0, 1, 2, 3]`, which fails on a smaller machine and wastes a
    larger one.  Without options the script gets `--gpus` (ids and ranges, checked
    against what is visible; every visible GPU by default); with `gpus=0,1` that list
    is written into the script, as the vendor's guide does by hand.  Either way the
    first id is the home device: upstream reads `gpus[0]` wherever it needs one.
    """

    sites = {"dataparallel.py": {"main": 1}}
    needles = (b"gpu", b"device", b"parse_args")
    origin = "https://github.com/tczhangzhi/pytorch-distributed/blob/cd12856/dataparallel.py#L118"
    changes = [
        (
            """\
p = ArgumentParser()
p.add_argument('-x')
def main():
    a = p.parse_args()
    gpus = [0, 1]
""",
            """\
p = ArgumentParser()
p.add_argument('-x')
...
def main():
    a = p.parse_args()
    gpus = select_gpus(a.gpus, p)
""",
        ),
        ("device_ids = [0, 1]  # all\n", "device_ids = [4, 5, 6]  # all\n", {"gpus": "4-6"}),
    ]
    leaves = [
        "def main(gpus=[0, 1]):\n    args = parser.parse_args()\n",
        "def main():\n    gpus = [args.gpu]\n    sizes = [0, 1]\n",
    ]

    def __init__(self, gpus: "str | list[int] | None" = None):
        self.gpus = None if gpus is None else gpu_ids(gpus if isinstance(gpus, str) else ",".join(map(str, gpus)))
        self.namespace = None  # what the script calls its parsed arguments
        super().__init__(gpus=self.gpus)

    def done(self, node: cst.CSTNode) -> bool:
        if not _names_gpus(node):
            return False
        return _ids(node.value) is None if self.gpus is None else _ids(node.value) == self.gpus

    def visit_Assign(self, node: cst.Assign) -> None:
        target = node.targets[0].target
        if syntax.is_method_call(node.value, "parse_args") and isinstance(target, cst.Name):
            self.namespace = target.value

    def leave_Assign(self, original: cst.Assign, updated: cst.Assign) -> cst.Assign:
        if not _names_gpus(updated) or _ids(updated.value) in (None, self.gpus):
            return updated
        if self.gpus is not None:
            return updated.with_changes(value=cst.parse_expression(repr(self.gpus)))
        parser = self.parser_name()
        if parser is None or self.namespace is None:
            return updated
        self.insert_option("--gpus", "gpus.py", parser)
        self.insert_function("gpu_ids", "gpu_ids.py")
        self.insert_function("select_gpus", "gpus.py")
        return updated.with_changes(value=cst.parse_expression(f"select_gpus({self.namespace}.gpus, {parser})"))


def _names_gpus(node: cst.CSTNode) -> bool:
    """An assignment to one name that says GPUs or devices."""
    if not isinstance(node, cst.Assign) or len(node.targets) != 1:
        return False
    target = node.targets[0].target
    return isinstance(target, cst.Name) and re.fullmatch(r"gpus|gpu_ids|devices|device_ids", target.value) is not None


def _ids(node: cst.BaseExpression) -> "list[int] | None":
    """The ids of a literal list; None for anything else."""
    if not isinstance(node, cst.List) or not node.elements:
        return None
    ids = [syntax.integer(element.value) for element in node.elements]
    return None if None in ids else ids
