import libcst as cst

from patcher import Patch, syntax


class PrintedWarnings(Patch):
    """Print what a user should know as a line of rank 0, not as a Python warning: `-W error` would end the run.

    Upstream warns on every rank that --seed costs speed.  Nothing in the script is at fault then,
    and who looks for what is, with `python -W error`, could not pass --seed.
    """

    sites = {"distributed.py": {"main": 1}, "dataparallel.py": {"main": 1}}
    needles = (b"warnings.warn(", b"terminal.warn(")
    origin = "https://docs.python.org/3/howto/logging.html#when-to-use-logging"
    changes = [
        (
            "def f():\n    warnings.warn('slow '\n                  'but sure')\n",
            "def f():\n    terminal.warn('slow '\n                  'but sure')\n",
        )
    ]
    leaves = [
        "def f():\n    warnings.warn('old', DeprecationWarning)\n    log.warn('x')\n",
        "def f():\n    warnings.simplefilter('error')\n",
    ]

    def done(self, node: cst.CSTNode) -> bool:
        return syntax.is_call(node, "terminal.warn")

    def leave_Call(self, original: cst.Call, updated: cst.Call) -> cst.Call:
        if not syntax.is_call(updated, "warnings.warn") or len(updated.args) != 1:
            return updated
        return updated.with_changes(func=cst.parse_expression(f"{self.support('terminal')}.warn"))
