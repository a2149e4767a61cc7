import libcst as cst

from patcher import Patch, syntax


class ValSampler(Patch):
    """Validate every image once: upstream's sampler repeats some, to give each process as many, and others each epoch.

    70 images on 4 processes are 72, so the accuracy depends on the number of processes and, as it
    shuffles too, on the epoch.  A rank takes its slice of the indices instead, which needs no epoch.
    """

    sites = {"distributed.py": {"main_worker": 2}}
    needles = (b"DistributedSampler", b"set_epoch", b"rank_slice")
    origin = "https://github.com/pytorch/pytorch/issues/25162"
    changes = [
        (
            "def f():\n    val_sampler = torch.utils.data.distributed.DistributedSampler(val_dataset)  # all\n",
            "def f():\n    val_sampler = loading.rank_slice(val_dataset)  # all\n",
        ),
        (
            "def f():\n    s = DistributedSampler(valset, shuffle=False)\n",
            "def f():\n    s = loading.rank_slice(valset)\n",
        ),
        (
            "def f():\n    a = DistributedSampler(x)\n    b = DistributedSampler(y)\n",
            "def f():\n    a = DistributedSampler(x)\n    b = loading.rank_slice(y)\n",
        ),
    ]
    leaves = [
        "train_sampler = torch.utils.data.distributed.DistributedSampler(train_dataset)\n",
        "train_sampler.set_epoch(epoch)\n",
        "val_sampler = SequentialSampler(val_dataset)\nval_sampler.set_epoch(epoch)\n",
    ]

    def __init__(self):
        self.slices = set()  # what the script calls the slices of this pass
        self.training = {}  # by function, the first sampler, which is that of the training data
        super().__init__()

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "loading.rank_slice")

    def leave_Assign(self, original: cst.Assign, updated: cst.Assign) -> cst.Assign:
        images = _sampled(updated.value)
        if images is None:
            return updated
        first = self.training.setdefault(self.function, original) is original
        if "val" not in images.value and (first or "train" in images.value):
            return updated
        self.slices.add(getattr(updated.targets[0].target, "value", None))
        return updated.with_changes(
            value=syntax.wrapped(f"{self.support('loading')}.rank_slice", images)
        )

    def leave_SimpleStatementLine(
        self, original: cst.SimpleStatementLine, updated: cst.SimpleStatementLine
    ):
        call = syntax.expression(updated)
        if call is None or not syntax.is_method_call(call, "set_epoch"):
            return updated
        own = isinstance(call.func.value, cst.Name) and call.func.value.value in self.slices
        return cst.RemovalSentinel.REMOVE if own else updated


def _sampled(node: cst.BaseExpression) -> "cst.Name | None":
    """The data set that a `DistributedSampler` is made for, whatever its module is called."""
    name = getattr(node.func, "attr", node.func) if isinstance(node, cst.Call) else None
    first = node.args[0].value if syntax.is_name(name, "DistributedSampler") and node.args else None
    return first if isinstance(first, cst.Name) else None
