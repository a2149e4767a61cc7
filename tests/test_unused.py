"""What upstream used and the patched script does not is taken out, and nothing that still does
something.
"""

import libcst as cst
import pytest

from patcher.tree import unused


def removed(before: str, after: str) -> str:
    pristine, module = (cst.parse_module(text) for text in (before, after))
    code = unused.removed(pristine, module, lambda module: module.code).code
    compile(code, "script", "exec")
    return code


def body(*lines: str) -> str:
    """A function `f` of these lines."""
    return "def f():\n" + "".join(f"    {line}\n" for line in lines)


@pytest.mark.parametrize(
    "before, after, left",
    [
        pytest.param(
            "import a\nimport b\na.x(b)\n",
            "import a\nimport b\nx(b)\n",
            "import b\nx(b)\n",
            id="import",
        ),
        pytest.param("import a as b\nb.x()\n", "import a as b\nx()\n", "x()\n", id="import as"),
        pytest.param(
            "from a import b, c\nb(c)\n",
            "from a import b, c\nb()\n",
            "from a import b\nb()\n",
            id="from",
        ),
        pytest.param(
            "from a import (\n    b,\n    c,\n)\nb(c)\n",
            "from a import (\n    b,\n    c,\n)\nb()\n",
            "from a import (\n    b,\n)\nb()\n",
            id="from, over lines",
        ),
        pytest.param(
            "def g():\n    g()\ng()\n",
            "def g():\n    g()\nx()\n",
            "x()\n",
            id="function that calls itself",
        ),
        pytest.param(
            "import a\ndef g():\n    a.x()\ng()\n",
            "import a\ndef g():\n    a.x()\nx()\n",
            "x()\n",
            id="what it alone used, too",
        ),
        pytest.param("x = 1\ny(x)\n", "x = 1\ny()\n", "y()\n", id="variable of the module"),
        pytest.param(body("x = 1", "y(x)"), body("x = 1", "y()"), body("y()"), id="variable"),
        pytest.param(
            body("n = torch.cuda.device_count()", "y(n)"),
            body("n = torch.cuda.device_count()", "y()"),
            body("y()"),
            id="count of devices",
        ),
        pytest.param(
            "def f(o):\n    o.n = 1\n    y(o.n)\n",
            "def f(o):\n    o.n = 1\n    y()\n",
            "def f(o):\n    y()\n",
            id="attribute",
        ),
        pytest.param(
            "best = 0\ndef f():\n    global best\n    y(best)\n",
            "best = 0\ndef f():\n    global best\n    y()\n",
            "def f():\n    y()\n",
            id="global",
        ),
        pytest.param(
            "best = 0\ndef f():\n    y(best)\n",
            "best = 0\ndef f():\n    y(run.best)\n",
            "def f():\n    y(run.best)\n",
            id="variable that is an attribute now",
        ),
        pytest.param(
            "def g(a, b):\n    y(a, b)\ng(1, 2)\n",
            "def g(a, b):\n    y(b)\ng(1, 2)\n",
            "def g(b):\n    y(b)\ng(2)\n",
            id="parameter and its argument",
        ),
        pytest.param(
            "def g(a, b):\n    y(a, b)\ng(1, 2)\n",
            "def g(a, b):\n    y(a)\ng(1, 2)\n",
            "def g(a):\n    y(a)\ng(1)\n",
            id="last parameter and its argument",
        ),
        pytest.param(
            "def g(a, *b):\n    y(a, b)\ng(1, 2, 3)\n",
            "def g(a, *b):\n    y(b)\ng(1, 2, 3)\n",
            "def g(*b):\n    y(b)\ng(2, 3)\n",
            id="parameter before others",
        ),
    ],
)
def test_what_is_no_longer_read_goes(before, after, left):
    assert removed(before, after) == left


