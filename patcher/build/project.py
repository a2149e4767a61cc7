"""Where the pieces lie: the folder that holds `upstream/` and `patches/`, and how a series is read from it."""

from __future__ import annotations

import hashlib
import importlib
import importlib.machinery
import sys
from collections import namedtuple
from pathlib import Path

from patcher.core.problem import Problem, UsageError

TYPE_CHECKING = False  # `typing` costs a run that has nothing to do more than its own work
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from patcher.core.patch import Patch

HERE = Path(__file__).resolve().parent.parent
ENGINE = (
    "__init__.py",
    "build/build.py",
    *("core/draft.py", "core/engine.py", "core/patch.py", "core/text.py"),
    *("tree/layout.py", "tree/names.py", "tree/places.py", "tree/syntax.py", "tree/unused.py"),
)
"""What decides, beside upstream and patches, which bytes a build has."""


class Request(namedtuple("Request", "series sets", defaults=((),))):
    """What a build is asked to be: a series, and `patch.option=value` texts in the words of the command line."""


class Project:
    """A folder with `upstream/` and `patches/`."""

    def __init__(self, root: Path):
        self.root = root
        self.upstream, self.patches = root / "upstream", root / "patches"
        self.is_installed = root == HERE / "bundle"

    @classmethod
    def find(cls, root: str | None = None) -> Project:
        """The project at `root`; else in the working directory or above; else the one that this package came with."""
        installed = HERE / "bundle"  # in a wheel; in a checkout they are beside the package
        here = Path.cwd()
        candidates = (
            [Path(root).absolute()] if root else [here, *here.parents, installed, HERE.parent]
        )
        for candidate in candidates:
            if (candidate / "upstream" / "lock.json").is_file() and (
                candidate / "patches" / "__init__.py"
            ).is_file():
                return cls(candidate)
        raise UsageError(f"{candidates[0]}: no upstream/lock.json and patches/__init__.py here")

    def inputs(self) -> dict[str, str]:
        """The sha256 of every file that a build depends on, as if its lines ended in LF, by its POSIX path."""
        paths = [path for path in self.upstream.iterdir() if path.suffix in (".py", ".json")]
        paths += self.patches.rglob("*.py")
        # A hidden file is an editor's.
        files = {
            path.relative_to(self.root).as_posix(): path
            for path in paths
            if path.name[0] != "." and path.is_file()
        }
        files |= {f"patcher/{name}": HERE / name for name in ENGINE}
        return {name: hashlib.sha256(_text(files[name])).hexdigest() for name in sorted(files)}

    def support(self) -> dict[str, bytes]:
        """The modules in `patches/support/` by name: the code that built scripts call."""
        paths = (path for path in (self.patches / "support").glob("[!.]*.py") if path.is_file())
        return {path.stem: _text(path) for path in sorted(paths)}

    def all_series(self) -> Mapping[str, Mapping[str, Mapping]]:
        return self._import("patches").SERIES

    def default_series(self) -> str:
        return self._import("patches").DEFAULT

    def series(self, name: str) -> Mapping[str, Mapping]:
        """Patch name to options, in order.  Raises UsageError for a name that is not a series, or an empty one."""
        series = self.all_series()
        if name not in series:
            raise UsageError(f"there is no series {name!r}; there are: {', '.join(series)}")
        if not series[name]:
            raise Problem(f"the series {name} is empty", file="patches/__init__.py")
        return series[name]

    def patches_of(self, request: Request) -> list[Patch]:
        """The patches of a series, with the options of the series and, over them, those of `--set`."""
        return self.configured(self.series(request.series), request.sets)

    def configured(self, series: Mapping[str, Mapping], sets: Sequence[str] = ()) -> list[Patch]:
        """An instance of each patch in `series`, with its options there and, over them, those of `sets`."""
        series = {name: dict(options) for name, options in series.items()}
        for text in sets:
            name, option, value = _parse_set(text)
            if name not in series:
                raise UsageError(
                    f"--set {text}: there is no patch {name!r} in this series; it has: {', '.join(series)}"
                )
            series[name][option] = value
        patches = []
        for name, options in series.items():
            try:
                patches.append(self._patch(name, options))
            except UsageError as error:
                if any(text.startswith(f"{name}.") for text in sets):
                    raise
                raise Problem(error.message, file="patches/__init__.py") from None
        for position, patch in enumerate(patches):
            names = [p.slug() for p in patches[:position]]
            late = [p.slug() for p in patches[position:] if p.slug() in patch.after]
            for name in [*late, *(name for name in patch.needs if name not in names)]:
                raise Problem(
                    f"{patch.slug()} has to come after {name}", file="patches/__init__.py"
                )
        return patches

    def _patch(self, name: str, options: Mapping) -> Patch:
        import inspect

        from patcher.core.patch import Patch

        if not (self.patches / f"{name}.py").is_file():
            known = sorted(p.stem for p in self.patches.glob("*.py") if p.stem != "__init__")
            raise Problem(
                f"a series names a patch {name!r}, which does not exist; there are: {', '.join(known)}",
                file="patches/__init__.py",
            )
        module = self._import(f"patches.{name}")
        classes = [
            c
            for c in vars(module).values()
            if isinstance(c, type) and issubclass(c, Patch) and c.__module__ == module.__name__
        ]
        classes = [c for c in classes if not any(issubclass(o, c) for o in classes if o is not c)]
        if len(classes) != 1:
            raise Problem(
                f"expected 1 subclass of Patch, found {len(classes)}", file=f"patches/{name}.py"
            )
        accepted = [
            p
            for p in inspect.signature(classes[0].__init__).parameters
            if p not in ("self", "options")
        ]
        for option in options:
            if option not in accepted:
                has = f"it has: {', '.join(accepted)}" if accepted else "it has none"
                raise UsageError(f"{name} has no option {option!r}; {has}")
        try:
            patch = classes[0](**options)
            patch.fresh()  # the options that it has recorded are those that it takes
        except ValueError as error:
            raise UsageError(
                f"{name}: {', '.join(f'{k}={v}' for k, v in options.items())}: {error}"
            ) from None
        except Exception as error:
            message = f"cannot be made: {type(error).__name__}: {error}"
            raise self.blame(error, "cannot be made") or Problem(
                message, file=f"patches/{name}.py"
            ) from error
        if not (
            patch.needles
            and patch.sites
            and all(isinstance(places, dict) for places in patch.sites.values())
        ):
            expected = "expected sites = {file: {function: count}} and needles"
            raise Problem(
                f"{expected}, found {patch.sites!r} and {patch.needles!r}",
                file=f"patches/{name}.py",
            )
        return patch

    def _import(self, name: str):
        """Import `patches` or a module of it from this project, and from no other that was read before."""
        if not isinstance(_finder.root, Path) or _finder.root != self.root:
            for loaded in [m for m in sys.modules if m.partition(".")[0] == "patches"]:
                del sys.modules[loaded]
            _finder.root = self.root
        try:
            return importlib.import_module(name)
        except SyntaxError as error:
            file = self._name(error.filename or "")
            raise Problem(
                f"cannot import: {error.msg}", file=file, line=error.lineno or 0
            ) from None
        except Exception as error:
            raise self.blame(error, "cannot import") or error from error

    def blame(self, error: Exception, what: str) -> Problem | None:
        """The line in `patches/` at which an exception arose, as a finding; None where it arose elsewhere."""
        found, trace = None, error.__traceback__
        while trace:
            file = self._name(trace.tb_frame.f_code.co_filename)
            if file.startswith("patches/"):
                found = Problem(
                    f"{what}: {type(error).__name__}: {error}", file=file, line=trace.tb_lineno
                )
            trace = trace.tb_next
        return found

    def _name(self, path: str) -> str:
        """A path as POSIX, relative to the project where it lies in it."""
        try:
            return Path(path).relative_to(self.root).as_posix()
        except ValueError:
            return path


def _text(path: Path) -> bytes:
    """The bytes of a file with `\\n` alone: how a line ends is up to the checkout (git's core.autocrlf)."""
    return path.read_bytes().replace(b"\r\n", b"\n")


class _Finder(importlib.machinery.PathFinder):
    """Finds `patches` in the project at hand and reads it from source.

    Bytecode is bypassed: it is matched by size and by a time in whole seconds, so a patch that
    was changed twice in a second would run as it was, and the manifest would say that it had not.
    """

    root: Path | None = None

    def find_spec(self, fullname, path=None, target=None):
        if self.root is None or fullname.partition(".")[0] != "patches":
            return None
        spec = super().find_spec(fullname, path or [str(self.root)], target)
        if spec and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _FromSource(fullname, spec.loader.path)
        return spec


class _FromSource(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname):
        return self.source_to_code(self.get_data(self.path), self.path)


_finder = _Finder()
sys.meta_path.insert(0, _finder)


def _parse_set(text: str) -> tuple[str, str, str]:
    place, equals, value = text.partition("=")
    name, dot, option = place.partition(".")
    if not (name and dot and option and equals):
        raise UsageError(f"--set {text}: expected patch.option=value")
    return name, option, value
