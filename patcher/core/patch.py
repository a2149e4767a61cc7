"""What the author of a patch states and may ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NoReturn

import libcst as cst

from patcher.core.draft import Draft, Refused, options_of
from patcher.core.visit import Visit
from patcher.tree import places, syntax
from patcher.tree.names import MODULE
from patcher.tree.places import Place


class Patch(Visit):
    """One edit, one idea.

    A subclass states, in the order in which a reader asks: why (its docstring), where (`sites`),
    when it is done (`done`), what it changes (`changes`), what it must leave alone (`leaves`), and
    then rewrites nodes in `leave_*` methods.  A rewrite is counted when such a method returns
    another node than it was given, so it returns `updated` itself if there is nothing to do.

    Rewrites must destroy their own match, must not nest, and take names from the code.
    `leave_<Node>` and `visit_<Node>` work as in LibCST, for all nodes but spaces and comments;
    `visit_<Node>_<attribute>` is not supported.  Both make a visit much cheaper.
    """

    sites: ClassVar[Mapping[str, Mapping[str, int]]] = {}
    """Per upstream file, the functions that hold a site and how many each: exact."""

    needles: ClassVar[tuple[bytes, ...]] = ()
    """A top-level statement with none of these bytes is never visited.
    They must cover what is looked for *and* what `done` looks for."""

    origin: ClassVar[str] = ""
    """A URL that tells why the edit is needed."""

    changes: ClassVar[Sequence[tuple[Any, ...]]] = ()
    """(before, after) or (before, after, options): documentation, and a test.
    They show what the patch itself writes; imports and option lines are the engine's."""

    leaves: ClassVar[Sequence[str]] = ()
    """Look-alikes that stay as they are: documentation, and a test."""

    drops: ClassVar[Sequence[str]] = ()
    """Comments, as they stand in upstream, that go with the code that they are about.
    All others stay, above the next statement; an edit that would lose one is refused."""

    after: ClassVar[Sequence[str]] = ()
    """Patches that have to come earlier in a series that holds both."""

    needs: ClassVar[Sequence[str]] = ()
    """Patches that a series with this one has to hold, earlier."""

    module: cst.Module
    """The module as it stands when this pass begins."""

    text: Callable[[cst.CSTNode], str]
    """The text of a top-level statement of it."""

    draft: Draft
    """What the patches before this one have asked for."""

    def __init__(self, **options: object):
        """A subclass checks its options and passes them on; `ValueError` says what is right."""
        super().__init__()
        self.options = options

    def fresh(self) -> Patch:
        """The same patch with the same options, and nothing counted yet."""
        return type(self)(**self.options)

    @classmethod
    def slug(cls) -> str:
        """The name in a series: that of the module."""
        return cls.__module__.rpartition(".")[2]

    @classmethod
    def summary(cls) -> str:
        """The first line of the docstring."""
        return (cls.__doc__ or "").strip().partition("\n")[0]

    # What a rewrite may ask for.  A clash of names ends the pass with its reason.

    def refuse(self, why: str, node: cst.CSTNode | None = None) -> NoReturn:
        """End this pass: the patch sees what it is for at `node`, and cannot edit it."""
        raise Refused(why, node)

    def support(self, module: str) -> str:
        """Import `patches/support/<module>.py` for the function at hand; the name to call it by."""
        self.draft.use(module, self.function)
        return module

    def add_options(self, module: str) -> str:
        """Let `module.add_options(parser)` add its options; the name to call the module by."""
        self._parser_for(module)
        self.draft.use(module, MODULE)
        self.draft.options.add(module)
        return self.support(module)

    def inline(self, module: str, function: str) -> str:
        """Write the functions and options of `patches/support/<module>.py` into the script.

        It then stands alone.  The result is the name to call `function` by.
        """
        parser, newline = self._parser_for(module), self.module.default_newline
        self.draft.inline(module, parser, function, self.function, newline)
        return function

    def bring(self, variable: str) -> str:
        """A variable that this patch adds to the function at hand."""
        self.draft.bring(variable, self.function, self.slug())
        return variable

    def module_name(self, module: str) -> str:
        """The name that `import module` binds in this script; a missing import is added."""
        bound = syntax.imported_as(self.module, module)
        self.draft.add_import(module, bound, self.function)
        return bound or module

    def insert(
        self, function: cst.FunctionDef, place: Place, code: str, rank: int = 50
    ) -> cst.FunctionDef:
        """`function` with the statements of `code` at `place`, by rank among those of others."""
        lines = syntax.statements(code, self.module.default_newline)
        result = self.draft.put(function, place, lines, rank, self.slug())
        if result is function:
            why = ", or a `continue` skips it" if place is Place.LAST_IN_LOOP else ""
            self.refuse(f"{self.function} has no place {place.value}{why}", function)
        return result

    def insert_check(
        self, function: cst.FunctionDef, check: str, rank: int, options: bool = False
    ) -> cst.FunctionDef:
        """`function` with `check(args)` below the line that parses `args`; itself if it has none.

        `check` is that of a support module; with `options`, those of the module are added.
        """
        args = places.parsed_into(function)
        if args is None or self.is_done_in(function):
            return function
        module = self.support(check.partition(".")[0])
        if options:
            self.add_options(module)
        return self.insert(function, Place.PARSED, f"{check}({args})\n", rank)

    @property
    def args(self) -> str:
        """What the function at hand calls the parsed arguments: its last parameter.

        If it has none, the name in the line that parses them.
        """
        if self.parameters:
            return self.parameters[-1]
        return places.parsed_name(self.module.body) or "args"

    def is_done_in(self, node: cst.CSTNode) -> bool:
        """Whether the edit has been made somewhere in `node`."""
        return any(map(self.done, syntax.descendants(node)))

    def parser_name(self) -> str | None:
        """What the script calls its argparse parser: that on which it calls `parse_args`."""
        return places.parser_name(self.module, self.text)

    def _parser_for(self, module: str) -> str:
        """The parser that takes the options of `module`; argparse raises for a second of a name."""
        parser = self.parser_name()
        if parser is None or self.draft.names.belongs_to_functions(parser):
            call = "there is no `parser.parse_args()` with a parser that the script makes"
            self.refuse(f"{call} outside its functions")
        for option in options_of(self.draft.support.get(module, b"")):
            for node in self._nodes(option):
                if syntax.adds_option(node, option):
                    self.refuse(f"the script has an option {option} already", node)
        return parser

    def _nodes(self, containing: str) -> Iterator[cst.CSTNode]:
        """Every node of the statements with this text: to walk through all of a script is slow."""
        for statement in self.module.body:
            if containing in self.text(statement):
                yield from syntax.descendants(statement)


def flag(value: bool | str) -> bool:
    """An option that is on or off, as a series or `--set` gives it."""
    if value not in (True, False, "true", "false"):
        raise ValueError(f"expected true or false, found {value!r}")
    return value in (True, "true")
