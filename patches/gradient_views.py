import libcst as cst

from patcher import Patch, syntax


class GradientViews(Patch):
    """Keep gradients where ranks exchange them; upstream holds them twice, and copies in each step.

    DistributedDataParallel has buckets as large as all gradients together. `static_graph=True` is
    left out: it saves a search for unused weights, which only `find_unused_parameters=True` does,
    and where --accum puts off the exchange, torch 2.4.1 and 2.14.1 crash with it.
    """

    sites = {"distributed.py": {"main_worker": 1}}
    needles = (b"DistributedDataParallel(",)
    origin = "https://docs.pytorch.org/docs/stable/notes/ddp.html"
    changes = [
        (
            "net = nn.parallel.DistributedDataParallel(net, device_ids=[0])\n",
            "net = nn.parallel.DistributedDataParallel(net, device_ids=[0], "
            "gradient_as_bucket_view=True)\n",
        )
    ]
    leaves = [
        "net = DistributedDataParallel(net, gradient_as_bucket_view=False)\n",
        "net = DataParallel(net, device_ids=[0])\n",
    ]

    def done(self, node: cst.CSTNode) -> bool:
        return isinstance(node, cst.Call) and bool(syntax.argument(node, "gradient_as_bucket_view"))

    def leave_Call(self, original: cst.Call, updated: cst.Call):
        if not syntax.is_call_of(updated, "DistributedDataParallel") or self.done(updated):
            return updated
        return syntax.with_keyword(updated, "gradient_as_bucket_view", cst.Name("True"))
