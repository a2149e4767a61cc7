import libcst as cst

from patcher import Patch, syntax


class ClippedGradients(Patch):
    """Clip the gradient with --clip-grad, as recipes of transformers do; upstream cannot.

    One batch with a large gradient may undo what many have taught. All ranks have the same gradient
    when it is clipped, and with --accum it is that of the whole batch.
    """

    sites = {"distributed.py": {"train": 1}, "dataparallel.py": {"train": 1}}
    needles = (b"def train(",)
    origin = "https://github.com/pytorch/vision/tree/main/references/classification"
    changes = [
        (
            "def train(net, sgd, o):\n    precision.step(sgd)\n",
            "def train(net, sgd, o):\n    clipping.step(sgd, o)\n",
        )
    ]
    leaves = [
        "def train(net, sgd, o):\n    sgd.step()\n",
        "def validate(net, sgd, o):\n    precision.step(sgd)\n",
    ]
    needs = ("mixed_precision",)  # gradients of float16 have a scale

    def done(self, node: cst.CSTNode) -> bool:
        return self.function == "train" and syntax.is_call(node, "clipping.step")

    def leave_Call(self, original: cst.Call, updated: cst.Call):
        if self.function != "train" or not syntax.is_call(updated, "precision.step"):
            return updated
        optimizer = self.module.code_for_node(updated.args[0].value)
        return cst.parse_expression(
            f"{self.add_options('clipping')}.step({optimizer}, {self.args})"
        )
