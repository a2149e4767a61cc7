"""`--local_rank` in scripts that are not ours: small inputs, and the exact bytes that they become."""

import os
import subprocess
import sys

import pytest

from patcher.rewrite.core import rewrite
from patcher.rewrite.sites import State

ENV = 'os.environ.get("LOCAL_RANK", '
NONE = 'int(os.environ["LOCAL_RANK"]) if "LOCAL_RANK" in os.environ else None'


def run(source: str, both_spellings: bool = False):
    options = {"local_rank_from_env": {"both_spellings": both_spellings}}
    return rewrite("script.py", source.encode(), ["local_rank_from_env"], options)


def rewritten(source: str, **options) -> str:
    """The new text, which has to be one, twice the same, and with nothing left to a human."""
    done = run(source, **options)
    assert done.problem is None
    assert {finding.state for finding in done.findings} == {State.REWRITTEN}
    again = run(done.after.decode(), **options)
    assert again.after == done.after
    assert {finding.state for finding in again.findings} == {State.ALREADY}
    return done.after.decode()


CALLS = [  # what is passed to add_argument, before and after
    ('"--local_rank", type=int, default=-1', f'"--local_rank", type=int, default=int({ENV}-1))'),
    ("'--local_rank', default=-1, type=int", f"'--local_rank', default=int({ENV}-1)), type=int"),
    (
        '"--local_rank", default=0, type=int, help="x"',
        f'"--local_rank", default=int({ENV}0)), type=int, help="x"',
    ),
    ('"--local_rank", type=int, default=1', f'"--local_rank", type=int, default=int({ENV}1))'),
    ('"--local_rank", type=int, default=- 1', f'"--local_rank", type=int, default=int({ENV}- 1))'),
    ('"--local_rank", default=-1', f'"--local_rank", default=int({ENV}-1))'),
    (
        "'''--local_rank''', default=-1, type=int",
        f"'''--local_rank''', default=int({ENV}-1)), type=int",
    ),
    ('r"--local_rank", type=int, default=0', f'r"--local_rank", type=int, default=int({ENV}0))'),
    ('"--local-rank", type=int, default=0', f'"--local-rank", type=int, default=int({ENV}0))'),
    (
        '"--local_rank", "--local-rank", type=int, default=0',
        f'"--local_rank", "--local-rank", type=int, default=int({ENV}0))',
    ),
    (
        '"--local-rank", "--local_rank", default=0, type=int',
        f'"--local-rank", "--local_rank", default=int({ENV}0)), type=int',
    ),
    (
        '"-r", "--local_rank", default=0, type=int',
        f'"-r", "--local_rank", default=int({ENV}0)), type=int',
    ),
    (
        '"--local_rank", dest="local_rank", default=0',
        f'"--local_rank", dest="local_rank", default=int({ENV}0))',
    ),
    (
        '"--local_rank", dest="localrank", default=0',
        f'"--local_rank", dest="localrank", default=int({ENV}0))',
    ),
    (
        '"--local_rank", action="store", default=0',
        f'"--local_rank", action="store", default=int({ENV}0))',
    ),
    # nothing to go by without a launcher: as before, it is None then
    ('"--local_rank", type=int, default=None', f'"--local_rank", type=int, default={NONE}'),
    ('"--local_rank", type=int', f'"--local_rank", type=int, default={NONE}'),
    ('"--local_rank", type=int, ', f'"--local_rank", type=int, default={NONE}, '),
    ('"--local_rank"', '"--local_rank", default=os.environ.get("LOCAL_RANK")'),
    ('"--local_rank", default=None', '"--local_rank", default=os.environ.get("LOCAL_RANK")'),
    # required: torchrun passes nothing, and a process alone has local rank 0
    ('"--local_rank", type=int, required=True', f'"--local_rank", type=int, default=int({ENV}0))'),
    (
        '"--local_rank", required=True, type=int, help="x"',
        f'"--local_rank", default=int({ENV}0)), type=int, help="x"',
    ),
    ('"--local_rank", required=True', f'"--local_rank", default={ENV}"0")'),
    (
        '"--local_rank", type=int, default=1, required=True',
        f'"--local_rank", type=int, default=int({ENV}1)), required=False',
    ),
    (
        '"--local_rank", type=int, required=False, default=0',
        f'"--local_rank", type=int, required=False, default=int({ENV}0))',
    ),
    # the variable is a string, and becomes what a flag becomes
    ('"--local_rank", type=int, default="0"', f'"--local_rank", type=int, default=int({ENV}"0"))'),
    ('"--local_rank", default="0"', f'"--local_rank", default={ENV}"0")'),
    ('"--local_rank", type=str, default=0', f'"--local_rank", type=str, default={ENV}0)'),
    (
        '"--local_rank", type=lambda s: int(s), default=0',
        f'"--local_rank", type=lambda s: int(s), default={ENV}0)',
    ),
]


