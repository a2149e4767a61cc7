"""Only rank 0 of the whole job prints."""

import contextlib
import io


def serves(distributed, dataparallel, monkeypatch):
    said = []
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            distributed.ProgressMeter(1, [], prefix="Test: ").display(0)
        said.append(out.getvalue())
    assert said == ["Test: [0/1]\n", ""]
