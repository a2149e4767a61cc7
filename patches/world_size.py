import re

import libcst as cst

from patcher import Patch, syntax


class WorldSize(Patch):
    """Count the processes of the job, not the GPUs of this machine, when numbers are averaged over processes.

    With two processes on a machine of eight GPUs upstream prints a quarter of each number, and
    on two full nodes twice of it.  WORLD_SIZE is what every launcher sets; without one there is one process.
    """

    sites = {"distributed.py": {"main": 1}}
    needles = (b"device_count", b"WORLD_SIZE")
    origin = "https://github.com/karpathy/nanoGPT/issues/284"
    changes = [
        (
            "import os\ndef main():\n    args.nprocs = torch.cuda.device_count()  # all\n",
            "import os\ndef main():\n    args.nprocs = int(os.environ.get('WORLD_SIZE', 1))  # all\n",
        ),
        (
            "a.world_size = cuda.device_count()\n",
            "import os\na.world_size = int(os.environ.get('WORLD_SIZE', 1))\n",
        ),
    ]
    leaves = [
        "visible = torch.cuda.device_count()\n",
        "args.gpus = torch.cuda.device_count()\n",
        "args.nprocs = torch.cuda.device_count() * nodes\n",
        "args.nprocs = dist.get_world_size()\n",
    ]

    def done(self, node: cst.CSTNode) -> bool:
        return _counts_processes(node) and any(syntax.string(n) == "WORLD_SIZE" for n in syntax.descendants(node))

    def leave_Assign(self, original: cst.Assign, updated: cst.Assign) -> cst.Assign:
        if not _counts_processes(updated) or not syntax.is_method_call(updated.value, "device_count"):
            return updated
        processes = f"int({self.module_name('os')}.environ.get('WORLD_SIZE', 1))"
        return updated.with_changes(value=cst.parse_expression(processes))


def _counts_processes(node: cst.CSTNode) -> bool:
    """An assignment to an attribute that is named for the number of processes."""
    target = node.targets[0].target if isinstance(node, cst.Assign) and len(node.targets) == 1 else None
    return isinstance(target, cst.Attribute) and bool(re.fullmatch(r"n_?procs|world_size", target.attr.value))
