"""Keep reference training scripts running: pristine upstream, small codemods, proof.

Here is what a file in `patches/` imports.  It is loaded on first use, because it needs LibCST and
a run that finds nothing to do should not pay for that.
"""

import importlib

__version__ = "0.1.0"
__all__ = ["Patch", "Place", "flag", "places", "syntax"]

TYPE_CHECKING = False  # `typing` costs such a run more than its own work
if TYPE_CHECKING:
    from patcher.core.patch import Patch, flag
    from patcher.tree import places, syntax
    from patcher.tree.places import Place

_WHERE = {
    "Patch": "core.patch",
    "flag": "core.patch",
    "Place": "tree.places",
    "places": "tree",
    "syntax": "tree",
}


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    room = importlib.import_module(f"{__name__}.{_WHERE[name]}")
    return getattr(room, name, None) or importlib.import_module(f"{room.__name__}.{name}")
