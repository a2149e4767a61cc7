import libcst as cst
import libcst.matchers as m

from patcher import Patch


class Said(Patch):
    """Say it with words, because it is nicer."""

    sites = {"one.py": {"main": 1}, "two.py": {"main": 1}}
    needles = (b"end",)

    def done(self, node):
        return m.matches(node, m.Call(func=m.Attribute(m.Name("words"), m.Name("say"))))

    def leave_Call(self, original, updated):
        if not m.matches(updated, m.Call(m.Name("print"), [m.Arg(m.SimpleString("'end'"))])):
            return updated
        return updated.with_changes(func=cst.parse_expression(self.support("words") + ".say"))
