import libcst as cst

from patcher import Patch, syntax


class MixedImages(Patch):
    """Mix pairs of training images with --mixup and --cutmix, so that a model learns less by heart.

    The loss gets the share of each class in an image; the accuracy of training counts the class
    with the largest one.
    """

    sites = {"distributed.py": {"train": 1}, "dataparallel.py": {"train": 1}}
    needles = (b"accumulation.Parts(",)
    origin = (
        "https://docs.pytorch.org/vision/stable/auto_examples/transforms/plot_cutmix_mixup.html"
    )
    needs = ("accumulated_batches",)  # it writes the line that takes the labels
    changes = [
        (
            "def train(d, net, o):\n    for x, y in d:\n"
            "        parts = accumulation.Parts(net, x, y, o.accum)\n",
            "def train(d, net, o):\n    for x, y in d:\n"
            "        x, targets, y = mixing.mixed(x, y, o)\n"
            "        parts = accumulation.Parts(net, x, targets, o.accum)\n",
        )
    ]
    leaves = [
        "def train(d, net, o):\n    for x, y in d:\n        parts = Parts(net, x, y, o.accum)\n",
        "def test(d, net, o):\n    parts = accumulation.Parts(net, x, y, o.accum)\n",
    ]

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "mixing.mixed")

    def __init__(self):
        super().__init__()
        self.mixes = False  # whether the function at hand mixes already

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        if "." not in self.function:  # not a nested one
            self.mixes = self.is_done_in(node)

    def leave_SimpleStatementLine(self, original, updated: cst.SimpleStatementLine):
        call = syntax.expression(updated)
        if self.function != "train" or self.mixes:
            return updated
        if not syntax.is_call(call, "accumulation.Parts"):
            return updated
        inputs, labels = (self.module.code_for_node(arg.value) for arg in call.args[1:3])
        targets = self.bring("shares" if labels == "targets" else "targets")
        code = f"{inputs}, {targets}, {labels} = {self.add_options('mixing')}.mixed("
        code += f"{inputs}, {labels}, {self.args})\n"
        (line,) = syntax.statements(code, self.module.default_newline)
        line = line.with_changes(leading_lines=updated.leading_lines)
        below = syntax.replaced(updated.with_changes(leading_lines=()), labels, cst.Name(targets))
        return cst.FlattenSentinel([line, below])
