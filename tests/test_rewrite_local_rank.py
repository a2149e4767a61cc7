"""`--local_rank` in other scripts: small inputs, and the exact bytes that they become."""

import os
import subprocess
import sys

import pytest
from rewriting import left, rewritten, table

from patcher.rewrite.sites import State

ENV = 'os.environ.get("LOCAL_RANK", '
NONE = 'int(os.environ["LOCAL_RANK"]) if "LOCAL_RANK" in os.environ else None'

# what is passed to add_argument, before and after
CALLS = table(
    r"""
"--local_rank", type=int, default=-1 => "--local_rank", type=int, default=int(ENV-1))
'--local_rank', default=-1, type=int => '--local_rank', default=int(ENV-1)), type=int
"--local_rank", default=0, type=int, help="x"
    => "--local_rank", default=int(ENV0)), type=int, help="x"
"--local_rank", type=int, default=1 => "--local_rank", type=int, default=int(ENV1))
"--local_rank", type=int, default=- 1 => "--local_rank", type=int, default=int(ENV- 1))
"--local_rank", default=-1 => "--local_rank", default=int(ENV-1))
'''--local_rank''', default=-1, type=int => '''--local_rank''', default=int(ENV-1)), type=int
r"--local_rank", type=int, default=0 => r"--local_rank", type=int, default=int(ENV0))
"--local-rank", type=int, default=0 => "--local-rank", type=int, default=int(ENV0))
"--local_rank", "--local-rank", type=int, default=0
    => "--local_rank", "--local-rank", type=int, default=int(ENV0))
"--local-rank", "--local_rank", default=0, type=int
    => "--local-rank", "--local_rank", default=int(ENV0)), type=int
"-r", "--local_rank", default=0, type=int => "-r", "--local_rank", default=int(ENV0)), type=int
"--local_rank", dest="local_rank", default=0
    => "--local_rank", dest="local_rank", default=int(ENV0))
"--local_rank", dest="localrank", default=0 => "--local_rank", dest="localrank", default=int(ENV0))
"--local_rank", action="store", default=0 => "--local_rank", action="store", default=int(ENV0))
"--local_rank", type=int, default=None => "--local_rank", type=int, default=NONE
"--local_rank", type=int => "--local_rank", type=int, default=NONE
"--local_rank", type=int,  => "--local_rank", type=int, default=NONE,BLANK
"--local_rank" => "--local_rank", default=os.environ.get("LOCAL_RANK")
"--local_rank", default=None => "--local_rank", default=os.environ.get("LOCAL_RANK")
"--local_rank", type=int, required=True => "--local_rank", type=int, default=int(ENV0))
"--local_rank", required=True, type=int, help="x"
    => "--local_rank", default=int(ENV0)), type=int, help="x"
"--local_rank", required=True => "--local_rank", default=ENV"0")
"--local_rank", type=int, default=1, required=True
    => "--local_rank", type=int, default=int(ENV1)), required=False
"--local_rank", type=int, required=False, default=0
    => "--local_rank", type=int, required=False, default=int(ENV0))
"--local_rank", type=int, default="0" => "--local_rank", type=int, default=int(ENV"0"))
"--local_rank", default="0" => "--local_rank", default=ENV"0")
"--local_rank", type=str, default=0 => "--local_rank", type=str, default=ENV0)
"--local_rank", type=lambda s: int(s), default=0
    => "--local_rank", type=lambda s: int(s), default=ENV0)
""",
    NONE=NONE,
    ENV=ENV,
    BLANK=" ",
)


@pytest.mark.parametrize("receiver", ["parser", "p", "self.parser", "get_parser()", "group"])
@pytest.mark.parametrize("before, after", CALLS)
def test_option_takes_its_default_from_the_launcher(receiver, before, after):
    source = f"import os\n{receiver}.add_argument({before})  # rank\nx = 1\n"
    assert rewritten(source) == source.replace(before, after)


