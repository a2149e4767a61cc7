import libcst as cst

from patcher import Patch, Place, places, syntax


class FiniteLoss(Patch):
    """Stop when the loss is not finite; upstream trains on, and saves NaN as its checkpoint.

    It ends with status 0. Here the run ends before a good checkpoint is replaced.
    """

    sites = {"distributed.py": {"train": 1}, "dataparallel.py": {"train": 1}}
    needles = (b"def train(",)
    origin = "https://github.com/pytorch/examples/issues/1194"
    changes = [
        (
            "def train(d, net, sgd, n):\n    m = AverageMeter('Loss')\n"
            "    s = 'Epoch {}'.format(n)\n    net.train()\n"
            "    for i, x in enumerate(d):\n        sgd.step()\n",
            "def train(d, net, sgd, n):\n    m = AverageMeter('Loss')\n"
            "    s = 'Epoch {}'.format(n)\n    net.train()\n"
            "    finite = meters.FiniteCheck(m, net, sgd, n)\n"
            "    for i, x in enumerate(d):\n        sgd.step()\n\n        finite.check(i)\n"
            "    finite.check_all()\n",
        )
    ]
    leaves = ["def validate(loader):\n    for i, x in enumerate(loader):\n        f(x)\n"]

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "meters.FiniteCheck")

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef):
        if self.function != "train" or self.is_done_in(updated):
            return updated
        names = places.training_names(updated)
        needed = ("losses", "model", "optimizer", "epoch", "step")
        missing = [name for name in needed if name not in names]
        if missing:
            self.refuse(f"train does not show its {', '.join(missing)}", original)
        *watched, step = (names[name] for name in needed)
        check = f"{self.support('meters')}.FiniteCheck({', '.join(watched)})"
        made = f"{self.bring('finite')} = {check}\n"
        updated = self.insert(updated, Place.BEFORE_LOOP, made, rank=30)
        updated = self.insert(updated, Place.LAST_IN_LOOP, f"\nfinite.check({step})\n", rank=10)
        return self.insert(updated, Place.AFTER_LOOP, "finite.check_all()\n", rank=10)
