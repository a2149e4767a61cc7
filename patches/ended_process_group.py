import libcst as cst

from patcher import Patch, syntax


class EndedProcessGroup(Patch):
    """Leave the process group at the end, and end at once after an error; upstream may hang.

    Upstream never leaves it: torch warns, and NCCL may hang. After an error on one rank, to leave
    it would wait for the others, so that rank prints its traceback and ends.
    """

    sites = {"distributed.py": {"main": 1}}
    needles = (b"main_worker",)
    origin = "https://github.com/pytorch/examples/issues/1387"
    changes = [
        (
            "def main():\n    main_worker(rank, args)\n",
            "def main():\n    with launch.clean_exit():\n        main_worker(rank, args)\n",
        )
    ]
    leaves = [
        "def main():\n    mp.spawn(main_worker, nprocs=2)\n",
        "def main_worker(rank):\n    pass\n",
    ]

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "launch.clean_exit")

    def leave_IndentedBlock(self, original: cst.IndentedBlock, updated: cst.IndentedBlock):
        line = next(filter(_works, updated.body), None)
        if line is None or any(map(self.done, self._nodes("clean_exit"))):
            return updated
        above = getattr(line, "leading_lines", ())
        body = cst.IndentedBlock([line.with_changes(leading_lines=())])
        exits = cst.WithItem(cst.parse_expression(f"{self.support('launch')}.clean_exit()"))
        guard = cst.With([exits], body, leading_lines=above)
        return updated.with_changes(body=[guard if one is line else one for one in updated.body])


def _works(line: cst.CSTNode) -> bool:
    return syntax.is_call(syntax.expression(line), "main_worker")