LAYOUTS = [
    *table(
        r"""
parser.add_argument(\n    "--local_rank",\n    # a number\n    type=int\n)\n
    => parser.add_argument(\n    "--local_rank",\n    # a number\n    type=int, default=NONE\n)\n
parser.add_argument(\n\t"--local_rank", type=int, default=(  # lone\n\t\t-1),\n)\n
    => parser.add_argument(\n\t"--local_rank", type=int, default=(  # lone\n\t\tint(ENV-1))),\n)\n
parser.add_argument("--local_rank",\\n    default=0, \\n    type=int)\n
    => parser.add_argument("--local_rank",\\n    default=int(ENV0)), \\n    type=int)\n
x = "ä"; parser.add_argument("--local_rank", help="Gerät ü", default=0)  # é\n
    => x = "ä"; parser.add_argument("--local_rank", help="Gerät ü", default=int(ENV0)))  # é\n
add = parser.add_argument\nadd("--local_rank", default=0)\n
    => add = parser.add_argument\nadd("--local_rank", default=int(ENV0)))\n
p.add_argument_group("g").add_argument("--local_rank", default=0)\n
    => p.add_argument_group("g").add_argument("--local_rank", default=int(ENV0)))\n
""",
        NONE=NONE,
        ENV=ENV,
    ),
    *table(
        r'''
parser.add_argument(\n    "--local_rank",  # rank\n    default=-1,  # none\n    type=int,\n)\n
    => parser.add_argument(\n    "--local_rank",  # rank\n
    +     default=int(ENV-1)),  # none\n    type=int,\n)\n
parser.add_argument("--local_rank",\n                    type=int,  # one\n
    +                     help="x")\n
    => parser.add_argument("--local_rank",\n                    type=int,  # one\n
    +                     default=NONE,\n                    help="x")\n
def f(p):\n    """--local_rank default=0"""\n    p.add_argument("--local_rank", default=0)\n
    => def f(p):\n    """--local_rank default=0"""\n
    +     p.add_argument("--local_rank", default=int(ENV0)))\n
a = s.add_parser("train")\na.add_argument("--local_rank", default=0)\n
    + b.add_argument("--local_rank", default=-1)\n
    => a = s.add_parser("train")\na.add_argument("--local_rank", default=int(ENV0)))\n
    + b.add_argument("--local_rank", default=int(ENV-1)))\n
''',
        NONE=NONE,
        ENV=ENV,
    ),
]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("before, after", LAYOUTS)
def test_comments_layout_and_line_endings_survive(before, after, newline):
    head = "import os" + newline
    assert rewritten(head + before.replace("\n", newline)) == head + after.replace("\n", newline)


LEFT = [
    'parser.add_argument("--rank", default=0, type=int)',
    'parser.add_argument("--ranks", help="--local_rank", default=-1)',
    'parser.add_argument("--local_ranks", default=-1)',
    'parser.add_argument("--local-rank", dest="rank", default=0)',
    'parser.add_argument("--rank", "--local_rank", default=0)',
    '@click.option("--local_rank", default=0)\ndef main(local_rank):\n    pass',
    'flags.DEFINE_integer("local_rank", 0, "add_argument")',
    'parser.add_option("--local_rank", default=0)  # optparse has no add_argument',
    'add_argument("--local_rank", default=0)',
    "# parser.add_argument('--local_rank', default=0)",
    'text = """\nparser.add_argument(\'--local_rank\', default=0)\n"""',
    'subprocess.run(["--local_rank", "0"])  # add_argument',
    "opts.append('--local_rank'); x.add_argument('y', default='--local_rank')",
]


@pytest.mark.parametrize("source", LEFT)
def test_look_alike_is_left_alone_and_not_spoken_of(source):
    left(f"import os\n{source}\n")


ALREADY = [
    'p.add_argument("--local_rank", default=int(os.environ["LOCAL_RANK"]))',
    'p.add_argument("--local_rank", default=os.environ.get("LOCAL_RANK", 0), type=int)',
    'p.add_argument("--local_rank", default=os.getenv("LOCAL_RANK", -1), type=int)',
    'p.add_argument("--local_rank", default=int(os.getenv("RANK", 0)) % 8)',
    'from os import environ\np.add_argument("--local_rank", default=environ.get("LOCAL_RANK"))',
    'rank = int(os.environ.get("LOCAL_RANK", 0))\np.add_argument("--local_rank", default=rank)',
    'e = os.environ\na = e.get("RANK", 0)\nb = int(a)\np.add_argument("--local_rank", default=b)',
    'def f():\n    r = os.environ["LOCAL_RANK"]\n    p.add_argument("--local_rank", default=r)',
    'def f():\n    return os.getenv("LOCAL_RANK")\np.add_argument("--local_rank", default=f())',
]


@pytest.mark.parametrize("source", ALREADY)
def test_default_that_reads_the_environment_is_already_right(source):
    left(f"import os\n{source}\n", state=State.ALREADY)


