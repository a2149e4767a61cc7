"""What `--help` of the built scripts costs, as whole processes, in CPU time, against importing torch.

    python benchmarks/help.py [--runs 9]

As in `apply.py`, the commands take turns and a ratio is the median of the ratios of a turn.
"""

import argparse
import subprocess
import tempfile
from pathlib import Path

from apply import PYTHON, ROOT, nothing, row


def main() -> None:
    parser = argparse.ArgumentParser(description="Time --help of the built scripts against importing torch.")
    parser.add_argument("--runs", type=int, default=9, help="turns that count (default: 9)")
    runs = parser.parse_args().runs

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        build = [PYTHON, "-m", "patcher", "apply", "--out", folder]
        subprocess.run(build, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        for script in ("distributed.py", "dataparallel.py"):
            shown = subprocess.run([PYTHON, script, "--help"], cwd=folder, check=True, capture_output=True, text=True)
            assert "resnet18" in shown.stdout
            row(
                f"{script}: all options, and the names of all models",
                runs,
                {
                    f"python {script} --help": ([PYTHON, script, "--help"], folder, nothing, nothing),
                    "python -c 'import torch'": ([PYTHON, "-c", "import torch"], folder, nothing, nothing),
                },
            )


if __name__ == "__main__":
    main()
