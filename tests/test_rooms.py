"""The rooms of `patcher/`, and which of them may import which: no arrow runs back up."""

import ast
from collections import Counter
from pathlib import Path

HOUSE = Path(__file__).resolve().parent.parent / "patcher"
MAY_IMPORT = {
    "tree": {"tree"},
    "core": {"core", "tree"},
    "build": {"build", "core", "tree"},
    "vendor": {"vendor", "build", "core", "tree"},
    "rewrite": {"rewrite", "core"},
    "verify": {"verify", "build", "core", "tree"},
    "page": {"page", "build", "core"},
    "edge": {"edge", "page", "verify", "rewrite", "vendor", "build", "core", "tree"},
}
MODULES = {
    ".".join(path.relative_to(HOUSE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in HOUSE.rglob("*.py")
}


def room(module: str) -> str:
    """The folder of a module; those of `patcher/` itself are the edge."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in MAY_IMPORT else "edge"


def imports(path: Path) -> dict[str, int]:
    """The modules of the house that a file imports, and where; also inside functions."""
    found = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in MODULES else node.module for name in whole]
        else:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        found |= {name: node.lineno for name in names if name in MODULES and name != "patcher"}
    return found


def test_no_arrow_runs_back_up():
    wrong = [
        f"{path}:{line}: {room(module)} must not import {name}"
        for module, path in MODULES.items()
        for name, line in imports(path).items()
        if room(name) not in MAY_IMPORT[room(module)]
    ]
    assert wrong == []


def test_no_two_modules_import_each_other_on_any_way():
    arrows = {module: imports(path).keys() - {module} for module, path in MODULES.items()}
    while leaves := [module for module, to in arrows.items() if not to & arrows.keys()]:
        for module in leaves:
            del arrows[module]
    assert arrows == {}, "these are on circles, or lead to one"


def test_a_class_name_means_one_thing():
    trees = (ast.parse(path.read_text()) for path in MODULES.values())
    names = (node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    counts = Counter(name for name in names if not name.startswith("_"))
    assert {name for name, count in counts.items() if count > 1} == set()
