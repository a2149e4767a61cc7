import libcst as cst

from patcher import Patch, syntax


class SeededRun(Patch):
    """Keep kernels deterministic under --seed, and let ranks draw differently; upstream does not.

    Upstream seeds every rank alike, so all draw the same crops. It sets cuDNN to choose kernels by
    their speed after it has asked for deterministic ones. The generator of a rank seeds its loading
    workers.
    """

    sites = {"distributed.py": {"main": 2, "main_worker": 1}, "dataparallel.py": {"main_worker": 1}}
    needles = (b"seed", b"cudnn.benchmark")
    origin = "https://github.com/facebookresearch/detr/issues/297"
    changes = [
        (
            "def f(o):\n    cudnn.benchmark = True\n",
            "def f(o):\n    cudnn.benchmark = o.seed is None\n",
        ),
        (
            "torch.manual_seed(o.seed)\ns = data.DistributedSampler(d, seed=1)\n",
            "torch.manual_seed(seeds.of_rank(o.seed))\ns = data.DistributedSampler(d, seed=1)\n",
        ),
    ]
    leaves = [
        "cudnn.benchmark = False\ncudnn.deterministic = True\n",
        "torch.manual_seed(o.seed)\nrandom.seed(o.seed)\n",
        "s = data.DistributedSampler(d)\nrandom.seed(5)\n",
    ]

    def done(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Assign) and _sets_benchmark(node):
            return isinstance(node.value, cst.Comparison)
        return syntax.is_call(node, "seeds.of_rank")

    def leave_Assign(self, original: cst.Assign, updated: cst.Assign):
        if not _sets_benchmark(updated) or not syntax.is_name(updated.value, "True"):
            return updated
        return updated.with_changes(value=cst.parse_expression(f"{self.args}.seed is None"))

    def leave_Call(self, original: cst.Call, updated: cst.Call):
        seeds = any(syntax.is_method_call(updated, name) for name in ("seed", "manual_seed"))
        given = updated.args[0].value if seeds and len(updated.args) == 1 else None
        if not isinstance(given, cst.Attribute) or given.attr.value != "seed":
            return updated
        nodes = syntax.descendants(self.module)
        if not any(syntax.is_method_call(node, "DistributedSampler") for node in nodes):
            return updated  # one process
        own = syntax.wrapped(f"{self.support('seeds')}.of_rank", given)
        return updated.with_changes(args=[updated.args[0].with_changes(value=own)])


def _sets_benchmark(line: cst.Assign) -> bool:
    target = line.targets[0].target
    return isinstance(target, cst.Attribute) and target.attr.value == "benchmark"
