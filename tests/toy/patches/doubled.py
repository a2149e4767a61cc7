import libcst as cst
import libcst.matchers as m

from patcher import Patch


class Doubled(Patch):
    """Print the size twice; once is easily missed."""

    sites = {"one.py": {"main": 1}}
    needles = (b"args.size",)

    def done(self, node):
        return m.matches(node, m.Call(args=[m.Arg(m.Attribute(attr=m.Name("size")))] * 2))

    def leave_Call(self, original, updated):
        if not m.matches(updated, m.Call(args=[m.Arg(m.Attribute(attr=m.Name("size")))])):
            return updated
        return updated.with_changes(args=[cst.Arg(updated.args[0].value), *updated.args])
