import libcst as cst

from patcher import Patch, syntax


class EndedProcessGroup(Patch):
    """Leave the process group on every way out, and end when the launcher is gone.

    Upstream never destroys it, which torch warns about and NCCL may hang on; and when torchrun is
    killed its ranks train on as orphans.
    """

    sites = {"distributed.py": {"main": 1}}
    needles = (b"main_worker",)
    origin = "https://github.com/pytorch/examples/issues/1387"
    changes = [
        (
            "import os, signal, sys, threading, time\nimport torch.distributed as dist\n"
            "def main():\n    main_worker(rank, args)\n",
            "import os, signal, sys, threading, time\nimport torch.distributed as dist\n"
            "...\ndef main():\n    run_to_the_end(main_worker, rank, args)\n",
        ),
    ]
    leaves = ["def main():\n    mp.spawn(main_worker, nprocs=2)\n", "def main_worker(rank):\n    pass\n"]

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "run_to_the_end")

    def leave_Call(self, original: cst.Call, updated: cst.Call) -> cst.Call:
        if not syntax.is_call(updated, "main_worker"):
            return updated
        self.insert_function("run_to_the_end", "process_group.py")
        worker = cst.Arg(updated.func, comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
        return updated.with_changes(func=cst.Name("run_to_the_end"), args=[worker, *updated.args])
