import libcst as cst

from patcher import Patch, syntax


class LoaderSignals(Patch):
    """Let loading processes survive the signals that stop a job; its last step needs them.

    A launcher and a terminal signal all processes of a group, and upstream dies with its loaders.
    """

    sites = {"distributed.py": {"main_worker": 2}, "dataparallel.py": {"main_worker": 2}}
    needles = (b"DataLoader(",)
    origin = "https://github.com/pytorch/pytorch/issues/68258"
    changes = [
        (
            "d = DataLoader(images, batch_size=8)\n",
            "d = DataLoader(images, batch_size=8, worker_init_fn=loading.outlive_signals)\n",
        )
    ]
    leaves = ["d = DataLoader(images, worker_init_fn=f)\n", "d = Loader(images)\n"]

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_dotted(node, "loading.outlive_signals")

    def leave_Call(self, original: cst.Call, updated: cst.Call):
        if not syntax.is_call_of(updated, "DataLoader") or not updated.args:
            return updated
        if syntax.argument(updated, "worker_init_fn"):
            return updated
        outlive = cst.parse_expression(f"{self.support('loading')}.outlive_signals")
        return syntax.with_keyword(updated, "worker_init_fn", outlive)
