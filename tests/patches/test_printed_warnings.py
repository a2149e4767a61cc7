"""What a user should know is a line of its own: under `-W error` it would end the run."""

import contextlib
import io
import warnings

from builds import parse

STARTS = "{}: warning: --seed asks cuDNN for deterministic kernels only, and "


def serves(distributed, dataparallel, monkeypatch):
    for module in (distributed, dataparallel):
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()) as err:
            warnings.simplefilter("error")
            try:
                parse(module, monkeypatch, "--seed", "5")
            except UserWarning as warning:
                raise AssertionError("this ends the run") from warning
        (line,) = err.getvalue().splitlines()
        assert line.startswith(STARTS.format(f"{module.__name__}.py"))
