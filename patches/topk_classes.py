import libcst as cst

from patcher import Patch, syntax


class TopKClasses(Patch):
    """Ask for no more of the largest outputs than there are classes: top-5 of three classes is a hit, not a crash."""

    sites = {"distributed.py": {"accuracy": 1}, "dataparallel.py": {"accuracy": 1}}
    needles = (b".topk(",)
    origin = "https://github.com/facebookresearch/SlowFast/issues/316"
    changes = [
        (
            "_, p = output.topk(maxk, 1, True, True)\n",
            "_, p = output.topk(min(maxk, output.size(1)), 1, True, True)\n",
        ),
        ("p = out.topk( max(ks), -1 )[1]\n", "p = out.topk( min(max(ks), out.size(-1)), -1 )[1]\n"),
    ]
    leaves = [
        "pred = torch.topk(output, k, 1)\n",
        "pred = output.topk(5, dim=1)\n",
        "pred = output.topk(maxk)\n",
        "pred = model(x).topk(maxk, 1)\n",
    ]

    def done(self, node: cst.CSTNode) -> bool:
        return _is_topk(node) and _is_min(node.args[0].value)

    def leave_Call(self, original: cst.Call, updated: cst.Call) -> cst.Call:
        if not _is_topk(updated) or _is_min(updated.args[0].value):
            return updated
        k, dimension = updated.args[:2]
        scores, most, axis = (
            self.module.code_for_node(n) for n in (updated.func.value, k.value, dimension.value)
        )
        clipped = k.with_changes(value=cst.parse_expression(f"min({most}, {scores}.size({axis}))"))
        return updated.with_changes(args=[clipped, *updated.args[1:]])


def _is_topk(node: cst.CSTNode) -> bool:
    """`name.topk(k, dimension, ...)`, the dimension a literal."""
    if (
        not syntax.is_method_call(node, "topk")
        or not isinstance(node.func.value, cst.Name)
        or len(node.args) < 2
    ):
        return False
    return (
        all(arg.keyword is None for arg in node.args[:2])
        and syntax.integer(node.args[1].value) is not None
    )


def _is_min(node: cst.CSTNode) -> bool:
    return syntax.is_call(node, "min")
