"""The folder that holds `upstream/` and `patches/`, and how a series is read from it."""

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
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType

    from patcher.core.patch import Patch

    Series = Mapping[str, Mapping[str, object]]  # patch name to options, in order

HERE = Path(__file__).resolve().parent.parent
ENGINE = (
    "__init__.py",
    "build/build.py",
    *("core/draft.py", "core/engine.py", "core/patch.py", "core/single_pass.py"),
    *("core/text.py", "core/truth.py", "core/visit.py"),
    *("tree/layout.py", "tree/names.py", "tree/places.py", "tree/syntax.py", "tree/unused.py"),
)
"""What decides, beside upstream and patches, which bytes a build has."""


class Request(namedtuple("Request", "series sets", defaults=((),))):
    """What to build: a series, and `patch.option=value` texts as on the command line."""

    def __str__(self) -> str:
        return " ".join([f"series {self.series}", *(f"--set {text}" for text in self.sets)])


class Project:
    """A folder with `upstream/` and `patches/`."""

    def __init__(self, root: Path):
        self.root = root
        self.upstream, self.patches = root / "upstream", root / "patches"
        self.is_installed = root == HERE / "bundle"

    @classmethod
    def find(cls, root: str | None = None) -> Project:
        """The project at `root`; else here or above; else the one that came with this package."""
        if root:
            candidates = [Path(root).absolute()]
        else:  # a wheel brings one as `bundle`; in a checkout it is beside the package
            here = Path.cwd()
            candidates = [here, *here.parents, HERE / "bundle", HERE.parent]
        for folder in candidates:
            needed = (folder / "upstream/lock.json", folder / "patches/__init__.py")
            if all(path.is_file() for path in needed):
                return cls(folder)
        raise UsageError(f"{candidates[0]}: no upstream/lock.json and patches/__init__.py here")

    def inputs(self) -> dict[str, str]:
        """The sha256 of every file that a build depends on, as if lines ended in LF, by path."""
        paths = [path for path in self.upstream.iterdir() if path.suffix in (".py", ".json")]
        paths += self.patches.rglob("*.py")
        files = {
            path.relative_to(self.root).as_posix(): path
            for path in paths
            if path.name[0] != "." and path.is_file()  # a hidden file is an editor's
        }
        files |= {f"patcher/{name}": HERE / name for name in ENGINE}
        return {name: hashlib.sha256(_text(files[name])).hexdigest() for name in sorted(files)}

    def support(self) -> dict[str, bytes]:
        """The modules in `patches/support/` by name: the code that built scripts call."""
        paths = (path for path in (self.patches / "support").glob("[!.]*.py") if path.is_file())
        return {path.stem: _text(path) for path in sorted(paths)}

    def all_series(self) -> Mapping[str, Series]:
        found: Mapping[str, Series] = self._import("patches").SERIES
        return found

    def default_series(self) -> str:
        return str(self._import("patches").DEFAULT)

    def series(self, name: str) -> Series:
        """Patch name to options, in order.  Raises UsageError if there is no such series."""
        series = self.all_series()
        if name not in series:
            raise UsageError(f"there is no series {name!r}; there are: {', '.join(series)}")
        if not series[name]:
            raise Problem(f"the series {name} is empty", file="patches/__init__.py")
        return series[name]

    def patches_of(self, request: Request) -> list[Patch]:
        """The patches of a series, with its options and, over them, those of `--set`."""
        return self.configured(self.series(request.series), request.sets)

    def configured(self, series: Series, sets: Sequence[str] = ()) -> list[Patch]:
        """An instance of each patch, with its options in `series` and, over them, in `sets`."""
        options = {name: dict(chosen) for name, chosen in series.items()}
        for text in sets:
            name, option, value = _parse_set(text)
            if name not in options:
                has = ", ".join(options)
                raise UsageError(f"--set {text}: this series has no patch {name!r}; it has: {has}")
            options[name][option] = value
        patches = []
        for name, chosen in options.items():
            try:
                patches.append(self._patch(name, chosen))
            except UsageError as error:
                if any(text.startswith(f"{name}.") for text in sets):
                    raise
                raise Problem(error.message, file="patches/__init__.py") from None
        names = [patch.slug() for patch in patches]
        for position, patch in enumerate(patches):
            late = [name for name in names[position:] if name in patch.after]
            for name in [*late, *(name for name in patch.needs if name not in names[:position])]:
                message = f"{patch.slug()} has to come after {name}"
                raise Problem(message, file="patches/__init__.py")
        return patches

    def _patch(self, name: str, options: Mapping[str, object]) -> Patch:
        import inspect

        kind = self._class_of(name)
        parameters = inspect.signature(kind.__init__).parameters
        accepted = [p for p in parameters if p not in ("self", "options")]
        for option in options:
            if option not in accepted:
                has = f"it has: {', '.join(accepted)}" if accepted else "it has none"
                raise UsageError(f"{name} has no option {option!r}; {has}")
        file = f"patches/{name}.py"
        try:
            patch = kind(**options)
            patch.fresh()  # the options that it has recorded are those that it takes
        except ValueError as error:
            given = ", ".join(f"{key}={value}" for key, value in options.items())
            raise UsageError(f"{name}: {given}: {error}") from None
        except Exception as error:
            message = f"cannot be made: {type(error).__name__}: {error}"
            blamed = self.blame(error, "cannot be made")
            raise blamed or Problem(message, file=file) from error
        counted = all(isinstance(places, dict) for places in patch.sites.values())
        if not (patch.needles and patch.sites and counted):
            message = "expected sites = {file: {function: count}} and needles, found "
            raise Problem(message + f"{patch.sites!r} and {patch.needles!r}", file=file)
        return patch

    def _class_of(self, name: str) -> type[Patch]:
        from patcher.core.patch import Patch

        if not (self.patches / f"{name}.py").is_file():
            known = sorted(p.stem for p in self.patches.glob("*.py") if p.stem != "__init__")
            message = f"a series names a patch {name!r}, which does not exist; there are: "
            raise Problem(message + ", ".join(known), file="patches/__init__.py")
        module = self._import(f"patches.{name}")
        own = [c for c in vars(module).values() if getattr(c, "__module__", "") == module.__name__]
        classes = [c for c in own if isinstance(c, type) and issubclass(c, Patch)]
        last = [c for c in classes if not any(issubclass(o, c) for o in classes if o is not c)]
        if len(last) != 1:
            message = f"expected 1 subclass of Patch, found {len(last)}"
            raise Problem(message, file=f"patches/{name}.py")
        return last[0]

    def _import(self, name: str) -> ModuleType:
        """Import `patches` or a module of it from this project; forget those of another one."""
        there = list(getattr(sys.modules.get("patches"), "__path__", []))
        if _Finder.root != self.root or there != [str(self.patches)]:
            for loaded in [m for m in sys.modules if m.partition(".")[0] == "patches"]:
                del sys.modules[loaded]
            _Finder.root = self.root
        try:
            return importlib.import_module(name)
        except SyntaxError as error:
            file = self._name(error.filename or "")
            message = f"cannot import: {error.msg}"
            raise Problem(message, file=file, line=error.lineno or 0) from None
        except Exception as error:
            raise self.blame(error, "cannot import") or error from error

    def blame(self, error: Exception, what: str) -> Problem | None:
        """The line in `patches/` where an exception arose, as a finding; None if elsewhere."""
        found, trace = None, error.__traceback__
        message = f"{what}: {type(error).__name__}: {error}"
        while trace:
            file = self._name(trace.tb_frame.f_code.co_filename)
            if file.startswith("patches/"):
                found = Problem(message, file=file, line=trace.tb_lineno)
            trace = trace.tb_next
        return found

    def _name(self, path: str) -> str:
        """A path as POSIX, relative to the project if it lies in it."""
        try:
            return Path(path).relative_to(self.root).as_posix()
        except ValueError:
            return path


def _text(path: Path) -> bytes:
    """The bytes of a file with `\\n` alone: git's core.autocrlf decides how a line ends."""
    return path.read_bytes().replace(b"\r\n", b"\n")


class _Finder(importlib.machinery.PathFinder):
    """Finds `patches` in the project at hand and reads it from source.

    Bytecode is bypassed: it is matched by size and by a time in whole seconds, so a patch that
    was changed twice in a second would run as it was, and the manifest would say that it had not.
    """

    root: Path | None = None

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if cls.root is None or name.partition(".")[0] != "patches":
            return None
        spec = super().find_spec(name, path or [str(cls.root)], target)
        if spec and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _FromSource(name, spec.loader.path)
        return spec


class _FromSource(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


sys.meta_path.insert(0, _Finder)


def _parse_set(text: str) -> tuple[str, str, str]:
    place, equals, value = text.partition("=")
    name, dot, option = place.partition(".")
    if not (name and dot and option and equals):
        raise UsageError(f"--set {text}: expected patch.option=value")
    return name, option, value
