import libcst as cst

from patcher import Patch, Place, syntax

LIMIT = """if limit.is_reached(run, {args}):
    run.save_and_exit(save_checkpoint, 'stopped by --max-steps', status=0)
"""


class StepLimit(Patch):
    """End after --max-steps N, saved, and with status 0; upstream can only count epochs.

    To try a job out, or to give it a share of a long training, an epoch of ImageNet is too much.
    """

    sites = {"distributed.py": {"train": 1}, "dataparallel.py": {"train": 1}}
    needles = (b"def train(",)
    origin = "https://lightning.ai/docs/pytorch/stable/common/trainer.html"
    needs = ("saved_steps",)
    changes = [
        (
            "def train(d, run, o):\n    for i, x in enumerate(d):\n        sgd.step()\n",
            "def train(d, run, o):\n    for i, x in enumerate(d):\n"
            "        if limit.is_reached(run, o):\n"
            "            run.save_and_exit(save_checkpoint, 'stopped by --max-steps', status=0)\n"
            "        sgd.step()\n",
        )
    ]
    leaves = ["def validate(d, run, o):\n    for i, x in enumerate(d):\n        f(x)\n"]

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "limit.is_reached")

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef):
        if self.function != "train" or self.is_done_in(updated):
            return updated
        self.add_options("limit")
        code = LIMIT.format(args=self.args)
        return self.insert(updated, Place.FIRST_IN_LOOP, code, rank=5)
