"""The generated parts of the pages: `make readme` writes them, and a test compares.

Below a comment `<!-- FILE -->`, the block of Python is that file, whole. Between the comments
`<!-- patches -->` and `<!-- /patches -->` is the table that `patcher list` prints.
"""

import re
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
PAGES = [*sorted(REPO.glob("*.md")), *sorted(REPO.glob("docs/*.md"))]
TABLE = re.compile(r"(?<=<!-- patches -->\n).*?(?=<!-- /patches -->)", re.DOTALL)
FILE = re.compile(r"(<!-- (\S+\.py) -->\n```python\n).*?(?=```)", re.DOTALL)


def renewed(page: Path) -> str:
    """The text of the page with its generated parts as they should be."""
    text = FILE.sub(lambda found: found[1] + (REPO / found[2]).read_text(), page.read_text())
    return TABLE.sub(lambda _: _table(), text)


def _table() -> str:
    command = [sys.executable, "-m", "patcher", "list", "--format", "markdown"]
    return subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(renewed(page))
