import libcst as cst

from patcher import Patch, syntax


class ModelOptions(Patch):
    """Let options say how much a model drops; upstream has no way to say it.

    A vision transformer drops nothing unless told to. googlenet and inception_v3 are made without
    the further heads that only training has: upstream's loss fails on their outputs.
    """

    sites = {"distributed.py": {"main": 1}, "dataparallel.py": {"main": 1}}
    needles = (b"parse_args",)
    origin = "https://docs.pytorch.org/vision/stable/models/inception.html"
    changes = [
        (
            "def main():\n    o = p.parse_args()\n    go(o)\n",
            "def main():\n    o = p.parse_args()\n    model_options.check(o)\n    go(o)\n",
        )
    ]
    leaves = [
        "def main():\n    go(p.parse_args())\n",
        "def main():\n    o, _ = p.parse_known_args()\n",
    ]
    needs = ("model_for_data",)  # it builds the model

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "model_options.check")

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef):
        return self.insert_check(updated, "model_options.check", rank=38, options=True)
