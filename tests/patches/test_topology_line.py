"""The first line of a run says what job it is."""

import contextlib
import io

from builds import run_worker


def serves(distributed, dataparallel, monkeypatch):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        run_worker(distributed, monkeypatch, "-b", "24", rank=0, world=3)
    assert "topology: hosts=1 processes=3 per_host=3 " in out.getvalue()
