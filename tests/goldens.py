"""What each series does to the scripts, as a diff for review: `make golden` writes it anew.

Of a series that goes on from another one, the diff is between the scripts of the two.
"""

import difflib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))
BASE = {"fast": "standard", "vit": "fast"}


def golden(series: str) -> Path:
    return REPO / f"tests/golden/{series}.diff"


def reviewed(diff: bytes) -> bytes:
    """A diff without the build's ID, and without copies of the modules in `patches/support/`."""
    scripts = diff.partition(b"--- /dev/null\n")[0]
    return re.sub(rb"build [0-9a-f]{12}: edit", b"build ID: edit", scripts)


def on_top(series: str) -> bytes:
    """The diff from the scripts of the series below."""
    from rendering import results_in

    lines = []
    for name, result in results_in(series).items():
        before = results_in(BASE[series])[name].after.decode().splitlines(keepends=True)
        after = result.after.decode().splitlines(keepends=True)
        lines += difflib.unified_diff(before, after, f"{BASE[series]}/{name}", f"{series}/{name}")
    return "".join(lines).encode()


if __name__ == "__main__":
    from patches import SERIES

    for series in SERIES:
        if series in BASE:
            golden(series).write_bytes(on_top(series))
            continue
        with tempfile.TemporaryDirectory() as out:
            build = ["--series", series, "--out", f"{out}/build"]
            for command in ("apply", "diff"):
                run = [sys.executable, "-m", "patcher", command, *build]
                done = subprocess.run(run, cwd=REPO, stdout=subprocess.PIPE)
                if done.returncode:
                    sys.exit(done.stdout.decode())
            golden(series).write_bytes(reviewed(done.stdout))