@pytest.mark.parametrize(
    "before, after",
    [
        pytest.param(
            "import a\nx()\n", "import a\nx(1)\n", id="import that upstream did not use either"
        ),
        pytest.param(
            "import a.b\na.b.x()\n",
            "import a.b\nx()\n",
            id="import of a part, which may have an effect",
        ),
        pytest.param(
            "import a\na.x()\n",
            "import a\ndef f(a):\n    a.x()\n",
            id="name that is read somewhere",
        ),
        pytest.param(
            "import a; y()\na.x()\n", "import a; y()\nx()\n", id="import that shares its line"
        ),
        pytest.param("def main():\n    x()\nmain()\n", "def main():\n    x()\n", id="main"),
        pytest.param(
            "@y\ndef g():\n    x()\ng()\n", "@y\ndef g():\n    x()\n", id="decorated function"
        ),
        pytest.param(body("x = y()", "z(x)"), body("x = y()", "z()"), id="value with an effect"),
        pytest.param(body("x = z = 1", "y(x, z)"), body("x = z = 1", "y(z)"), id="two targets"),
        pytest.param(
            body("x = 1; y()", "z(x)"),
            body("x = 1; y()", "z()"),
            id="variable that shares its line",
        ),
        pytest.param(body("x, z = 1, 2", "y(x)"), body("x, z = 1, 2", "y()"), id="tuple"),
        pytest.param(
            body("x = 1", "y(x)", "del x"),
            body("x = 1", "y()", "del x"),
            id="variable that is deleted",
        ),
        pytest.param(
            body("x = 1", "x += 1", "y(x)"),
            body("x = 1", "x += 1", "y()"),
            id="variable that is counted up",
        ),
        pytest.param(
            "def g(a, b):\n    y(a, b)\ng(a=1, b=2)\n",
            "def g(a, b):\n    y(b)\ng(a=1, b=2)\n",
            id="argument by keyword",
        ),
        pytest.param(
            "def g(a):\n    y(a)\ng(*z)\n", "def g(a):\n    y()\ng(*z)\n", id="arguments of a list"
        ),
        pytest.param(
            "def g(a):\n    y(a)\ng(z())\n",
            "def g(a):\n    y()\ng(z())\n",
            id="argument with an effect",
        ),
        pytest.param(
            "def g(a):\n    y(a)\nz(g)\n",
            "def g(a):\n    y()\nz(g)\n",
            id="function that is passed on",
        ),
        pytest.param(
            "@y\ndef g(a):\n    y(a)\ng(1)\n",
            "@y\ndef g(a):\n    y()\ng(1)\n",
            id="decorated, with a parameter",
        ),
        pytest.param(
            "class A:\n    x = 1\n    def f(self, a):\n        y(a)\n",
            "class A:\n    x = 1\n    def f(self, a):\n        y()\n",
            id="class",
        ),
        pytest.param(
            "try:\n    import a\nexcept ImportError:\n    a = None\na.x()\n",
            "try:\n    import a\nexcept ImportError:\n    a = None\nx()\n",
            id="import that may fail",
        ),
    ],
)
def test_everything_else_stays(before, after):
    assert removed(before, after) == after


def test_only_the_assignment_without_an_effect_goes():
    before = body("x = 1", "x = y()", "z(x)")
    assert removed(before, body("x = 1", "x = y()", "z()")) == body("x = y()", "z()")


def test_unchanged_module_is_returned_as_it_is():
    module = cst.parse_module("import a\nx = 1\n")
    assert unused.removed(module, module, lambda module: module.code) is module


def test_block_whose_only_line_goes_still_does_nothing():
    before = "def f():\n    if a:\n        x = 1\n    y(x)\n"
    assert (
        removed(before, before.replace("y(x)", "y()"))
        == "def f():\n    if a:\n        pass\n    y()\n"
    )


def test_comment_above_a_line_that_goes_stands_above_the_next():
    before = body("# one", "x = 1", "", "# two", "y = 2", "z(x, y)").replace("    \n", "\n")
    assert removed(before, before.replace("z(x, y)", "z(y)")) == body(
        "# one", "# two", "y = 2", "z(y)"
    )


def test_groups_of_imports_stay_apart():
    before = "import a\n\nimport b\nimport c\n\nfrom d import e\na(b, c, e)\n"
    after = before.replace("a(b, c, e)", "a(c)")
    assert removed(before, after) == "import a\n\nimport c\n\na(c)\n"
    after = before.replace("a(b, c, e)", "a(e)")
    assert removed(before, after) == "import a\n\nfrom d import e\na(e)\n"


def test_line_endings_stay():
    before = "import a\r\nimport b\r\na(b)\r\n"
    pristine, module = (
        cst.parse_module(before.encode()),
        cst.parse_module(before.replace("a(b)", "a()").encode()),
    )
    assert (
        unused.removed(pristine, module, lambda module: module.code).bytes == b"import a\r\na()\r\n"
    )


@pytest.mark.parametrize(
    "before, left",
    [
        ("import os\n# for b\nimport b\nb(os)\n", "import os\n# for b\nb(os)\n"),
        ("import os  # for b\nb(os)\n", "# for b\nb(os)\n"),
        (
            "import os\n\n# of b\nimport b  # too\n\n# more\nb(os)\n",
            "import os\n\n# of b\n# too\n\n# more\nb(os)\n",
        ),
    ],
)
def test_comments_of_an_import_that_goes_stay(before, left):
    """T10: above the next statement."""
    name = "b" if "import b" in before else "os"
    gone = before.replace("b(os)", "b(os)".replace(name, "c" if name == "b" else "0"))
    assert removed(before, gone) == left.replace("b(os)", "c(os)" if name == "b" else "b(0)")


def test_comment_that_stands_apart_from_a_function_that_goes_stays():
    """T10: what stands right above it, and in it, is about the function alone."""
    before = (
        "import a\n\n\n# Helpers\n\n# Adds.\ndef f(x):  # of x\n    return x  # as is\n\n\na(f)\n"
    )
    assert removed(before, before.replace("a(f)", "a()")) == "import a\n\n\n# Helpers\n\n\na()\n"
