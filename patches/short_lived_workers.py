import libcst as cst

from patcher import Patch, places, syntax


class ShortLivedWorkers(Patch):
    """End the workers of a validation with it; those of training need the memory meanwhile.

    With two sets of workers that stay, each epoch has the memory of both.
    """

    sites = {"distributed.py": {"main_worker": 1}, "dataparallel.py": {"main_worker": 1}}
    needles = (b"DataLoader(",)
    origin = "https://pytorch.org/docs/stable/data.html#multi-process-data-loading"
    needs = ("loader_workers",)
    changes = [
        (
            "def f(o):\n"
            "    d = DataLoader(x, num_workers=o.workers, persistent_workers=o.workers > 0)\n"
            "    e = DataLoader(y, num_workers=o.workers, persistent_workers=o.workers > 0)\n",
            "def f(o):\n"
            "    d = DataLoader(x, num_workers=o.workers, persistent_workers=o.workers > 0)\n"
            "    e = DataLoader(y, num_workers=o.workers)\n",
        )
    ]
    leaves = ["def f(o):\n    d = DataLoader(x, persistent_workers=True)\n"]

    def __init__(self):
        super().__init__()
        self.training: cst.Call | None = None  # the training loader of the function at hand

    def done(self, node: cst.CSTNode) -> bool:
        if not syntax.is_call_of(node, "DataLoader") or not isinstance(node, cst.Call):
            return False
        number = syntax.argument(node, "num_workers")
        obeys = number and isinstance(number.value, cst.Attribute)
        return bool(obeys) and not syntax.argument(node, "persistent_workers")

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        if "." not in self.function:  # a nested function makes no loader
            self.training = places.training_loader(node)

    def leave_Call(self, original: cst.Call, updated: cst.Call):
        stays = syntax.argument(updated, "persistent_workers")
        if not syntax.is_call_of(updated, "DataLoader") or stays is None:
            return updated
        if self.training in (None, original):
            return updated
        args = [arg for arg in updated.args if arg is not stays]
        if stays is updated.args[-1]:
            args[-1] = args[-1].with_changes(
                comma=stays.comma, whitespace_after_arg=stays.whitespace_after_arg
            )
        return updated.with_changes(args=args)
