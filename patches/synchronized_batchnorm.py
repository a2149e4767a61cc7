import libcst as cst

from patcher import Patch, syntax


class SynchronizedBatchNorm(Patch):
    """Normalize over the images of all ranks with --sync-bn; upstream does over those of a rank.

    With few images on each, as for a large model, their mean and spread say little.
    """

    sites = {"distributed.py": {"main": 1, "main_worker": 1}}
    needles = (b"DistributedDataParallel(", b"parse_args")
    origin = "https://docs.pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html"
    changes = [
        (
            "def f(o):\n    m = nn.parallel.DistributedDataParallel(m, device_ids=[0])\n",
            "def f(o):\n    m = nn.parallel.DistributedDataParallel("
            "batchnorm.synchronized(m, o), device_ids=[0])\n",
        ),
        (
            "def main():\n    o = p.parse_args()\n",
            "def main():\n    o = p.parse_args()\n    batchnorm.check(o)\n",
        ),
    ]
    leaves = ["def f(o):\n    m = nn.DataParallel(m)\n", "DistributedDataParallel()\n"]

    def done(self, node: cst.CSTNode) -> bool:
        calls = ("batchnorm.check", "batchnorm.synchronized")
        return any(syntax.is_call(node, name) for name in calls)

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef):
        return self.insert_check(updated, "batchnorm.check", rank=45, options=True)

    def leave_Call(self, original: cst.Call, updated: cst.Call):
        wraps = syntax.is_call_of(updated, "DistributedDataParallel") and updated.args
        if not wraps or self.is_done_in(updated):
            return updated
        model, *others = updated.args
        new = syntax.wrapped(f"{self.support('batchnorm')}.synchronized", model.value)
        args = [cst.Arg(model.value, comma=syntax.COMMA), cst.Arg(cst.Name(self.args))]
        new = new.with_changes(args=args)
        return updated.with_changes(args=[model.with_changes(value=new), *others])