MAKE = "p = argparse.ArgumentParser()\n"
PARSE = f'{MAKE}p.add_argument("--local_rank", default=-1)\na = p.parse_args()\n'
TAKE = 'a.local_rank = int(os.environ["LOCAL_RANK"])'
INDENTED = PARSE.replace("\n", "\n    ")
IN_FUNCTION = f"def set_up(a):\n    {TAKE}\n"
# what gives the option its value on every path, and the line of that
ASSIGNED = [
    *table(
        r"""
PARSETAKE => 5
PARSEif 'LOCAL_RANK' in os.environ:\n    TAKE => 6
PARSEif 'RANK' in os.environ and 'WORLD_SIZE' in os.environ.keys():\n    TAKE => 6
PARSEif 'LOCAL_RANK' not in os.environ:\n    pass\nelse:\n    TAKE => 8
PARSEif x and 'RANK' not in os.environ:\n    pass\nelif os.getenv('LOCAL_RANK'):\n    TAKE => 8
PARSEif os.environ.get('LOCAL_RANK') is not None:\n    TAKE => 6
from os import environ as e\nPARSEif e.get('LOCAL_RANK') and 'RANK' in e:\n    TAKE => 7
PARSEe = os.environ\nif not e['RANK'] is None:\n    TAKE => 7
PARSEif a.local_rank == -1:\n    TAKE => 6
PARSEtry:\n    TAKE\nexcept KeyError:\n    pass => 6
PARSEif __name__ == '__main__':\n    TAKE => 6
PARSETAKE if "LOCAL_RANK" in os.environ else 0 => 5
PARSEa.local_rank = int(ENVa.local_rank)) => 5
IN_FUNCTIONPARSEset_up(a) => 3
""",
        PARSE=PARSE,
        IN_FUNCTION=IN_FUNCTION,
        TAKE=TAKE,
        ENV=ENV,
    ),
    (f"{IN_FUNCTION}def main():\n    {INDENTED}set_up(a)\nif x:\n    main()", 3),
    (f"def parse():\n    {INDENTED}{TAKE}\n    return a\na = parse()", 6),
]


@pytest.mark.parametrize("source, line", ASSIGNED)
def test_option_that_is_given_the_variable_on_every_path_is_already_right(source, line):
    """T16: what is right already names the line that makes it so."""
    (finding,) = left(f"import os\n{source}\n", state=State.ALREADY)
    assert finding.line == int(line)
    assert "is given LOCAL_RANK" in finding.why


OTHERS = [  # what gives it to something else, or only sometimes
    PARSE + "cfg.local_rank = int(os.environ['LOCAL_RANK'])",
    PARSE + f"if a.slurm:\n    cfg.{TAKE[2:]}",
    PARSE + f"if a.slurm:\n    {TAKE}",
    PARSE + f"if a.use_env and 'LOCAL_RANK' in os.environ:\n    {TAKE}",
    PARSE + f"if a.use_env or 'LOCAL_RANK' in os.environ.copy:\n    pass\nelse:\n    {TAKE}",
    PARSE + f"if 'SLURM_PROCID' in os.environ:\n    {TAKE}",
    PARSE + f"if 'RANK' in os.environ:\n    pass\nelse:\n    {TAKE}",
    PARSE + f"if a.local_rank == 0:\n    {TAKE}",
    PARSE + f"for x in y:\n    {TAKE}",
    PARSE + f"try:\n    start()\n    {TAKE}\nexcept KeyError:\n    pass",
    PARSE + "a.local_rank = int(os.environ['LOCAL_RANK']) if a.use_env else 0",
    PARSE + "a.local_rank = a.rank or int(os.environ['LOCAL_RANK'])",
    PARSE + f"a = change(a)\n{TAKE}",
    PARSE + IN_FUNCTION,
    PARSE + IN_FUNCTION + "if a.distributed:\n    set_up(a)",
    PARSE + IN_FUNCTION.replace("    a.", "    if a.test:\n        return\n    a.") + "set_up(a)",
    PARSE + IN_FUNCTION + "spawn(set_up)",
    PARSE.replace('k",', 'k", dest="localrank",') + TAKE,
]


@pytest.mark.parametrize("source", OTHERS)
def test_option_that_is_not_given_the_variable_on_every_path_is_rewritten(source):
    """T15: another object's attribute, one branch or a further condition do not make the option
    right.
    """
    result = rewritten(f"import os\n{source}\n")
    assert f"default=int({ENV}-1))" in result


