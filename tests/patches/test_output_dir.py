"""A run writes where --output-dir says, and still finds data that was named relatively."""

import shutil
import tempfile
from pathlib import Path

from builds import data_set, parse


def serves(distributed, dataparallel, monkeypatch):
    here = Path.cwd()
    shutil.copytree(data_set(), "data")
    for module in (distributed, dataparallel):
        folder = Path(tempfile.mkdtemp()) / "new" / "folder"
        args = parse(module, monkeypatch, "--data", "data", "--output-dir", str(folder))
        assert (Path.cwd(), args.data) == (folder, f"{here}/data")
        monkeypatch.chdir(here)
