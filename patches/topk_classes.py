import libcst as cst

from patcher import Patch, syntax


class TopKClasses(Patch):
    """Ask for no more top outputs than there are classes; upstream crashes at top-5 of three."""

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
        if not isinstance(node, cst.Call) or _ranked_by(node) is None:
            return False
        return _is_min(node.args[0].value)

    def leave_Call(self, original: cst.Call, updated: cst.Call):
        scores = _ranked_by(updated)
        if scores is None or _is_min(updated.args[0].value):
            return updated
        k, axis, *rest = updated.args
        most, dimension = (self.module.code_for_node(arg.value) for arg in (k, axis))
        fewest = cst.parse_expression(f"min({most}, {scores}.size({dimension}))")
        return updated.with_changes(args=[k.with_changes(value=fewest), axis, *rest])


def _ranked_by(call: cst.Call) -> str | None:
    """The `name` of `name.topk(k, dimension, ...)`, the dimension a literal."""
    if not syntax.is_method_call(call, "topk") or len(call.args) < 2:
        return None
    scores, (k, axis, *_) = syntax.receiver(call), call.args
    positional = k.keyword is None and axis.keyword is None
    literal = positional and syntax.integer(axis.value) is not None
    return scores.value if literal and isinstance(scores, cst.Name) else None


def _is_min(node: cst.CSTNode) -> bool:
    return syntax.is_call(node, "min")
