import libcst as cst

from patcher import Patch, syntax


class PrintedWarnings(Patch):
    """Print a warning as a line of rank 0; under `-W error`, --seed ends the run.

    Upstream uses Python's warnings, on every rank, to say that --seed costs speed. Those are for
    faults in the script, and `python -W error` turns each of them into an error.
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

    def leave_Call(self, original: cst.Call, updated: cst.Call):
        if not syntax.is_call(updated, "warnings.warn") or len(updated.args) != 1:
            return updated
        return updated.with_changes(func=cst.parse_expression(f"{self.support('terminal')}.warn"))
