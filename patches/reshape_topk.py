from typing import TypeGuard

import libcst as cst

from patcher import Patch, syntax


class ReshapeTopK(Patch):
    """Flatten the top-k hits with reshape: the slice is not contiguous since torch 1.7.

    `view` then raises if k and the batch are both above one. The other `view` of `accuracy()`, that
    of the targets, is right and stays.
    """

    sites = {"distributed.py": {"accuracy": 1}, "dataparallel.py": {"accuracy": 1}}
    needles = (b".view(", b".reshape(")
    origin = "https://github.com/pytorch/examples/issues/836"
    changes = [
        ("n = hit[:k].view(-1).sum()\n", "n = hit[:k].reshape(-1).sum()\n"),
        ("n = hit[: self.k, :].view( -1 )  # all\n", "n = hit[: self.k, :].reshape( -1 )  # all\n"),
    ]
    leaves = [
        "hit = pred.eq(target.view(1, -1).expand_as(pred))\n",
        "n = hit[:k].view(-1, k)\n",
        "n = hit[:k].contiguous().view(-1)\n",
        "n = hit[k].view(-1)\n",
        "n = hit.view(-1)\n",
    ]

    def done(self, node: cst.CSTNode) -> bool:
        return _flattens_slice(node, "reshape")

    def leave_Call(self, original: cst.Call, updated: cst.Call):
        if not _flattens_slice(updated, "view"):
            return updated
        return updated.with_changes(func=updated.func.with_changes(attr=cst.Name("reshape")))


def _flattens_slice(node: cst.CSTNode, method: str) -> TypeGuard[cst.Call]:
    """`anything[:k].method(-1)`, the slice perhaps followed by others."""
    if not syntax.is_method_call(node, method) or len(node.args) != 1:
        return False
    hits = syntax.receiver(node)
    first = hits.slice[0].slice if isinstance(hits, cst.Subscript) else None
    takes_head = isinstance(first, cst.Slice) and first.lower is None and first.upper is not None
    return takes_head and syntax.integer(node.args[0].value) == -1
