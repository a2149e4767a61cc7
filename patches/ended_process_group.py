import libcst as cst

from patcher import Patch, syntax


class EndedProcessGroup(Patch):
    """Leave the process group after the work, and end at once after an error, with its traceback.

    Upstream never destroys it: torch warns, and NCCL may hang.  After an error on one rank, to destroy it
    would wait for the others.
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

    def leave_IndentedBlock(
        self, original: cst.IndentedBlock, updated: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        lines = [line for line in updated.body if _works(line)]
        if not lines or self._guarded():
            return updated
        self.support("launch")
        code = "with launch.clean_exit():\n    pass\n"
        (guard,) = syntax.statements(code, self.module.default_newline)
        body = guard.body.with_changes(body=[lines[0].with_changes(leading_lines=())])
        guard = guard.with_changes(body=body, leading_lines=lines[0].leading_lines)
        return updated.with_changes(
            body=[guard if line is lines[0] else line for line in updated.body]
        )

    def _guarded(self) -> bool:
        return any(map(self.done, self._nodes("clean_exit")))


def _works(line: cst.CSTNode) -> bool:
    call = syntax.expression(line)
    return call is not None and syntax.is_call(call, "main_worker")
