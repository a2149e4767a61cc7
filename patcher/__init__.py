"""Keep reference training scripts running: pristine upstream, small codemods, proof.

`Patch` is the base class that every file in `patches/` derives from.  It is
imported on first use, because it needs LibCST and a run that finds nothing to
do should not pay for that.
"""

__version__ = "0.1.0"
__all__ = ["Patch"]


def __getattr__(name: str):
    if name == "Patch":
        from patcher.patch import Patch

        return Patch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
