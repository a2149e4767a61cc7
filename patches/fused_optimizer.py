import libcst as cst

from patcher import Patch, Place, places, syntax


class FusedOptimizer(Patch):
    """Update all weights in one kernel; upstream starts several for each group of them.

    Asked, not assumed: what torch has no such kernel for is updated as upstream does. The kernel
    reads weights and momentum as they lie in memory, so those of a checkpoint, in whatever layout,
    are laid out alike.
    """

    sites = {"distributed.py": {"main_worker": 2}, "dataparallel.py": {"main_worker": 2}}
    needles = places.MAKES_OPTIMIZER
    origin = "https://docs.pytorch.org/docs/stable/generated/torch.optim.SGD.html"
    changes = [
        (
            "def f(o):\n    sgd = torch.optim.SGD(net.parameters(), lr=1)\n",
            "def f(o):\n    sgd = torch.optim.SGD(net.parameters(), lr=1, "
            "fused=kernels.fused_or_none(net))\n    kernels.align(sgd)\n",
        )
    ]
    leaves = [
        "def f(o):\n    sgd = torch.optim.SGD(net.parameters(), lr=1, foreach=True)\n",
        "def f(o):\n    sgd = torch.optim.Rprop(net.parameters())\n",
    ]

    def done(self, node: cst.CSTNode) -> bool:
        calls = ("fused_or_none", "align")  # `optimizer_choice` replaces the first one
        return any(syntax.is_call(node, f"kernels.{name}") for name in calls)

    def leave_SimpleStatementLine(self, original, updated: cst.SimpleStatementLine):
        (model, _), value = places.optimized(updated) or ("", ""), syntax.expression(updated)
        if not model or not syntax.is_method_call(value, "SGD"):
            return updated
        if any(syntax.argument(value, name) for name in ("fused", "foreach", "differentiable")):
            return updated
        fused = f"{self.support('kernels')}.fused_or_none({model})"
        call = syntax.with_keyword(value, "fused", cst.parse_expression(fused))
        return updated.with_deep_changes(updated.body[0], value=call)

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef):
        made = places.optimizer_in(updated)
        if made is None or not self.is_done_in(updated) or self.is_done_in(original):
            return updated
        align = f"{self.support('kernels')}.align({made[1]})\n"
        return self.insert(updated, Place.OPTIMIZER, align, rank=25)
