"""What people look at: the report, one page of HTML, and the curves of runs."""

from importlib.util import find_spec

from patcher.core.problem import UsageError

LIBRARIES = ("jinja2", "matplotlib")  # the extra `report`; no other command imports them


def check_libraries(*names: str) -> None:
    """Raise UsageError unless these are installed."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        message = f"this command needs {' and '.join(missing)}"
        raise UsageError(message, hint=f"Run `pip install {' '.join(LIBRARIES)}`.")
