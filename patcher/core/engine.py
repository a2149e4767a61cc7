"""The engine: bytes and a series in, bytes and outcomes out.

Pure: it knows no paths, prints nothing and starts no process.  A file is parsed once, and a
patch visits only the top-level statements that can concern it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import libcst as cst

from patcher.core.draft import Draft
from patcher.core.patch import Patch
from patcher.core.problem import Problem
from patcher.core.single_pass import Printer, parse
from patcher.core.text import compile_check
from patcher.core.truth import Outcome, Verdict, judge
from patcher.tree import layout, unused


@dataclass(frozen=True)
class Rendered:
    """A file before and after a series; if an outcome is STALE, `after` must not be used."""

    file: str
    before: bytes
    after: bytes
    outcomes: tuple[Outcome, ...]
    support: tuple[str, ...] = ()  # the modules of `patches/support/` that it reaches

    @property
    def stale(self) -> bool:
        return any(outcome.verdict is Verdict.STALE for outcome in self.outcomes)


def render(
    file: str, source: bytes, patches: Sequence[Patch], support: Mapping[str, bytes] | None = None
) -> Rendered:
    """Apply to `source` those of `patches` that name `file` in their sites, in this order.

    `support` is what they may let the script import: the modules of `patches/support/`, by name.

    Raises Problem if the source cannot be parsed, if LibCST would not give its bytes back
    unchanged, and if the result does not compile.
    """
    concerned = [patch for patch in patches if file in patch.sites]
    if not concerned:
        compile_check(file, source)
        return Rendered(file, source, source, ())
    printer = Printer()
    pristine = module = parse(file, source, printer)
    outcomes, draft = [], Draft(source, support)
    for patch in concerned:
        module, draft, outcome = judge(file, pristine, module, patch, printer, draft)
        outcomes.append(outcome)
    after = printer.bytes(finish(pristine, module, draft, printer))
    try:
        compile_check(file, after)
    except Problem as problem:
        names = ", ".join(patch.slug() for patch in concerned)
        message = f"what the patches make of it does not compile: {problem.message}"
        hint = f"Upstream is fine; look at what these insert: {names}."
        raise Problem(message, file=file, hint=hint) from None
    return Rendered(file, source, after, tuple(outcomes), draft.reached())


def finish(
    pristine: cst.Module, module: cst.Module, draft: Draft, printer: Printer | None = None
) -> cst.Module:
    """What a series leaves to the engine: imports and options, what is unused now, and layout."""
    code = (printer or Printer()).code
    return layout.aligned(pristine, unused.removed(pristine, draft.finish(module), code))