# how a default comes by the variable, and on every path?
PATHS = table(r"""
r = int(os.environ["LOCAL_RANK"]) if "LOCAL_RANK" in os.environ else 0 => True
r = int(os.environ["LOCAL_RANK"]) if x else 0 => False
r = 0\nif "LOCAL_RANK" in os.environ:\n    r = int(os.environ["LOCAL_RANK"]) => True
if "LOCAL_RANK" in os.environ:\n    r = int(os.environ["LOCAL_RANK"])\nelse:\n    r = 0 => True
try:\n    r = int(os.environ["LOCAL_RANK"])\nexcept KeyError:\n    r = 0 => True
r = os.environ.get("LOCAL_RANK") or 0\nr = int(r)\nr %= 8 => True
r = 0\nif x:\n    r = int(os.environ["LOCAL_RANK"]) => False
r = int(os.environ["LOCAL_RANK"])\nif x:\n    r = 0 => False
def f():\n    if "RANK" in os.environ:\n        return os.environ["RANK"]\n    return 0\nr = f()
    => True
def f():\n    if x:\n        return os.environ["RANK"]\n    return 0\nr = f() => False
def f():\n    if x:\n        return 0\n    return os.environ["RANK"]\nr = f() => False
def f():\n    print(os.environ)\nr = f() => False
def r():\n    r = os.getenv("LOCAL_RANK")\n    return r\nr = r() => False
class R:\n    rank = os.getenv("LOCAL_RANK")\nr = R.rank => True
""")


@pytest.mark.parametrize("source, certain", PATHS)
def test_default_by_a_variable_is_right_if_every_path_reads_the_environment(source, certain):
    """T15: a variable that reads the environment in one branch only is left to a human."""
    state = State.ALREADY if certain == "True" else State.HUMAN
    left(f'import os\n{source}\np.add_argument("--local_rank", default=r)\n', state=state)


def test_line_that_reads_the_environment_is_named():
    """T16: a default by a variable is right by the line that reads the environment."""
    source = f'import os\nr = {ENV}0)\n\np.add_argument("--local_rank", default=int(r))\n'
    (finding,) = left(source, state=State.ALREADY)
    assert finding.line == 2
    assert finding.why == "the option in line 4 takes its default from the environment"


ADD = 'p.add_argument("--local_rank", default=0)\n'
BACK = [  # around add_argument: the name is a parser before and after
    f"{MAKE}{ADD}p = library.add_arguments(p)\n",
    f"{MAKE}p = library.add_arguments(p)\n{ADD}",
    f"{MAKE}{ADD}p = add(parser=p, x=1)\np = add_more(1, p)\n",
    f"def f(p):\n    {ADD}    p = library.add_arguments(p)\n",
]


@pytest.mark.parametrize("source", BACK)
def test_parser_that_a_library_hands_back_is_a_parser(source):
    """T11: `parser = library.add_arguments(parser)` does not make the parser uncertain."""
    expected = source.replace("default=0", f"default=int({ENV}0))")
    assert rewritten(f"import os\n{source}") == f"import os\n{expected}"


HUMAN = table(r"""
p = argparse.ArgumentParser()\np = Options(p)\np.add_argument("--local_rank", default=0) => argparse
p = argparse.ArgumentParser()\np = options(x)\np.add_argument("--local_rank", default=0) => argparse
p = options(p)\np.add_argument("--local_rank", default=0) => argparse
p.add_argument("--local_rank", default=rank) => default=rank
rank = 0\np.add_argument("--local_rank", default=rank) => default=rank
p.add_argument("--local_rank", default=get_rank()) => default=get_rank()
p.add_argument("--local_rank", default=argparse.SUPPRESS) => SUPPRESS
p.add_argument("--local_rank", type=int, default="none") => not a number
p.add_argument("--local_rank", default=0.5) => default=0.5
p.add_argument("--local_rank", default=True) => default=True
p.add_argument("--local_rank", **options) => * or **
p.add_argument(*names, "--local_rank", default=0) => * or **
p.add_argument("--local_rank", nargs="?", default=0) => nargs
p.add_argument("--local_rank", action="append", default=0) => action
p.add_argument("--local_rank", dest="gpu", default=0) => called gpu
p.add_argument("--gpu", "--local_rank", default=0) => called gpu
p.add_argument("--local_rank", dest=DEST, default=0) => dest
p.add_argument("--local_rank", required=wanted) => required=wanted
p.add_argument("--local_rank", required=True, default=int(os.environ["LOCAL_RANK"])) => required
p.add_argument("--local_rank", default=0)\np.set_defaults(local_rank=3) => set_defaults
p = Options()\np.add_argument("--local_rank", default=0) => argparse
p.add_argument("--local_rank", 0, "the rank", default=0, env="X") => argparse
p.add_argument("--local_rank", required=  # yes\nTrue) => comment
print(f"{p.add_argument('--local_rank', default=0)}") => f-string
""")


