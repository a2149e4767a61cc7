import libcst as cst
import libcst.matchers as m

from patcher import Patch


class Counted(Patch):
    """Count up to the size, because one likes to know."""

    sites = {"one.py": {"main": 1}}
    needles = (b"args.size",)

    def done(self, node):
        return m.matches(node, m.Call(func=m.Attribute(m.Name("counts"), m.Name("up_to"))))

    def leave_Call(self, original, updated):
        if not m.matches(updated, m.Call(m.Name("print"), [m.AtLeastN(m.Arg(m.Attribute()), n=1)])):
            return updated
        return updated.with_changes(func=cst.parse_expression(self.support("counts") + ".up_to"))