@pytest.mark.parametrize("receiver", ["parser", "p", "self.parser", "get_parser()", "group"])
@pytest.mark.parametrize("before, after", CALLS)
def test_option_takes_its_default_from_the_launcher(receiver, before, after):
    source = f"import os\n{receiver}.add_argument({before})  # rank\nx = 1\n"
    assert rewritten(source) == source.replace(before, after)


LAYOUTS = [
    (
        'parser.add_argument(\n    "--local_rank",  # rank\n    default=-1,  # none\n    type=int,\n)\n',
        f'parser.add_argument(\n    "--local_rank",  # rank\n    default=int({ENV}-1)),  # none\n    type=int,\n)\n',
    ),
    (
        'parser.add_argument("--local_rank",\n                    type=int,  # one\n                    help="x")\n',
        'parser.add_argument("--local_rank",\n                    type=int,  # one\n'
        f'                    default={NONE},\n                    help="x")\n',
    ),
    (
        'parser.add_argument(\n    "--local_rank",\n    # a number\n    type=int\n)\n',
        f'parser.add_argument(\n    "--local_rank",\n    # a number\n    type=int, default={NONE}\n)\n',
    ),
    (
        'parser.add_argument(\n\t"--local_rank", type=int, default=(  # lone\n\t\t-1),\n)\n',
        f'parser.add_argument(\n\t"--local_rank", type=int, default=(  # lone\n\t\tint({ENV}-1))),\n)\n',
    ),
    (
        'parser.add_argument("--local_rank",\\\n    default=0, \\\n    type=int)\n',
        f'parser.add_argument("--local_rank",\\\n    default=int({ENV}0)), \\\n    type=int)\n',
    ),
    (
        'x = "ä"; parser.add_argument("--local_rank", help="Gerät ü", default=0)  # é\n',
        f'x = "ä"; parser.add_argument("--local_rank", help="Gerät ü", default=int({ENV}0)))  # é\n',
    ),
    (
        'add = parser.add_argument\nadd("--local_rank", default=0)\n',
        f'add = parser.add_argument\nadd("--local_rank", default=int({ENV}0)))\n',
    ),
    (
        'p.add_argument_group("g").add_argument("--local_rank", default=0)\n',
        f'p.add_argument_group("g").add_argument("--local_rank", default=int({ENV}0)))\n',
    ),
    (
        'def options(parser):\n    """--local_rank default=0"""\n    parser.add_argument("--local_rank", default=0)\n',
        'def options(parser):\n    """--local_rank default=0"""\n'
        f'    parser.add_argument("--local_rank", default=int({ENV}0)))\n',
    ),
    (
        'sub = subs.add_parser("train")\nsub.add_argument("--local_rank", default=0)\n'
        'other.add_argument("--local_rank", default=-1)\n',
        f'sub = subs.add_parser("train")\nsub.add_argument("--local_rank", default=int({ENV}0)))\n'
        f'other.add_argument("--local_rank", default=int({ENV}-1)))\n',
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
    done = run(f"import os\n{source}\n")
    assert done.after == done.before
    assert not done.findings
    assert done.problem is None


ALREADY = [
    'p.add_argument("--local_rank", default=int(os.environ["LOCAL_RANK"]))',
    'p.add_argument("--local_rank", default=os.environ.get("LOCAL_RANK", 0), type=int)',
    'p.add_argument("--local_rank", default=os.getenv("LOCAL_RANK", -1), type=int)',
    'p.add_argument("--local_rank", default=int(os.getenv("RANK", 0)) % 8)',
    'from os import environ\np.add_argument("--local_rank", default=environ.get("LOCAL_RANK"))',
    'rank = int(os.environ.get("LOCAL_RANK", 0))\np.add_argument("--local_rank", default=rank)',
    'e = os.environ\nrank = e.get("LOCAL_RANK", 0)\nlocal = int(rank)\np.add_argument("--local_rank", default=local)',
    'def f():\n    r = int(os.environ["LOCAL_RANK"])\n    p.add_argument("--local_rank", default=r)',
    'def rank():\n    return os.getenv("LOCAL_RANK")\np.add_argument("--local_rank", default=rank())',
]


@pytest.mark.parametrize("source", ALREADY)
def test_default_that_reads_the_environment_is_already_right(source):
    done = run(f"import os\n{source}\n")
    assert done.after == done.before
    assert [finding.state for finding in done.findings] == [State.ALREADY]


PARSE = 'p = argparse.ArgumentParser()\np.add_argument("--local_rank", default=-1)\na = p.parse_args()\n'
TAKE = 'a.local_rank = int(os.environ["LOCAL_RANK"])'
IN_FUNCTION = f"def set_up(a):\n    {TAKE}\n"
ASSIGNED = [  # what gives the option its value on every path, and the line of that
    (PARSE + TAKE, 5),
    (PARSE + f"if 'LOCAL_RANK' in os.environ:\n    {TAKE}", 6),
    (PARSE + f"if 'RANK' in os.environ and 'WORLD_SIZE' in os.environ.keys():\n    {TAKE}", 6),
    (PARSE + f"if 'LOCAL_RANK' not in os.environ:\n    pass\nelse:\n    {TAKE}", 8),
    (
        PARSE
        + f"if x and 'RANK' not in os.environ:\n    pass\nelif os.getenv('LOCAL_RANK'):\n    {TAKE}",
        8,
    ),
    (PARSE + f"if os.environ.get('LOCAL_RANK') is not None:\n    {TAKE}", 6),
    (
        "from os import environ as e\n"
        + PARSE
        + f"if e.get('LOCAL_RANK') and 'RANK' in e:\n    {TAKE}",
        7,
    ),
    (PARSE + f"e = os.environ\nif not e['RANK'] is None:\n    {TAKE}", 7),
    (PARSE + f"if a.local_rank == -1:\n    {TAKE}", 6),
    (PARSE + f"try:\n    {TAKE}\nexcept KeyError:\n    pass", 6),
    (PARSE + f"if __name__ == '__main__':\n    {TAKE}", 6),
    (
        PARSE + 'a.local_rank = int(os.environ["LOCAL_RANK"]) if "LOCAL_RANK" in os.environ else 0',
        5,
    ),
    (PARSE + 'a.local_rank = int(os.environ.get("LOCAL_RANK", a.local_rank))', 5),
    (IN_FUNCTION + PARSE + "set_up(a)", 3),
    (
        IN_FUNCTION
        + "def main():\n    "
        + PARSE.replace("\n", "\n    ")
        + "set_up(a)\nif x:\n    main()",
        3,
    ),
    (
        "def parse():\n    " + PARSE.replace("\n", "\n    ") + f"{TAKE}\n    return a\na = parse()",
        6,
    ),
]


@pytest.mark.parametrize("source, line", ASSIGNED)
def test_option_that_is_given_the_variable_on_every_path_is_already_right(source, line):
    """T16: what is right already names the line that makes it so."""
    done = run(f"import os\n{source}\n")
    assert done.after == done.before
    (finding,) = done.findings
    assert (finding.state, finding.line) == (State.ALREADY, line)
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
    """T15: another object's attribute, one branch or a further condition do not make the option right."""
    result = rewritten(f"import os\n{source}\n")
    assert f"default=int({ENV}-1))" in result


PATHS = [  # how a default comes by the variable, and on every path?
    ('r = int(os.environ["LOCAL_RANK"]) if "LOCAL_RANK" in os.environ else 0', True),
    ('r = int(os.environ["LOCAL_RANK"]) if x else 0', False),
    ('r = 0\nif "LOCAL_RANK" in os.environ:\n    r = int(os.environ["LOCAL_RANK"])', True),
    (
        'if "LOCAL_RANK" in os.environ:\n    r = int(os.environ["LOCAL_RANK"])\nelse:\n    r = 0',
        True,
    ),
    ('try:\n    r = int(os.environ["LOCAL_RANK"])\nexcept KeyError:\n    r = 0', True),
    ('r = os.environ.get("LOCAL_RANK") or 0\nr = int(r)\nr %= 8', True),
    ('r = 0\nif x:\n    r = int(os.environ["LOCAL_RANK"])', False),
    ('r = int(os.environ["LOCAL_RANK"])\nif x:\n    r = 0', False),
    (
        'def f():\n    if "RANK" in os.environ:\n        return os.environ["RANK"]\n    return 0\nr = f()',
        True,
    ),
    ('def f():\n    if x:\n        return os.environ["RANK"]\n    return 0\nr = f()', False),
    ('def f():\n    if x:\n        return 0\n    return os.environ["RANK"]\nr = f()', False),
    ("def f():\n    print(os.environ)\nr = f()", False),
    ('def r():\n    r = os.getenv("LOCAL_RANK")\n    return r\nr = r()', False),
    ('class R:\n    rank = os.getenv("LOCAL_RANK")\nr = R.rank', True),
]


@pytest.mark.parametrize("source, certain", PATHS)
def test_default_by_a_variable_is_right_if_every_path_reads_the_environment(source, certain):
    """T15: a variable that reads the environment in one branch only is left to a human."""
    done = run(f'import os\n{source}\np.add_argument("--local_rank", default=r)\n')
    assert done.after == done.before
    assert [finding.state for finding in done.findings] == [
        State.ALREADY if certain else State.HUMAN
    ]


def test_line_that_reads_the_environment_is_named():
    """T16: a default by a variable is right by the line that reads the environment, not by its own."""
    source = 'import os\nr = os.environ.get("LOCAL_RANK", 0)\n\np.add_argument("--local_rank", default=int(r))\n'
    (finding,) = run(source).findings
    assert (finding.line, finding.why) == (
        2,
        "the option in line 4 takes its default from the environment",
    )


MAKE = "import os\np = argparse.ArgumentParser()\n"
BACK = [  # around add_argument: the name is a parser before and after
    MAKE + 'p.add_argument("--local_rank", default=0)\np = library.add_arguments(p)\n',
    MAKE + 'p = library.add_arguments(p)\np.add_argument("--local_rank", default=0)\n',
    MAKE
    + 'p.add_argument("--local_rank", default=0)\np = add(parser=p, x=1)\np = add_more(1, p)\n',
    'import os\ndef f(p):\n    p.add_argument("--local_rank", default=0)\n    p = library.add_arguments(p)\n',
]


@pytest.mark.parametrize("source", BACK)
def test_parser_that_a_library_hands_back_is_a_parser(source):
    """T11: `parser = library.add_arguments(parser)` does not make the parser uncertain."""
    assert rewritten(source) == source.replace("default=0", f"default=int({ENV}0))")


HUMAN = [
    (
        'p = argparse.ArgumentParser()\np = Options(p)\np.add_argument("--local_rank", default=0)',
        "argparse",
    ),
    (
        'p = argparse.ArgumentParser()\np = options(x)\np.add_argument("--local_rank", default=0)',
        "argparse",
    ),
    ('p = options(p)\np.add_argument("--local_rank", default=0)', "argparse"),
    ('p.add_argument("--local_rank", default=rank)', "default=rank"),
    ('rank = 0\np.add_argument("--local_rank", default=rank)', "default=rank"),
    ('p.add_argument("--local_rank", default=get_rank())', "default=get_rank()"),
    ('p.add_argument("--local_rank", default=argparse.SUPPRESS)', "SUPPRESS"),
    ('p.add_argument("--local_rank", type=int, default="none")', "not a number"),
    ('p.add_argument("--local_rank", default=0.5)', "default=0.5"),
    ('p.add_argument("--local_rank", default=True)', "default=True"),
    ('p.add_argument("--local_rank", **options)', "* or **"),
    ('p.add_argument(*names, "--local_rank", default=0)', "* or **"),
    ('p.add_argument("--local_rank", nargs="?", default=0)', "nargs"),
    ('p.add_argument("--local_rank", action="append", default=0)', "action"),
    ('p.add_argument("--local_rank", dest="gpu", default=0)', "called gpu"),
    ('p.add_argument("--gpu", "--local_rank", default=0)', "called gpu"),
    ('p.add_argument("--local_rank", dest=DEST, default=0)', "dest"),
    ('p.add_argument("--local_rank", required=wanted)', "required=wanted"),
    (
        'p.add_argument("--local_rank", required=True, default=int(os.environ["LOCAL_RANK"]))',
        "required",
    ),
    ('p.add_argument("--local_rank", default=0)\np.set_defaults(local_rank=3)', "set_defaults"),
    ('p = Options()\np.add_argument("--local_rank", default=0)', "argparse"),
    ('p.add_argument("--local_rank", 0, "the rank", default=0, env="X")', "argparse"),
    ('p.add_argument("--local_rank", required=  # yes\nTrue)', "comment"),
    ("print(f\"{p.add_argument('--local_rank', default=0)}\")", "f-string"),
]


@pytest.mark.parametrize("source, why", HUMAN)
def test_uncertain_option_is_left_to_a_human_who_is_told_why(source, why):
    done = run(f"import os\n{source}\n")
    assert done.after == done.before
    (finding,) = done.findings
    assert finding.state is State.HUMAN
    assert why in finding.why
    assert "add_argument" in source.split("\n")[finding.line - 2]


# import os

OPTION = 'p.add_argument("--local_rank", default=0)\n'
NEW = f'p.add_argument("--local_rank", default=int({ENV}0)))\n'
IMPORTS = [  # what stands before the option, before and after
    ("", "import os\n"),
    ("x = 1\n", "import os\nx = 1\n"),
    (
        "#!/usr/bin/env python\n# -*- coding: utf-8 -*-\n",
        "#!/usr/bin/env python\n# -*- coding: utf-8 -*-\nimport os\n",
    ),
    ("# A licence.\n\n# About x.\nx = 1\n", "# A licence.\n\n# About x.\nimport os\nx = 1\n"),
    ('"""About."""\n', '"""About."""\nimport os\n'),
    ('"""About."""\n\nx = 1\n', '"""About."""\nimport os\n\nx = 1\n'),
    ('"""About\nit."""\n\nimport torch\n', '"""About\nit."""\n\nimport os\nimport torch\n'),
    ("from __future__ import annotations\n", "from __future__ import annotations\nimport os\n"),
    (
        '"""About."""\nfrom __future__ import annotations\nfrom __future__ import division\n\nimport sys\n',
        '"""About."""\nfrom __future__ import annotations\nfrom __future__ import division\n\nimport os\nimport sys\n',
    ),
    ("import argparse\nimport torch\n", "import argparse\nimport os\nimport torch\n"),
    ("import argparse, time\nimport torch\n", "import argparse, time\nimport os\nimport torch\n"),
    ("import argparse\n\nimport torch\n", "import argparse\nimport os\n\nimport torch\n"),
    (
        "import argparse\nfrom time import time\n",
        "import argparse\nimport os\nfrom time import time\n",
    ),
    ("from time import time\nimport torch\n", "import os\nfrom time import time\nimport torch\n"),
    ("import torch  # heavy\n", "import os\nimport torch  # heavy\n"),
    ('"""About."""\n# torch\nimport torch\n', '"""About."""\nimport os\n# torch\nimport torch\n'),
    ("import argparse; x = 1\nimport time\n", "import argparse; x = 1\nimport os\nimport time\n"),
    ("import os.path as osp\n", "import os\nimport os.path as osp\n"),
    ("from os import path\n", "import os\nfrom os import path\n"),
    ("from os.path import join\n", "import os\nfrom os.path import join\n"),
    (
        "def f():\n    import os\n    return os\n",
        "import os\ndef f():\n    import os\n    return os\n",
    ),
    ("@wraps\ndef f():\n    os = 1\n", "import os\n@wraps\ndef f():\n    os = 1\n"),
    ("class A:\n    os = 1\n", "import os\nclass A:\n    os = 1\n"),
    ("x = [os for os in y]\n", "import os\nx = [os for os in y]\n"),
    ("x.os = 1\n", "import os\nx.os = 1\n"),
]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("before, after", IMPORTS)
def test_missing_import_goes_where_an_import_may_stand(before, after, newline):
    source = (before + OPTION).replace("\n", newline)
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
    result = rewritten(head + place + OPTION)
    assert result == head + place + NEW.replace("os.environ", environ)
    without = OPTION.replace("default=0", "type=int")  # its new default asks for the name twice
    assert environ in rewritten(head + place + without)


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n    import os\n    " + OPTION,
        "def f():\n    import os as o\n    if x:\n        " + OPTION,
        "def f():\n    import os\n    def g():\n        " + OPTION,
        "def f():\n    " + OPTION + "import os\n",
        "if x:\n    import os\n    " + OPTION,
        "def f():\n    global os\n    os = 1\ndef g():\n    import os\n    " + OPTION,
    ],
)
def test_import_in_a_function_serves_that_function(source):
    assert rewritten(source).count("import os") == 1


