import libcst as cst

from patcher import Patch, places


class ArgumentChecks(Patch):
    """Refuse numbers that make no sense in one line, before anything has started.

    Of `-b 0`, `-j -1` or `--print-freq 0` upstream learns from a traceback of torch in the middle of its start, or
    of its first epoch; with `--epochs -1` it does nothing, and that successfully.
    """

    sites = {"distributed.py": {"main": 1}, "dataparallel.py": {"main": 1}}
    needles = (b"parse_args",)
    origin = "https://docs.python.org/3/library/argparse.html#exiting-methods"
    changes = [
        (
            "import os, signal, socket, sys, time\ndef main():\n    o = p.parse_args()\n    go(o)\n",
            "import os, signal, socket, sys, time\n...\n"
            "def main():\n    o = p.parse_args()\n    check_arguments(o)\n    go(o)\n",
        ),
    ]
    leaves = ["def main():\n    go(p.parse_args())\n", "def main():\n    o, _ = p.parse_known_args()\n"]

    def done(self, node: cst.CSTNode) -> bool:
        return places.called(node) == "check_arguments"

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef) -> cst.FunctionDef:
        if any(map(self.done, updated.body.body)) or places.parsing([updated]) is None or self.has_function("fail"):
            return updated
        if not self.insert_check("check_arguments", "arguments.py"):
            return updated
        return updated.with_changes()  # the call comes into it with the other checks
