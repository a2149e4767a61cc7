import libcst as cst

from patcher import Patch, syntax


class RankZero(Patch):
    """Print and save on rank 0 of the whole job only; upstream saves on one rank of each node.

    On a shared disk several processes then write one file at once. Upstream prints on every rank.
    """

    sites = {"distributed.py": {"main_worker": 3, "validate": 1, "ProgressMeter.display": 1}}
    needles = (b"print(", b".local_rank", b".gpu", b"terminal.", b"ranks.")
    origin = "https://github.com/NVIDIA/apex/issues/886"
    changes = [
        (
            "def f(a):\n    print('x')\n    if a.local_rank == 0:\n        save()\n",
            "def f(a):\n    terminal.print_once('x')\n"
            "    if ranks.is_rank_zero():\n        save()\n",
        )
    ]
    leaves = ["def f(a):\n    if a.local_rank == 1:\n        pprint('x')\n        log.print('x')\n"]

    def done(self, node: cst.CSTNode) -> bool:
        return any(syntax.is_call(node, f) for f in ("ranks.is_rank_zero", "terminal.print_once"))

    def leave_Call(self, original: cst.Call, updated: cst.Call):
        if not syntax.is_call(updated, "print"):
            return updated
        once = cst.parse_expression(f"{self.support('terminal')}.print_once")
        return updated.with_changes(func=once)

    def leave_Comparison(self, original: cst.Comparison, updated: cst.Comparison):
        left, test = updated.left, updated.comparisons[0]
        rank = isinstance(left, cst.Attribute) and left.attr.value in ("local_rank", "gpu")
        is_zero = isinstance(test.operator, cst.Equal) and syntax.integer(test.comparator) == 0
        if not rank or not is_zero:
            return updated
        return cst.parse_expression(f"{self.support('ranks')}.is_rank_zero()")