@pytest.mark.parametrize("source, why", HUMAN)
def test_uncertain_option_is_left_to_a_human_who_is_told_why(source, why):
    (finding,) = left(f"import os\n{source}\n", state=State.HUMAN)
    assert why in finding.why
    assert "add_argument" in source.split("\n")[finding.line - 2]


# import os

NEW = f'p.add_argument("--local_rank", default=int({ENV}0)))\n'
# what stands before the option, before and after
IMPORTS = [
    *table(r'''
 => import os\n
x = 1\n => import os\nx = 1\n
#!/usr/bin/env python\n# -*- coding: utf-8 -*-\n
    => #!/usr/bin/env python\n# -*- coding: utf-8 -*-\nimport os\n
# A licence.\n\n# About x.\nx = 1\n => # A licence.\n\n# About x.\nimport os\nx = 1\n
"""About."""\n => """About."""\nimport os\n
"""About."""\n\nx = 1\n => """About."""\nimport os\n\nx = 1\n
"""About\nit."""\n\nimport torch\n => """About\nit."""\n\nimport os\nimport torch\n
from __future__ import annotations\n => from __future__ import annotations\nimport os\n
"""About."""\nfrom __future__ import annotations\nfrom __future__ import division\n\nimport sys\n
    => """About."""\nfrom __future__ import annotations\nfrom __future__ import division\n
    + \nimport os\nimport sys\n
import argparse\nimport torch\n => import argparse\nimport os\nimport torch\n
import argparse, time\nimport torch\n => import argparse, time\nimport os\nimport torch\n
import argparse\n\nimport torch\n => import argparse\nimport os\n\nimport torch\n
import argparse\nfrom time import time\n => import argparse\nimport os\nfrom time import time\n
from time import time\nimport torch\n => import os\nfrom time import time\nimport torch\n
import torch  # heavy\n => import os\nimport torch  # heavy\n
"""About."""\n# torch\nimport torch\n => """About."""\nimport os\n# torch\nimport torch\n
import argparse; x = 1\nimport time\n => import argparse; x = 1\nimport os\nimport time\n
import os.path as osp\n => import os\nimport os.path as osp\n
from os import path\n => import os\nfrom os import path\n
from os.path import join\n => import os\nfrom os.path import join\n
def f():\n    import os\n    return os\n => import os\ndef f():\n    import os\n    return os\n
@wraps\ndef f():\n    os = 1\n => import os\n@wraps\ndef f():\n    os = 1\n
class A:\n    os = 1\n => import os\nclass A:\n    os = 1\n
x = [os for os in y]\n => import os\nx = [os for os in y]\n
x.os = 1\n => import os\nx.os = 1\n
''')
]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("before, after", IMPORTS)
def test_missing_import_goes_where_an_import_may_stand(before, after, newline):
    source = (before + ADD).replace("\n", newline)
    assert rewritten(source) == (after + NEW).replace("\n", newline)
    compile(rewritten(source), "script", "exec")


BOUND = [  # what binds os, and what the environment is called then
    ("import os\n", "os.environ"),
    ("import sys, os\n", "os.environ"),
    ("import os as _os\n", "_os.environ"),
    ("import os.path\n", "os.environ"),
    ("import os\nimport os.path\n", "os.environ"),
    ("from os import environ\n", "environ"),
    ("from os import path, environ as env\n", "env"),
    ("try:\n    import os\nexcept ImportError:\n    os = None\n", "os.environ"),
    ("try:\n    import os\nfinally:\n    pass\n", "os.environ"),
    ("import os\ndef f(os):\n    pass\n", "os.environ"),
]


