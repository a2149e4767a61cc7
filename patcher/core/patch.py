"""The base class of every patch: a LibCST transformer that counts what it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar

import libcst as cst

from patcher.core.draft import Draft, Refused, options_of
from patcher.tree import places, syntax
from patcher.tree.names import MODULE
from patcher.tree.places import Place


class Patch(cst.CSTTransformer):
    """One edit, one idea.

    A subclass states, in the order in which a reader asks: why (its docstring), where (`sites`), when
    it is done (`done`), what it changes (`changes`), what it must leave alone (`leaves`), and then
    rewrites nodes in `leave_*` methods.  A rewrite is counted when such a method returns another node
    than it was given, so it has to return `updated` itself wherever there is nothing to do.

    Rewrites must destroy their own match, must not nest in one another, and take names from the code.
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

    changes: ClassVar[Sequence[tuple]] = ()
    """(before, after) or (before, after, options): documentation, and a test.
    They show what the patch itself writes; imports and option lines are the engine's."""

    leaves: ClassVar[Sequence[str]] = ()
    """Look-alikes that stay as they are: documentation, and a test."""

    drops: ClassVar[Sequence[str]] = ()
    """Comments, as they stand in upstream, that go with the code that they are about.
    Of a statement that is removed all others stay, above the next one; an edit that would lose one is refused."""

    after: ClassVar[Sequence[str]] = ()
    """Patches that have to come earlier in a series that holds both."""

    needs: ClassVar[Sequence[str]] = ()
    """Patches that a series with this one has to hold, earlier."""

    module: cst.Module
    """The module as it stands when this pass begins."""

    text: Callable[[cst.BaseStatement], str]
    """The text of a top-level statement of it."""

    draft: Draft | None = None
    """What the patches before this one have asked for."""

    def __init__(self, **options):
        """A subclass checks its options and passes them on, normalised; `ValueError` says what is right."""
        super().__init__()
        self.options = options
        self.hits: list[tuple[str, cst.CSTNode]] = []  # (function, the node as it was)
        self.already_done = False
        self._scope: list[str] = []
        self._parameters: list[list[str]] = []

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        # LibCST formats a name and looks it up for every node; a table of our own methods is several times faster.
        names = {name for c in cls.__mro__[: cls.__mro__.index(Patch)] for name in vars(c)}
        cls._visitors = {
            getattr(cst, n[6:]): getattr(cls, n) for n in names if n.startswith("visit_")
        }
        cls._leavers = {
            getattr(cst, n[6:]): getattr(cls, n) for n in names if n.startswith("leave_")
        }

    def done(self, node: cst.CSTNode) -> bool:
        """Whether `node` shows that the edit has been made; absent before, present after."""
        raise NotImplementedError(f"{type(self).__name__} does not say when it is done")

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

    def refuse(self, why: str, node: cst.CSTNode | None = None) -> None:
        """End this pass: the patch sees what it is for at `node`, and cannot edit it."""
        raise Refused(why, node)

    def support(self, module: str) -> str:
        """Import `patches/support/<module>.py` for the function at hand, and give the name to call it by."""
        self.draft.use(module, self.function)
        return module

    def add_options(self, module: str) -> None:
        """Let `module.add_options(parser)` add the options that the module reads, below those of the script."""
        self._parser_for(module)
        self.draft.use(module, MODULE)
        self.draft.options.add(module)

    def inline(self, module: str, function: str) -> str:
        """Write the functions and options of `patches/support/<module>.py` into the script, which then stands alone.

        Gives the name to call `function` by, the one that the function at hand needs.
        """
        self.draft.inline(
            module, self._parser_for(module), function, self.function, self.module.default_newline
        )
        return function

    def bring(self, variable: str) -> str:
        """A variable that this patch adds to the function at hand."""
        self.draft.bring(variable, self.function, self.slug())
        return variable

    def module_name(self, module: str) -> str:
        """The name that `import module` binds in this script; the import is added where it is missing."""
        bound = syntax.imported_as(self.module, module)
        self.draft.add_import(module, bound, self.function)
        return bound or module

    def insert(
        self, function: cst.FunctionDef, place: Place, code: str, rank: int = 50
    ) -> cst.FunctionDef:
        """`function` with the statements of `code` at `place`, among what other patches put there by rank."""
        lines = syntax.statements(code, self.module.default_newline)
        for number, line in enumerate(lines):
            self.draft.placed[id(line)] = (line, place, (rank, self.slug(), number))
        placed = {
            key: order for key, (_, where, order) in self.draft.placed.items() if where is place
        }
        result = places.insert(function, place, lines, lambda node: placed.get(id(node)))
        if result is function:
            why = ", or a `continue` skips it" if place is Place.LAST_IN_LOOP else ""
            self.refuse(f"{self.function} has no place {place.value}{why}", function)
        return result

    def insert_check(
        self, function: cst.FunctionDef, check: str, rank: int, options: bool = False
    ) -> cst.FunctionDef:
        """`function` with `check(args)`, of a support module, below the line that parses `args`; itself if it has none.

        With `options`, those of the module are added.
        """
        args = places.parsed_into(function)
        if args is None or self.is_done_in(function):
            return function
        module = self.support(check.partition(".")[0])
        if options:
            self.add_options(module)
        return self.insert(function, Place.PARSED, f"{check}({args})\n", rank)

    def is_done_in(self, node: cst.CSTNode) -> bool:
        """Whether the edit has been made somewhere in `node`."""
        return any(map(self.done, syntax.descendants(node)))

    def parser_name(self) -> str | None:
        """What the script calls its argparse parser: that on which it calls `parse_args`."""
        return places.parser_name(self.module, self.text)

    def _parser_for(self, module: str) -> str:
        """The parser to which the options of `module` are added; a second one of a name would make argparse raise."""
        parser = self.parser_name()
        if parser is None or self.draft.names.belongs_to_functions(parser):
            self.refuse(
                "there is no `parser.parse_args()` with a parser that the script makes outside its functions"
            )
        for option in options_of(self.draft.support.get(module, b"")):
            if there := self._line_of_option(option):
                self.refuse(f"the script has an option {option} already", there)
        return parser

    def _line_of_option(self, option: str) -> cst.CSTNode | None:
        """Where the script adds an option of this name."""
        return next(
            (node for node in self._nodes(option) if syntax.adds_option(node, option)), None
        )

    def _nodes(self, containing: str) -> Iterator[cst.CSTNode]:
        """Every node of the statements in whose text this stands: to walk through all of a script is slow."""
        for statement in self.module.body:
            if containing in self.text(statement):
                yield from syntax.descendants(statement)

    # The visit.

    @property
    def function(self) -> str:
        """The qualified name of the function or class that is being visited."""
        return ".".join(self._scope) or MODULE

    @property
    def parameters(self) -> list[str]:
        """The positional parameters of the function that is being visited."""
        return self._parameters[-1] if self._parameters else []

    @property
    def args(self) -> str:
        """What the function that is being visited calls the parsed arguments.

        That is its last parameter, and where it has none, the name in the line that parses them.
        """
        if self.parameters:
            return self.parameters[-1]
        return places.parsed_name(self.module.body) or "args"

    def on_visit(self, node: cst.CSTNode) -> bool:
        kind = type(node)
        if kind is cst.FunctionDef or kind is cst.ClassDef:
            self._scope.append(node.name.value)
        if kind is cst.FunctionDef:
            self._parameters.append([parameter.name.value for parameter in node.params.params])
        visit = self._visitors.get(kind)
        return True if visit is None else visit(self, node) is not False

    def on_leave(self, original: cst.CSTNode, updated: cst.CSTNode):
        kind = type(original)
        if not self.already_done and self.done(original):
            self.already_done = True
        leave = self._leavers.get(kind)
        result = updated if leave is None else leave(self, original, updated)
        if result is not updated:
            self.hits.append((self.function, original))
        if kind is cst.FunctionDef or kind is cst.ClassDef:
            self._scope.pop()
        if kind is cst.FunctionDef:
            self._parameters.pop()
        return result

    def on_visit_attribute(self, node: cst.CSTNode, attribute: str) -> None:
        pass

    def on_leave_attribute(self, original: cst.CSTNode, attribute: str) -> None:
        pass


def flag(value: bool | str) -> bool:
    """An option that is on or off, as a series or `--set` gives it."""
    if value not in (True, False, "true", "false"):
        raise ValueError(f"expected true or false, found {value!r}")
    return value in (True, "true")
