import libcst as cst

from patcher import Patch, syntax


class RankZero(Patch):
    """Let rank 0 of the whole job alone print and save.

    Upstream prints on every rank, and saves on local rank 0, which every node has: on a shared disk
    several processes write one file at once.
    """

    sites = {"distributed.py": {"main_worker": 3, "validate": 1, "ProgressMeter.display": 1}}
    needles = (b"print(", b".local_rank", b".gpu", b"terminal.", b"ranks.")
    origin = "https://github.com/NVIDIA/apex/issues/886"
    changes = [
        (
            "def f(args):\n    print('x')\n    if args.local_rank == 0:\n        save()\n",
            "def f(args):\n    terminal.print_once('x')\n    if ranks.is_rank_zero():\n        save()\n",
        )
    ]
    leaves = [
        "def f(args):\n    if args.local_rank == 1:\n        pprint('x')\n        log.print('x')\n"
    ]

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "ranks.is_rank_zero") or syntax.is_call(
            node, "terminal.print_once"
        )

    def leave_Call(self, original: cst.Call, updated: cst.Call) -> cst.Call:
        if not syntax.is_call(updated, "print"):
            return updated
        return updated.with_changes(
            func=cst.parse_expression(f"{self.support('terminal')}.print_once")
        )

    def leave_Comparison(
        self, original: cst.Comparison, updated: cst.Comparison
    ) -> cst.BaseExpression:
        rank = isinstance(updated.left, cst.Attribute) and updated.left.attr.value in (
            "local_rank",
            "gpu",
        )
        test = updated.comparisons[0]
        if (
            not rank
            or not isinstance(test.operator, cst.Equal)
            or syntax.integer(test.comparator) != 0
        ):
            return updated
        return cst.parse_expression(f"{self.support('ranks')}.is_rank_zero()")
