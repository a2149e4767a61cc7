import libcst as cst

from patcher import Patch, Place, places, syntax


class FiniteLoss(Patch):
    """Stop at the first loss that is not a finite number, before anything of it is saved over a good checkpoint.

    Upstream trains on, ends with status 0 and leaves a checkpoint full of NaN.
    """

    sites = {"distributed.py": {"train": 1}, "dataparallel.py": {"train": 1}}
    needles = (b"def train(",)
    origin = "https://github.com/pytorch/examples/issues/1194"
    changes = [
        (
            "def train(loader, net, sgd, n):\n    bar = AverageMeter('Loss')\n    s = 'Epoch {}'.format(n)\n"
            "    net.train()\n    for i, x in enumerate(loader):\n        sgd.step()\n",
            "def train(loader, net, sgd, n):\n    bar = AverageMeter('Loss')\n    s = 'Epoch {}'.format(n)\n"
            "    net.train()\n    finite = meters.FiniteCheck(bar, net, sgd, n)\n"
            "    for i, x in enumerate(loader):\n        sgd.step()\n\n        finite.check(i)\n"
            "    finite.check_all()\n",
        )
    ]
    leaves = ["def validate(loader):\n    for i, x in enumerate(loader):\n        f(x)\n"]

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "meters.FiniteCheck")

    def leave_FunctionDef(
        self, original: cst.FunctionDef, updated: cst.FunctionDef
    ) -> cst.FunctionDef:
        if self.function != "train" or self.is_done_in(updated):
            return updated
        names = places.training_names(updated)
        missing = [
            name for name in ("losses", "model", "optimizer", "epoch", "step") if name not in names
        ]
        if missing:
            self.refuse(f"train does not show its {', '.join(missing)}", original)
        watched = ", ".join(names[name] for name in ("losses", "model", "optimizer", "epoch"))
        made = f"{self.bring('finite')} = {self.support('meters')}.FiniteCheck({watched})\n"
        updated = self.insert(updated, Place.BEFORE_LOOP, made, rank=30)
        updated = self.insert(
            updated, Place.LAST_IN_LOOP, f"\nfinite.check({names['step']})\n", rank=10
        )
        return self.insert(updated, Place.AFTER_LOOP, "finite.check_all()\n", rank=10)
