import libcst as cst

from patcher import Patch, syntax


class SameJob(Patch):
    """Compare options, data and versions of all ranks before training; ranks that differ hang.

    Each rank works these out for itself. If hosts differ in the number of processes, the learning
    rate or the data, the job hangs, or trains what nobody has asked for. Here it ends in one line.
    """

    sites = {"distributed.py": {"main": 1}}
    needles = (b"parse_args",)
    origin = "https://github.com/pytorch/pytorch/issues/76069"
    needs = ("any_launcher", "any_device")
    changes = [
        (
            "def main():\n    o = p.parse_args()\n",
            "def main():\n    o = p.parse_args()\n    job.meet(o)\n",
        )
    ]
    leaves = [
        "def main():\n    go(p.parse_args())\n",
        "def main():\n    o, _ = p.parse_known_args()\n",
    ]

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "job.meet")

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef):
        return self.insert_check(updated, "job.meet", rank=80)
