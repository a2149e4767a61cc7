import libcst as cst

from patcher import Patch, syntax


class EndedProcessGroup(Patch):
    """Leave the process group on every way out, and end when the launcher is gone.

    Upstream never destroys it: torch warns, and NCCL may hang.  When torchrun is killed, its ranks train
    on as orphans.
    """

    sites = {"distributed.py": {"main": 1}}
    needles = (b"main_worker",)
    origin = "https://github.com/pytorch/examples/issues/1387"
    changes = [
        (
            "def main():\n    main_worker(rank, args)\n",
            "def main():\n    launch.watch_launcher()\n    try:\n        main_worker(rank, args)\n"
            "    finally:\n        launch.leave_process_group()\n",
        ),
    ]
    leaves = ["def main():\n    mp.spawn(main_worker, nprocs=2)\n", "def main_worker(rank):\n    pass\n"]

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "launch.leave_process_group")

    def leave_IndentedBlock(self, original: cst.IndentedBlock, updated: cst.IndentedBlock) -> cst.IndentedBlock:
        lines = [line for line in updated.body if _works(line)]
        if not lines or self._guarded():
            return updated
        self.support("launch")
        code = "launch.watch_launcher()\ntry:\n    pass\nfinally:\n    launch.leave_process_group()\n"
        first, guard = syntax.statements(code, self.module.default_newline)
        first = first.with_changes(leading_lines=lines[0].leading_lines)
        body = guard.body.with_changes(body=[lines[0].with_changes(leading_lines=())])
        at = updated.body.index(lines[0])
        new = [first, guard.with_changes(body=body)]
        return updated.with_changes(body=[*updated.body[:at], *new, *updated.body[at + 1 :]])

    def _guarded(self) -> bool:
        return any(map(self.done, self._nodes("leave_process_group")))


def _works(line: cst.CSTNode) -> bool:
    call = syntax.expression(line)
    return call is not None and syntax.is_call(call, "main_worker")
