import libcst as cst

from patcher import Patch, syntax


class ValSampler(Patch):
    """Validate each image exactly once; upstream pads and reshuffles.

    It gives each process as many images: 70 on 4 processes are 72. So the accuracy depends on the
    number of processes and on the epoch. A rank takes its slice of the indices here.
    """

    sites = {"distributed.py": {"main_worker": 2}}
    needles = (b"DistributedSampler", b"set_epoch", b"rank_slice")
    origin = "https://github.com/pytorch/pytorch/issues/25162"
    changes = [
        (
            "def f():\n    s = DistributedSampler(valset, shuffle=False)  # all\n",
            "def f():\n    s = loading.rank_slice(valset)  # all\n",
        ),
        (
            "def f():\n    a = DistributedSampler(x)\n    b = data.DistributedSampler(y)\n",
            "def f():\n    a = DistributedSampler(x)\n    b = loading.rank_slice(y)\n",
        ),
    ]
    leaves = [
        "train_sampler = torch.utils.data.distributed.DistributedSampler(train_dataset)\n",
        "train_sampler.set_epoch(epoch)\n",
        "val_sampler = SequentialSampler(val_dataset)\nval_sampler.set_epoch(epoch)\n",
    ]

    def __init__(self):
        self.slices: set[str] = set()  # what the script calls the slices of this pass
        self.training: dict[str, cst.Assign] = {}  # by function, its first sampler: for training
        super().__init__()

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "loading.rank_slice")

    def leave_Assign(self, original: cst.Assign, updated: cst.Assign):
        images, target = _sampled(updated.value), updated.targets[0].target
        if images is None:
            return updated
        first = self.training.setdefault(self.function, original) is original
        if "val" not in images.value and (first or "train" in images.value):
            return updated
        if isinstance(target, cst.Name):
            self.slices.add(target.value)
        own = syntax.wrapped(f"{self.support('loading')}.rank_slice", images)
        return updated.with_changes(value=own)

    def leave_SimpleStatementLine(self, original, updated: cst.SimpleStatementLine):
        call = syntax.expression(updated)
        if call is None or not syntax.is_method_call(call, "set_epoch"):
            return updated
        sampler = syntax.receiver(call)
        own = isinstance(sampler, cst.Name) and sampler.value in self.slices
        return cst.RemovalSentinel.REMOVE if own else updated


def _sampled(node: cst.BaseExpression) -> cst.Name | None:
    """The data set that a `DistributedSampler` is made for, whatever its module is called."""
    if not isinstance(node, cst.Call) or not syntax.is_call_of(node, "DistributedSampler"):
        return None
    first = node.args[0].value if node.args else None
    return first if isinstance(first, cst.Name) else None
