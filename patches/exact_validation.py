import libcst as cst

from patcher import Place, places, syntax
from patches.train_meters import Measuring


class ExactValidation(Measuring):
    """Average over all images of all ranks after validation; upstream takes a mean of means.

    It averages over the ranks in each step, as if all had as many images, and a rank with more
    batches than another waits for ever. Barrier and reductions go.
    """

    loop = "validate"
    sites = {"distributed.py": {"validate": 8}, "dataparallel.py": {"validate": 4}}
    needles = (b"def validate(",)
    origin = "https://github.com/pytorch/vision/issues/4559"
    changes = [
        (
            "def validate(d):\n    p = ProgressMeter(n)\n    for x in d:\n"
            "        m.update(acc[0], n)\n",
            "def validate(d):\n    p = ProgressMeter(n)\n    for x in d:\n"
            "        m.update(meters.measured(acc), n)\n    meters.total(p)\n",
        )
    ]
    leaves = [
        "def train(d):\n    p = ProgressMeter(n)\n    dist.barrier()\n    for x in d:\n        y\n"
    ]

    def done(self, node: cst.CSTNode) -> bool:
        return self.function == "validate" and syntax.is_call(node, "meters.total")

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef):
        if self.function != "validate" or self.is_done_in(updated):
            return updated
        progress = places.training_names(updated).get("progress")
        if progress is None:
            self.refuse("validate has no `progress = ProgressMeter(...)`", original)
        total = f"{self.support('meters')}.total({progress})\n"
        return self.insert(updated, Place.AFTER_LOOP, total, rank=20)
