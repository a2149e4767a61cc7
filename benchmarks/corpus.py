"""Files to rewrite: real code, of Python and of what is installed, with a function of ours."""

from __future__ import annotations

import ast
import sys
import sysconfig
import warnings
from pathlib import Path

LINES = range(300, 481)
NEEDLES = (b".view", b".reshape", b"local_rank", b"local-rank")  # no file may have one by itself

BEFORE = '''\


def accuracy(output, target, topk=(1,)):
    """Percentage of rows whose target is among the k largest outputs."""
    _, pred = output.topk(max(topk), 1, True, True)
    pred = pred.t()
    correct = pred.eq(target.view(1, -1).expand_as(pred))
    res = []
    for k in topk:
        correct_k = correct[:k].view(-1).float().sum(0, keepdim=True)
        res.append(correct_k.mul_(100.0 / target.size(0)))
    return res
'''
AFTER = BEFORE.replace("[:k].view(-1)", "[:k].reshape(-1)")
# One file in ten has what people write: comments in it, other spaces.
PLAIN = "correct_k = correct[:k].view(-1).float().sum(0, keepdim=True)"
WRITTEN = """# was: correct[:k].view(-1).sum()
        correct_k = (correct[:k]  # of the first
                     .view( -1 ).float().sum( 0, keepdim=True ))"""


def make(folder: Path, expected: Path, files: int, matching: int) -> None:
    """Write files, `matching` of them with a site, and into `expected` what they should become."""
    sources = _sources()
    for number in range(files):
        source = sources[number % len(sources)]
        name = f"d{number // 100:02}/f{number:04}.py"
        before = after = source
        count = (number + 1) * matching // files
        if count > number * matching // files:
            old, new = BEFORE, AFTER
            if count % 10 == 0:
                old = BEFORE.replace(PLAIN, WRITTEN)
                new = old.replace(".view( -1 )", ".reshape( -1 )")
            before, after = source + old.encode(), source + new.encode()
            if count % 20 == 0:
                before, after = before.replace(b"\n", b"\r\n"), after.replace(b"\n", b"\r\n")
        for path, content in ((folder / name, before), (expected / name, after)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def _sources() -> list[bytes]:
    """Files of a moderate length that parse, in the order of their paths."""
    found = []
    for key in ("stdlib", "purelib"):
        for path in sorted(Path(sysconfig.get_paths()[key]).rglob("*.py")):
            if "lib2to3/tests" in path.as_posix():
                continue
            if key == "stdlib" and "site-packages" in path.parts:
                continue
            source = path.read_bytes()
            if b"\r" in source or not source.endswith(b"\n") or not source.isascii():
                continue
            if source.count(b"\n") not in LINES or any(needle in source for needle in NEEDLES):
                continue
            found += [source] if _parses(source) else []
            if len(found) == 500:
                return found
    return found


def _parses(source: bytes) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source)
        return True
    except (SyntaxError, ValueError):
        return False


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