@pytest.mark.parametrize(
    "source",
    [
        OPTION + "import os\n",
        "os = 1\n" + OPTION,
        "def os(): pass\n" + OPTION,
        "from six.moves import os\n" + OPTION,
        "if x:\n    import os\n" + OPTION,
        "if x:\n    import os\ndef f():\n    " + OPTION,
        "import os\nos = None\n" + OPTION,
        "import os\ndel os\n" + OPTION,
        "def f(os):\n    " + OPTION,
        "def f():\n    " + OPTION + "    import os\n",
        "import os\ndef f():\n    " + OPTION + "    import os\n",
        "for os in x:\n    " + OPTION,
        "with x as os:\n    " + OPTION,
        "def f():\n    global os\n    import os\n" + OPTION,
        "import os\ndef f():\n    global os\n    os = 1\n" + OPTION,
        "try:\n    x()\n    import os\nexcept E:\n    os = None\n" + OPTION,
        '"""x"""; ' + OPTION,
    ],
)
def test_name_that_is_not_certainly_the_module_is_left_to_a_human(source):
    done = run(source)
    assert done.after == done.before
    (finding,) = done.findings
    assert finding.state is State.HUMAN
    assert "os" in finding.why


def test_several_options_share_one_import():
    assert rewritten(OPTION * 3) == "import os\n" + NEW * 3


# both spellings

SPELLINGS = [
    ('"--local_rank", default=0', f'"--local_rank", "--local-rank", default=int({ENV}0))'),
    ("'--local-rank', default=0", f"'--local-rank', '--local_rank', default=int({ENV}0))"),
    ('"--local_rank"', '"--local_rank", "--local-rank", default=os.environ.get("LOCAL_RANK")'),
    (
        '"--local_rank", default=os.environ["LOCAL_RANK"]',
        '"--local_rank", "--local-rank", default=os.environ["LOCAL_RANK"]',
    ),
    (
        '"--local_rank", "--local-rank", default=0',
        f'"--local_rank", "--local-rank", default=int({ENV}0))',
    ),
]


@pytest.mark.parametrize("before, after", SPELLINGS)
def test_second_spelling_is_added_where_it_is_asked_for(before, after):
    source = f"import os\np.add_argument({before})\n"
    assert rewritten(source, both_spellings=True) == source.replace(before, after)


def test_spelling_that_another_option_of_the_script_has_is_not_added():
    # argparse refuses an option that it has already.
    source = 'import os\np.add_argument("--local_rank", default=0)\np.add_argument("--local-rank", default=0)\n'
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
