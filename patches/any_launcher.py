import libcst as cst

from patcher import Patch, syntax


class AnyLauncher(Patch):
    """Start under torchrun, srun, mpirun or plain python; upstream knows one old launcher.

    Launchers name a process in different ways, and one that is not understood would start N
    trainings. Old ones pass `--local_rank`, newer ones `--local-rank`: both are taken, and the
    environment wins. A script without that option is one process: a launcher of more is refused.
    """

    sites = {"distributed.py": {"<module>": 1, "main": 1}, "dataparallel.py": {"main": 1}}
    needles = (b"local_rank", b"local-rank", b"parse_args")
    origin = "https://github.com/huggingface/pytorch-image-models/issues/1336"
    changes = [
        (
            "p.add_argument('--local_rank', type=int)\ndef main():\n    a = p.parse_args()\n",
            "p.add_argument('--local_rank', '--local-rank', type=int)\n"
            "def main():\n    a = p.parse_args()\n    launch.join(a)\n",
        ),
        (
            "def main():\n    a = p.parse_args()\n",
            "def main():\n    a = p.parse_args()\n    launch.check_single(a)\n",
        ),
    ]
    leaves = [
        "def main():\n    a = p.parse_known_args()\n",
        "p.add_argument('--rank', dest='local_rank')\n",
        "p.add_argument('--local_rank', dest='gpu')\n",
    ]

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "launch.join") or syntax.is_call(node, "launch.check_single")

    def leave_Call(self, original: cst.Call, updated: cst.Call):
        old, new = "--local_rank", "--local-rank"
        dest = syntax.argument(updated, "dest")
        if dest is not None and syntax.string(dest.value) != "local_rank":
            return updated  # `launch.join` goes by that name
        if not syntax.adds_option(updated, old) or syntax.adds_option(updated, new):
            return updated
        first, *rest = updated.args
        second = first.with_changes(value=cst.SimpleString(f"'{new}'"))
        return updated.with_changes(args=[first, second, *rest])

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef):
        ranked = any(syntax.adds_option(node, "--local_rank") for node in self._nodes("local_rank"))
        return self.insert_check(
            updated, "launch.join" if ranked else "launch.check_single", rank=0
        )
