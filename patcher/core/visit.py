"""How a patch goes through a script: which function it is in, and what it has edited there."""

from __future__ import annotations

from typing import Any, ClassVar

import libcst as cst

from patcher.tree.names import MODULE
from patcher.tree.syntax import Result

SCOPES = (cst.FunctionDef, cst.ClassDef)
Methods = dict[type[cst.CSTNode], Any]


class Visit(cst.CSTTransformer):
    """Counts what its `leave_<Node>` methods edit: they return another node than `updated`."""

    _visitors: ClassVar[Methods] = {}
    _leavers: ClassVar[Methods] = {}

    def __init__(self) -> None:
        super().__init__()
        self.hits: list[tuple[str, cst.CSTNode]] = []  # (function, the node as it was)
        self.already_done = False
        self._scope: list[str] = []
        self._parameters: list[list[str]] = []

    def __init_subclass__(cls, **kwargs: object) -> None:
        # LibCST formats a name and looks it up for every node; a table is several times faster.
        super().__init_subclass__(**kwargs)
        ours = cls.__mro__[: cls.__mro__.index(Visit)]
        names = {name for one in ours for name in vars(one)}
        cls._visitors = {getattr(cst, n[6:]): getattr(cls, n) for n in names if n[:6] == "visit_"}
        cls._leavers = {getattr(cst, n[6:]): getattr(cls, n) for n in names if n[:6] == "leave_"}

    def done(self, node: cst.CSTNode) -> bool:
        """Whether `node` shows that the edit has been made; absent before, present after."""
        raise NotImplementedError(f"{type(self).__name__} does not say when it is done")

    @property
    def function(self) -> str:
        """The qualified name of the function or class that is being visited."""
        return ".".join(self._scope) or MODULE

    @property
    def parameters(self) -> list[str]:
        """The positional parameters of the function that is being visited."""
        return self._parameters[-1] if self._parameters else []

    def on_visit(self, node: cst.CSTNode) -> bool:
        kind = type(node)
        if kind in SCOPES and isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            self._scope.append(node.name.value)
            if isinstance(node, cst.FunctionDef):
                self._parameters.append([one.name.value for one in node.params.params])
        visit = self._visitors.get(kind)
        return True if visit is None else visit(self, node) is not False

    def on_leave(self, old: cst.CSTNode, new: cst.CSTNode) -> Result:  # type: ignore[override]
        kind = type(old)
        if not self.already_done and self.done(old):
            self.already_done = True
        leave = self._leavers.get(kind)
        result = new if leave is None else leave(self, old, new)
        if result is not new:
            self.hits.append((self.function, old))
        if kind in SCOPES:
            self._scope.pop()
            if kind is cst.FunctionDef:
                self._parameters.pop()
        return result

    def on_visit_attribute(self, node: cst.CSTNode, attribute: str) -> None:
        pass

    def on_leave_attribute(self, original: cst.CSTNode, attribute: str) -> None:
        pass
