"""What `patcher apply` costs, as whole processes, in CPU time.

    python benchmarks/apply.py [--runs 15]

It is compared with its floor and with LibCST's own tool.  The commands of a row take turns
(A B C A B C ...), and a ratio is the median of the ratios of a turn.  Every run's result is
checked, so that nobody is fast by doing nothing.
"""

import argparse
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path

from timing import PYTHON, ROOT, compared, environment, spent

APPLY = [PYTHON, "-m", "patcher", "apply", "--series", "guide"]
TOOL = [PYTHON, "-m", "libcst.tool", "codemod", "-x", "patcher.codemod.ReshapeTopK"]
TOOL += ["--hide-progress", "--no-format", "-j", "1"]


def row(title: str, runs: int, folder: Path, contestants: dict[str, tuple]) -> None:
    """Time `contestants`, the first against each other: name -> (command, prepare, check)."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(runs + 1):
        for name, (command, prepare, check) in contestants.items():
            prepare()
            seconds, _ = spent(command, folder)
            check()
            if turn:  # the first turn fills caches
                times[name].append(seconds)
    ours, *others = times
    print(f"\n{title}")
    for name, seconds in times.items():
        print(f"  {statistics.median(seconds) * 1000:7.1f} ms  {name}")
    for name in others:
        print(f"  {compared(times[ours], times[name])}  {name}")


def nothing() -> None:
    pass


def main() -> None:
    parser = argparse.ArgumentParser(description="Time apply against its floor and libcst.tool.")
    parser.add_argument("--runs", type=int, default=15, help="turns that count (default: 15)")
    runs = parser.parse_args().runs

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        build, script = folder / "build", folder / "distributed.py"

        spent(APPLY, folder)
        expected = {path: path.read_bytes() for path in build.rglob("*.*")}

        def intact() -> None:
            assert {path: path.read_bytes() for path in build.rglob("*.*")} == expected

        def clean() -> None:
            shutil.rmtree(build)

        def pristine() -> None:
            shutil.copy(ROOT / "upstream" / "distributed.py", script)

        def reshaped() -> None:
            assert b"correct[:k].reshape(-1)" in script.read_bytes()

        command, env = [PYTHON, "-X", "importtime", *APPLY[1:]], environment()
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=env)
        assert "argparse" in done.stderr
        assert "libcst" not in done.stderr, "a run with nothing to do has imported LibCST"

        title = "nothing to do, all inputs and outputs checked by sha256"
        ours = {"patcher apply --series guide": (APPLY, nothing, intact)}
        floor = {"python -c pass": ([PYTHON, "-c", "pass"], nothing, nothing)}
        row(title, runs, folder, ours | floor)

        title = "cold: both files, the guide series, no build yet"
        ours = {"patcher apply --series guide": (APPLY, clean, intact)}
        command = [PYTHON, "-c", "import libcst"]
        floor = {"python -c 'import libcst'": (command, nothing, nothing)}
        row(title, runs, folder, ours | floor)

        title = "one patch: patcher on both files, libcst.tool on one"
        ours = {"patcher apply --series guide (three patches)": (APPLY, clean, intact)}
        command = [*TOOL, str(script)]
        tool = {"python -m libcst.tool codemod (one patch)": (command, pristine, reshaped)}
        row(title, runs, folder, ours | tool)


if __name__ == "__main__":
    main()
