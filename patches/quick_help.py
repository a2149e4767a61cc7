import libcst as cst

from patcher import Patch, syntax


class QuickHelp(Patch):
    """Answer --help without torch's compiler, which torchvision imports for its detection models.

    That import takes as long as the one of torch, and --help imports torchvision for the names of its models.
    A process that was asked for help ends once it has printed it, so nothing misses the compiler.
    """

    sites = {"distributed.py": {"<module>": 1}, "dataparallel.py": {"<module>": 1}}
    needles = (b"torchvision", b"torch._dynamo")
    origin = "https://github.com/pytorch/vision/blob/main/torchvision/ops/roi_align.py"
    changes = [
        (
            "import sys\nimport types\nimport torch\nimport torchvision.datasets as datasets\nimport torchvision\n",
            "import sys\nimport types\nimport torch\n\n...\n\n"
            "import torchvision.datasets as datasets\nimport torchvision\n",
        ),
        (
            "import sys\nimport types\n\nfrom torchvision import models\n",
            "import sys\nimport types\n\n...\n\nfrom torchvision import models\n",
        ),
    ]
    leaves = [
        "import torch\nfrom torch import nn\n",
        "import torchvision_tools\n",
        "def f():\n    import torchvision\n",
        "print('torchvision')\n",
    ]

    def done(self, node: cst.CSTNode) -> bool:
        return isinstance(node, cst.If) and any(
            syntax.string(n) == "torch._dynamo.utils" for n in syntax.descendants(node)
        )

    def leave_SimpleStatementLine(self, original: cst.SimpleStatementLine, updated: cst.SimpleStatementLine):
        # Where the compiler is imported first: all other imports of torchvision come too late.
        if self.function != "<module>" or self.already_done or self.hits or not _imports_torchvision(updated):
            return updated
        blank = cst.EmptyLine(indent=False)
        above = updated.leading_lines or [blank]
        shortcut = self.added_statement("quick_help.py")
        shortcut = shortcut.with_changes(leading_lines=[blank, *shortcut.leading_lines])
        return cst.FlattenSentinel([shortcut, updated.with_changes(leading_lines=above)])


def _imports_torchvision(line: cst.SimpleStatementLine) -> bool:
    small = line.body[0]
    modules = [alias.name for alias in small.names] if isinstance(small, cst.Import) else []
    modules += [small.module] if isinstance(small, cst.ImportFrom) and not small.relative else []
    return any(_root(module) == "torchvision" for module in modules if module)


def _root(module: cst.BaseExpression) -> str:
    """The package of a dotted name."""
    while isinstance(module, cst.Attribute):
        module = module.value
    return module.value
