"""The generated parts of the pages: `make readme` writes them, and a test compares.

Below a comment `<!-- FILE -->`, the block of Python is that file, whole. Between the comments
`<!-- patches -->` and `<!-- /patches -->` is the table that `patcher list` prints. Both READMEs also
have the size of each series, and what `patcher apply` prints.
"""

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
PAGES = [*sorted(REPO.glob("*.md")), *sorted(REPO.glob("docs/*.md"))]
TABLE = re.compile(r"(?<=<!-- patches -->\n).*?(?=<!-- /patches -->)", re.DOTALL)
FILE = re.compile(r"(<!-- (\S+\.py) -->\n```python\n).*?(?=```)", re.DOTALL)
SIZE = re.compile(r"(?<=^\| `)(\w+)(`.*? \| )\d+(?= \|)", re.MULTILINE)
APPLIED = re.compile(r"^    build: wrote .*?(?=\n\n)", re.MULTILINE | re.DOTALL)


def renewed(page: Path) -> str:
    """The text of the page with its generated parts as they should be."""
    text = FILE.sub(lambda found: found[1] + (REPO / found[2]).read_text(), page.read_text())
    text = TABLE.sub(lambda _: _output("list", "--format", "markdown"), text)
    if not page.name.startswith("README"):
        return text
    sizes = {name: str(len(series)) for name, series in _series().items()}
    text = SIZE.sub(lambda found: found[1] + found[2] + sizes[found[1]], text)
    return APPLIED.sub(lambda _: "    " + _applied().strip().replace("\n", "\n    "), text)


def _series() -> dict:
    sys.path.insert(0, str(REPO))
    import patches

    return patches.SERIES


@functools.cache
def _applied() -> str:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("upstream", "patches"):
            shutil.copytree(REPO / name, Path(folder) / name)
        return _output("apply", cwd=folder)


def _output(*argv: str, cwd=REPO) -> str:
    """What a command of patcher prints."""
    command = [sys.executable, "-m", "patcher", *argv]
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    done = subprocess.run(command, cwd=cwd, env=environment, stdout=subprocess.PIPE, check=True)
    return done.stdout.decode()


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(renewed(page))
