"""What patches and series make of scripts, for the tests of them."""

import functools
from pathlib import Path

from conftest import REPO

from patcher.build.project import Project, Request
from patcher.core.draft import Draft
from patcher.core.engine import Rendered, finish, render
from patcher.core.single_pass import Printer, apply_once, parse
from patcher.core.truth import Verdict

PROJECT = Project(REPO)
SERIES = {series: list(names) for series, names in PROJECT.all_series().items()}
DEFAULT = PROJECT.default_series()
NAMES = list(dict.fromkeys(name for names in SERIES.values() for name in names))
SCRIPTS = {path.name: path.read_bytes() for path in sorted((REPO / "upstream").glob("*.py"))}
SUPPORT = PROJECT.support()


def make(name: str, **options):
    """A patch of this repository; those that it may need are before it."""
    earlier = {name: {} for name in NAMES[: NAMES.index(name)]}
    return PROJECT.configured(earlier | {name: options})[-1]


def patches_of(series: str, *sets: str) -> list:
    return PROJECT.patches_of(Request(series, sets))


def once(source: bytes, patch) -> bytes:
    """What the patch itself makes of an example, in which no parser needs to be."""
    printer = Printer()
    patch.parser_name = lambda: "parser"
    return printer.bytes(apply_once(parse("example.py", source, printer), patch, printer))


def built(source: bytes, patch, sites=None) -> bytes:
    """What a series of this patch alone makes of a script, with imports, options and functions."""
    patch.sites = {"script.py": sites or {"main": 1}}
    result = render("script.py", source, [patch], SUPPORT)
    assert not result.stale, result.outcomes
    return result.after


def passed(name: str, source: bytes, patches) -> tuple[bytes, int]:
    """A script after one pass of each patch that names it, whatever that finds, and the hits."""
    printer, hits, draft = Printer(), 0, Draft(source, SUPPORT)
    pristine = module = parse(name, source, printer)
    for patch in (patch for patch in patches if name in patch.sites):
        run = patch.fresh()
        # As in the engine: patches know what earlier ones have asked for.
        module = apply_once(module, run, printer, draft)
        hits += len(run.hits)
    return printer.bytes(finish(pristine, module, draft)), hits


def results_of(patches, scripts=SCRIPTS) -> dict[str, Rendered]:
    """What `patches` make of the scripts; all of them have to be CLEAN."""
    results = {name: render(name, source, patches, SUPPORT) for name, source in scripts.items()}
    for outcome in (outcome for result in results.values() for outcome in result.outcomes):
        assert outcome.verdict is Verdict.CLEAN, outcome
    return results


@functools.cache
def results_in(series: str) -> dict[str, Rendered]:
    """What a whole series makes of the scripts."""
    return results_of(patches_of(series))


def rendered(patches, scripts=SCRIPTS) -> dict[str, bytes]:
    """The scripts after `patches`, all of which have to be CLEAN."""
    return {name: result.after for name, result in results_of(patches, scripts).items()}


def write(folder: Path, results: dict[str, Rendered]) -> None:
    """The scripts, and `support/` with the modules that they reach."""
    for name, result in results.items():
        (folder / name).write_bytes(result.after)
        for module in result.support:
            (folder / "support").mkdir(exist_ok=True)
            (folder / "support" / f"{module}.py").write_bytes(SUPPORT[module])