@pytest.mark.parametrize(
    "place", ["", "def g():\n    ", "if x:\n    ", "class A:\n    def g(self):\n        "]
)
@pytest.mark.parametrize("head, environ", BOUND)
def test_name_that_is_bound_already_is_used_and_not_bound_again(head, environ, place):
    result = rewritten(head + place + ADD)
    assert result == head + place + NEW.replace("os.environ", environ)
    without = ADD.replace("default=0", "type=int")  # its new default asks for the name twice
    assert environ in rewritten(head + place + without)


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n    import os\n    " + ADD,
        "def f():\n    import os as o\n    if x:\n        " + ADD,
        "def f():\n    import os\n    def g():\n        " + ADD,
        "def f():\n    " + ADD + "import os\n",
        "if x:\n    import os\n    " + ADD,
        "def f():\n    global os\n    os = 1\ndef g():\n    import os\n    " + ADD,
    ],
)
def test_import_in_a_function_serves_that_function(source):
    assert rewritten(source).count("import os") == 1


@pytest.mark.parametrize(
    "source",
    [
        ADD + "import os\n",
        "os = 1\n" + ADD,
        "def os(): pass\n" + ADD,
        "from six.moves import os\n" + ADD,
        "if x:\n    import os\n" + ADD,
        "if x:\n    import os\ndef f():\n    " + ADD,
        "import os\nos = None\n" + ADD,
        "import os\ndel os\n" + ADD,
        "def f(os):\n    " + ADD,
        "def f():\n    " + ADD + "    import os\n",
        "import os\ndef f():\n    " + ADD + "    import os\n",
        "for os in x:\n    " + ADD,
        "with x as os:\n    " + ADD,
        "def f():\n    global os\n    import os\n" + ADD,
        "import os\ndef f():\n    global os\n    os = 1\n" + ADD,
        "try:\n    x()\n    import os\nexcept E:\n    os = None\n" + ADD,
        '"""x"""; ' + ADD,
    ],
)
def test_name_that_is_not_certainly_the_module_is_left_to_a_human(source):
    (finding,) = left(source, state=State.HUMAN)
    assert "os" in finding.why


def test_several_options_share_one_import():
    assert rewritten(ADD * 3) == "import os\n" + NEW * 3


# both spellings

SPELLINGS = table(
    r"""
"--local_rank", default=0 => "--local_rank", "--local-rank", default=int(ENV0))
'--local-rank', default=0 => '--local-rank', '--local_rank', default=int(ENV0))
"--local_rank" => "--local_rank", "--local-rank", default=os.environ.get("LOCAL_RANK")
"--local_rank", default=os.environ["LOCAL_RANK"]
    => "--local_rank", "--local-rank", default=os.environ["LOCAL_RANK"]
"--local_rank", "--local-rank", default=0 => "--local_rank", "--local-rank", default=int(ENV0))
""",
    ENV=ENV,
)


@pytest.mark.parametrize("before, after", SPELLINGS)
def test_second_spelling_is_added_where_it_is_asked_for(before, after):
    source = f"import os\np.add_argument({before})\n"
    assert rewritten(source, both_spellings=True) == source.replace(before, after)


def test_spelling_that_another_option_of_the_script_has_is_not_added():
    # argparse refuses an option that it has already.
    source = f"import os\n{ADD}" + ADD.replace("_rank", "-rank")
    assert rewritten(source, both_spellings=True) == rewritten(source)


# What the result does

SCRIPT = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument(%s)
print(repr(parser.parse_args().local_rank))
"""
INT = [call for call, _ in CALLS if "type=int" in call and "dest" not in call]


def start(source: str, *flags, **env) -> str:
    clean = {name: value for name, value in os.environ.items() if name != "LOCAL_RANK"}
    done = subprocess.run(
        [sys.executable, "-c", source, *flags], env=clean | env, capture_output=True, text=True
    )
    return done.stdout.strip() if done.returncode == 0 else f"exit {done.returncode}"


@pytest.mark.parametrize("call", INT[::4])
def test_result_takes_the_variable_then_the_flag_and_starts_without_either(call):
    new = rewritten(SCRIPT % call)
    spelled = "--local_rank" if "_rank" in call else "--local-rank"
    assert start(new, LOCAL_RANK="3") == "3"
    assert start(new, spelled, "2") == "2"
    assert start(new, "--help").startswith("usage")
    alone = start(SCRIPT % call)
    assert start(new) == (("1" if "default=1" in call else "0") if alone == "exit 2" else alone)
