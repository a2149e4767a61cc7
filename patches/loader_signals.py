import libcst as cst

from patcher import Patch, syntax


class LoaderSignals(Patch):
    """Let loading processes outlive the signals that end a job: the present step is not done without them.

    A launcher and a terminal signal all processes of a group, and training dies of a loader that died.
    """

    sites = {"distributed.py": {"main_worker": 2}, "dataparallel.py": {"main_worker": 2}}
    needles = (b"DataLoader(",)
    origin = "https://github.com/pytorch/pytorch/issues/68258"
    changes = [
        (
            "import os, signal, threading\nd = DataLoader(images, 8)\n",
            "import os, signal, threading\n...\nd = DataLoader(images, 8, worker_init_fn=outlive_signals)\n",
        ),
    ]
    leaves = ["d = DataLoader(images, worker_init_fn=f)\n", "d = Loader(images)\n"]

    def done(self, node: cst.CSTNode) -> bool:
        return isinstance(node, cst.Arg) and syntax.is_name(node.keyword, "worker_init_fn")

    def leave_Call(self, original: cst.Call, updated: cst.Call) -> cst.Call:
        if not syntax.is_call_of(updated, "DataLoader") or not updated.args:
            return updated
        if syntax.argument(updated, "worker_init_fn") or self.has_function("outlive_signals"):
            return updated
        self.insert_function("outlive_signals", "loader_signals.py")
        return syntax.with_argument(updated, "worker_init_fn", cst.Name("outlive_signals"))
