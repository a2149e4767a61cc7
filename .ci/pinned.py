"""Print which torch and torchvision run here; fail unless setup.cfg pins them for this extra.

.venv/bin/python .ci/pinned.py train
.venv-oldest/bin/python .ci/pinned.py oldest
"""

import configparser
import importlib
import sys
from pathlib import Path

config = configparser.ConfigParser()
config.read(Path(__file__).parent.parent / "setup.cfg")
pins = config["options.extras_require"][sys.argv[1]].split()
wrong = 0
for name, _, pinned in (pin.partition("==") for pin in pins):
    found = importlib.import_module(name).__version__
    print(f"{name} {found}; pinned for {sys.argv[1]}: {pinned}")
    wrong |= found.partition("+")[0] != pinned  # +cpu and +cu130 are builds of one version
sys.exit(wrong)
