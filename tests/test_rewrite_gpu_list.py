"""GPU lists in other scripts: small inputs, and the exact bytes that they become."""

import sys
import types

import pytest
import rewriting
from rewriting import table

from patcher.rewrite.sites import State

HEAD = """\
import argparse
import torch
import torch.nn as nn
parser = argparse.ArgumentParser()
parser.add_argument('-x')
args = parser.parse_args()
"""
OPTION = """\
parser.add_argument('--gpus', default={}, metavar='IDS',
                    type=lambda ids: [int(i) for i in ids.split(',')],
                    help='GPUs to use, such as 0,1: the first one holds the model and gathers \
the outputs')
"""
CURRENT = "if torch.cuda.is_available():\n    torch.cuda.set_device(args.gpus[0])\n"


def with_option(ids: str, current: bool = False) -> str:
    """The head as it becomes."""
    head = HEAD.replace("args =", OPTION.format(ids) + "args =")
    return head + (CURRENT if current else "")


def left(source: str, state: State | None = None):
    return rewriting.left(source, "configurable_gpus", state=state)


def rewritten(source: str) -> str:
    return rewriting.rewritten(source, "configurable_gpus")


# code, its ids, and what takes its place
LISTS = table(r"""
[0, 1, 2, 3] => [0, 1, 2, 3] => args.gpus
[0,1] => [0, 1] => args.gpus
[ 0, 1, ] => [0, 1] => args.gpus
[\n    0,  # first\n    1,\n] => [\n    0,  # first\n    1,\n] => args.gpus
(0,  # first\n 1) => list((0,  # first\n 1)) => tuple(args.gpus)
[\n    0,\n    1,\n] => [0, 1] => args.gpus
(0, 1) => [0, 1] => tuple(args.gpus)
range(4) => [0, 1, 2, 3] => args.gpus
range(1, 3) => [1, 2] => args.gpus
list(range(2)) => [0, 1] => args.gpus
tuple(range(2)) => [0, 1] => tuple(args.gpus)
[2, 3] => [2, 3] => args.gpus
[3, 1] => [3, 1] => args.gpus
""")
USES = [
    "gpus = {}\n",
    "gpus = {}  # all of them\nmodel = nn.DataParallel(model, device_ids=gpus)\n",
    "gpu_ids = {}\nmodel = nn.DataParallel(model, gpu_ids, gpu_ids[0])\n",
    "device_ids: list = {}\n",
    "GPU_LIST = {}\n",
    "train_gpus = {}\n",
    "deviceIds = {}\n",
    "cuda_ids = {}\n",
    "ids = {}\nmodel = nn.DataParallel(model, device_ids=ids)\n",
    "cards = {}\nmodel = torch.nn.DataParallel(model, cards).to(x)\n",
    "model = nn.DataParallel(model, device_ids={})\n",
    "model = nn.DataParallel(model, {})\n",
    "from torch.nn import DataParallel as DP\nmodel = DP(model, {})\n",
    "wrap = nn.DataParallel\nmodel = wrap(model, device_ids={})\n",
    "out = nn.parallel.data_parallel(model, x, {})\n",
    "model = BalancedDataParallel(model, device_ids={}, dim=0)\n",
    "if x:\n    model = nn.DataParallel(model, device_ids={})\n",
    "def main():\n    return nn.DataParallel(model, device_ids={})\n",
    "gpus = {}\nmodel.cuda(gpus[0])\nout = model(x).to('cuda:%d' % gpus[0])\n",
]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("code, ids, new", LISTS)
def test_list_comes_from_an_option_whose_default_it_is(code, ids, new, use, newline):
    source = (HEAD + use.format(code)).replace("\n", newline)
    expected = (with_option(ids) + use.format(new)).replace("\n", newline)
    assert rewritten(source) == expected


# what follows the head, and what it becomes
HOMES = [
    *table(r"""
gpus = [0, 1]\nmodel.cuda(0)\n => gpus = args.gpus\nmodel.cuda(args.gpus[0])\n
gpus = [2, 3]\ntorch.cuda.set_device(2)\n => gpus = args.gpus\ntorch.cuda.set_device(args.gpus[0])\n
nn.DataParallel(m, device_ids=[0, 1], output_device=0)\n
    => nn.DataParallel(m, device_ids=args.gpus, output_device=args.gpus[0])\n
nn.DataParallel(m, [0, 1], 0)\n => nn.DataParallel(m, args.gpus, args.gpus[0])\n
d = torch.device('cuda', 1)\ngpus = [1, 0]\n
    => d = torch.device('cuda', args.gpus[0])\ngpus = args.gpus\n
torch.load(f, map_location='cuda:0')\ngpus = [0, 1]\n
    => torch.load(f, map_location="cuda:{}".format(args.gpus[0]))\ngpus = args.gpus\n
def f(m):\n    return m.to('cuda:0')\ngpus = (0, 1)\n
    => def f(m):\n    return m.to("cuda:{}".format(args.gpus[0]))\ngpus = tuple(args.gpus)\n
device = torch.device('cuda:0' if x else 'cpu')  # home\ngpus = [0, 1]\n
    => device = torch.device("cuda:{}".format(args.gpus[0]) if x else 'cpu')  # home\n
    + gpus = args.gpus\n
device = "cuda:2" if x else "cpu"\nnn.DataParallel(m.to(device), [2, 3])\n
    => device = "cuda:{}".format(args.gpus[0]) if x else "cpu"\n
    + nn.DataParallel(m.to(device), args.gpus)\n
gpus = [0, 1]\nm.cuda(gpus[0]).to('cpu')\n => gpus = args.gpus\nm.cuda(gpus[0]).to('cpu')\n
gpus = [2, 3]\ntorch.cuda.set_device(gpus[0])\nm.cuda()\n
    => gpus = args.gpus\ntorch.cuda.set_device(gpus[0])\nm.cuda()\n
gpus = [2, 3]\ntorch.cuda.set_device('cuda:{}'.format(gpus[0]))\nm.cuda()\n
    => gpus = args.gpus\ntorch.cuda.set_device('cuda:{}'.format(gpus[0]))\nm.cuda()\n
""")
]


@pytest.mark.parametrize("before, after", HOMES)
def test_home_device_follows_the_list(before, after):
    first = "[2, 3]" if "[2, 3]" in before else "[1, 0]" if "[1, 0]" in before else "[0, 1]"
    assert rewritten(HEAD + before) == with_option(first) + after


def test_visible_devices_that_are_set_before_are_no_hindrance():
    head = "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '2,3'\n"
    expected = head + with_option("[0, 1]", current=True) + "m.cuda()\ngpus = args.gpus\n"
    assert rewritten(head + HEAD + "m.cuda()\ngpus = [0, 1]\n") == expected


@pytest.mark.parametrize(
    "use", ["m.cuda()\n", "m.to('cuda')\n", "d = torch.device('cuda' if x else 'cpu')\n"]
)
def test_current_device_is_made_the_home_device_where_the_script_means_it(use):
    source = HEAD + use + "nn.DataParallel(m, device_ids=[0, 1])\n"
    expected = with_option("[0, 1]", current=True) + use
    assert rewritten(source) == expected + "nn.DataParallel(m, device_ids=args.gpus)\n"


LEFT = [
    "gpus = [args.gpu]",
    "gpus = [local_rank]",
    "gpus = [0]",
    "gpus = []",
    "gpus = 2",
    "gpus = None",
    "gpus = range(1)",
    "gpus = range(torch.cuda.device_count())",
    "gpus = list(range(torch.cuda.device_count()))",
    "gpus = [i for i in range(4)]",
    "gpus = [0, 0]",
    "gpus = [-1, 0]",
    "gpus = ['0', '1']",
    "gpus = [0.5, 1]",
    "gpus = '0,1'",
    "numbers = [0, 1]",
    "nn.DataParallel(m)",
    "nn.DataParallel(m, device_ids=None)",
    "nn.DataParallel(m, device_ids=[0])",
    "nn.parallel.DistributedDataParallel(m, device_ids=[args.local_rank])",
    "nn.parallel.DistributedDataParallel(m, device_ids=[local_rank], output_device=local_rank)",
    "config = {'gpus': [0, 1], 'device_ids': [0, 1]}",
    "config = dict(gpus=[0, 1], device_ids=[0, 1])",
    "cfg.gpus = [0, 1]",
    "cfg['gpus'] = [0, 1]",
    "def main(gpus=[0, 1]): pass",
    "train(gpus=[0, 1])",
    "# gpus = [0, 1]",
    "text = 'gpus = [0, 1]'",
    "gpus = [0, 1]\nos.environ['CUDA_VISIBLE_DEVICES'] = ','.join(map(str, gpus))",
    "gpus = [0, 1]\nos.environ['CUDA_VISIBLE_DEVICES'] = ','.join(str(g) for g in gpus)",
    "gpus = [0, 1]\ntext = ','.join(map(str, gpus))\nos.environ['CUDA_VISIBLE_DEVICES'] = text",
    "gpus = [0, 1]\ns = ''\nfor g in gpus:\n    s += str(g)\n    t = s + str(g)\n"
    "os.environ.update(CUDA_VISIBLE_DEVICES=t)",
    "gpus = [0, 1]\nos.environ.setdefault('CUDA_VISIBLE_DEVICES', f'{gpus[0]},{gpus[1]}')",
    "gpus = [0, 1]\nsubprocess.run(x, env={'CUDA_VISIBLE_DEVICES': str(gpus)[1:-1]})",
]


@pytest.mark.parametrize("source", LEFT)
def test_look_alike_is_left_alone_and_not_spoken_of(source):
    left(f"{HEAD}{source}\n")


VARS = HEAD.replace("args = parser.parse_args()", "args = vars(parser.parse_args())")
DEVICE = HEAD.replace("'-x'", "'--device', default='cuda:0'")
AS_T = HEAD.replace("import torch\n", "import torch as t\n").replace("torch.nn as", "t.nn as")
# the script, a line that is named, and words that say why
HUMAN = [
    *table(
        r"""
import torch\ngpus = [0, 1]\n => 2 => no argparse parser
import torch.nn as nn\nm = nn.DataParallel(m, device_ids=[0, 1])\n => 2 => no argparse parser
import torch\nclass Config:\n    gpus = [0, 1]\nHEAD => 3 => class
import torch\ngpus = [0, 1]\nHEAD => 2 => not certainly at hand in line 2
HEADgpus = [0, 1]\nnn.DataParallel(m, [2, 3])\n => 8 => different lists
HEADfrom torch.nn.parallel import DistributedDataParallel as DDP\nDDP(m, device_ids=[0, 1])\n
    => 8 => Distributed
HEADnn.parallel.DistributedDataParallel(m, device_ids=[0, 1])\n => 7 => Distributed
HEADargs.gpus = 2\ngpus = [0, 1]\n => 8 => args.gpus already, in line 7
HEADargs = load()\ngpus = [0, 1]\n => 8 => not certainly at hand
HEADdef f(args):\n    gpus = [0, 1]\n => 8 => not certainly at hand
HEADdef f(args):\n    gpus = [0, 1]\nf(x)\n => 8 => not certainly at hand
HEADother = argparse.ArgumentParser()\ngpus = [0, 1]\n => 8 => 2 parsers
HEADargs = parser.parse_args()\ngpus = [0, 1]\n => 8 => parses 2 times
import argparse, torch\nargs = argparse.ArgumentParser().parse_args()\ngpus = [0, 1]\n
    => 3 => no certain name
HEADgpus = [0, 1]\nnn.DataParallel(m, [0,  # first\n1])\n => 8 => comment
HEADgpus = [0, 1]\nm.to('cuda:1')\n => 7 => 'cuda:1' in line 8
HEADgpus = [2, 3]\nm.cuda(0)\n => 7 => 0 in line 8
HEADgpus = [2, 3]\nm.cuda()\n => 7 => GPU 0, and the list begins with 2
HEADgpus = [0, 1]\nif str(d) == 'cuda:0': pass\n => 7 => would not follow
HEADgpus = [0, 1]\ntorch.load(f, map_location={'cuda:0': 'cpu'})\n => 7 => would not follow
HEADgpus = [0, 1]\nm.cuda()\ntorch.cuda.set_device(local_rank)\n
    => 7 => line 9 makes a device the current one
HEADgpus = [0, 1]\nm.cuda()\nos.environ['CUDA_VISIBLE_DEVICES'] = '0,1'\n
    => 7 => CUDA_VISIBLE_DEVICES
HEADgpus = [0, 1]\nm.cuda()\nmp.Process(target=f).start()\n => 7 => starts processes
""",
        HEAD=HEAD,
    ),
    (HEAD.replace("'-x'", "'--gpus'") + "gpus = [0, 1]\n", 7, "has --gpus already, in line 5"),
    (HEAD.replace("'-x'", "'-g', dest='gpus'") + "gpus = [0, 1]\n", 7, "has --gpus already"),
    (VARS + "gpus = [0, 1]\n", 7, "not certainly"),
    (DEVICE + "gpus = [0, 1]\n", 7, "'cuda:0' in line 5"),
    (AS_T + "gpus = [0, 1]\nm.cuda()\n", 7, "`torch`"),
    (HEAD.replace("args =", "x = 1; args =") + "gpus = [0, 1]\nm.cuda()\n", 7, "more than one"),
    (HEAD.replace("('-x')", "('-x'); y = 1") + "gpus = [0, 1]\n", 7, "more than one statement"),
]


@pytest.mark.parametrize("source, line, why", HUMAN)
def test_uncertain_list_is_left_to_a_human_who_is_told_where_and_why(source, line, why):
    findings = left(source, State.HUMAN)
    assert int(line) in {finding.line for finding in findings}
    assert why in findings[0].why


HANDED_ON = [
    "main(**vars(args))",
    "config = vars(args)\nmain(x, **config)",
    "main(**dict(vars(args), x=1))",
    "partial(main, **args.__dict__)()",
    "main(*vars(args).values())",
    "main(**{k: v for k, v in args._get_kwargs()})",
]


@pytest.mark.parametrize("call", HANDED_ON)
def test_option_that_would_be_handed_on_to_a_function_is_left_to_a_human(call):
    """T17: `main(**vars(args))` would pass gpus to a function that does not take it."""
    (finding,) = left(f"{HEAD}gpus = [0, 1]\n{call}\n", State.HUMAN)
    assert "is passed all of" in finding.why and "may not take gpus" in finding.why


@pytest.mark.parametrize(
    "call",
    [
        "print('{x}'.format(**vars(args)))",
        "print(*vars(args).items())",
        "d = dict(**vars(args))",
        "f(vars(args))",
    ],
)
def test_what_takes_any_arguments_is_no_hindrance(call):
    """T17: dict, format and print take one more option."""
    assert (
        rewritten(f"{HEAD}gpus = [0, 1]\n{call}\n")
        == with_option("[0, 1]") + f"gpus = args.gpus\n{call}\n"
    )


IN_FUNCTIONS = table(
    r"""
# parsed in main, parser outside
    + \nPARSER\nparser.add_argument('-x')\ndef main():\n    args = parser.parse_args()\n
    +     gpus = [0, 1]\n
    => parser.add_argument('--gpus' =>     gpus = args.gpus\n
# global args, in the manner of the ImageNet example
    + \nPARSER\ndef main():\n    global args\n    args = parser.parse_args()\n    work()\n
    + \ndef work():\n    nn.DataParallel(m, [0, 1], args.x)\n
    =>     parser.add_argument('--gpus' =>     nn.DataParallel(m, args.gpus, args.x)\n
# a function that gives the arguments, handed on
    + \ndef get():\n    PARSER\n    return parser.parse_args()\n
    + \ndef work(model, opt):\n    device_ids = [0, 1]\n
    + \ndef main():\n    o = get()\n    work(m, opt=o)\n\nmain()\n
    =>     parser.add_argument('--gpus' =>     device_ids = opt.gpus\n
# a function that parses what it knows
    + \ndef get():\n    PARSER\n    a, rest = parser.parse_known_args()\n    return a\n
    + \nif __name__ == '__main__':\n    args = get()\n    gpus = (0, 1)\n
    =>     parser.add_argument('--gpus' =>     gpus = tuple(args.gpus)\n
# two names at once
    + \nclass Trainer:\n    def __init__(self):\n        PARSER\n
    +         self.args = args = parser.parse_args()\n        self.gpus = [0, 1]\n
    =>         parser.add_argument('--gpus' =>         self.gpus = args.gpus\n
# a class that is given them
    + \nclass Trainer:\n    def __init__(self, model, args):\n
    +         self.model = nn.DataParallel(model, [0, 1])\n
    + \ndef main():\n    PARSER\n    args = parser.parse_args()\n    Trainer(m, args)\n
    =>     parser.add_argument('--gpus' =>         self.model = nn.DataParallel(model, args.gpus)\n
""",
    PARSER="parser = argparse.ArgumentParser()",
)


@pytest.mark.parametrize("source, option, use", IN_FUNCTIONS)
def test_arguments_are_found_in_functions(source, option, use):
    result = rewritten("import argparse\nimport torch.nn as nn\n" + source)
    assert f"\n{option}" in result
    assert use in result
    compile(result, "script", "exec")


NOT_THERE = table(
    r"""
def main():\n    a = PARSE\n\ndef work():\n    gpus = [0, 1]\n
def main(args):\n    gpus = [0, 1]\nif x:\n    args = PARSE\n    mp.spawn(main, args=(args,))\n
def work():\n    gpus = [0, 1]\nif __name__ == '__main__':\n    args = PARSE\n    work()\n
def main():\n    if x:\n        args = PARSE\n    gpus = [0, 1]\n
class A:\n    def __init__(self, a):\n        gpus = [0, 1]\nclass B(A): x\na = PARSE\nA(a)\n
class A:\n    def run(self, a):\n        gpus = [0, 1]\nb = PARSE\nA().run(b)\n
class A:\n    def __init__(self, a):\n        gpus = [0, 1]\nb = PARSE\nA(b)\nA(c)\n
""",
    PARSE="parser.parse_args()",
)


@pytest.mark.parametrize("source", [source for (source,) in NOT_THERE])
def test_arguments_that_are_not_surely_there_are_not_used(source):
    left(f"import argparse, torch\nparser = argparse.ArgumentParser()\n{source}", State.HUMAN)


# What the result does

PROGRAM = HEAD + (
    "gpus = [0, 1]\nmodel = nn.DataParallel('net', device_ids=gpus, output_device=0)\n"
    "model.cuda()\nmodel.to('cuda:0')\n"
)


class Torch:
    """Enough of torch to run the script, which notes which devices it is given."""

    def __init__(self, monkeypatch):
        self.used = used = {}

        class DataParallel:
            def __init__(self, module, device_ids, output_device):
                used.update(device_ids=device_ids, output_device=output_device)

            def cuda(self):
                used["current"] = used.get("set_device", 0)

            def to(self, device):
                used["to"] = device

        torch, nn = types.ModuleType("torch"), types.ModuleType("torch.nn")
        torch.nn, nn.DataParallel = nn, DataParallel
        torch.cuda = types.SimpleNamespace(
            is_available=lambda: True, set_device=lambda n: used.update(set_device=n)
        )
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.setitem(sys.modules, "torch.nn", nn)

    def run(self, monkeypatch, source: str, *flags: str) -> dict:
        self.used.clear()
        monkeypatch.setattr(sys, "argv", ["script.py", *flags])
        exec(source, {"__name__": "__main__"})
        return {name: value for name, value in self.used.items() if name != "set_device"}


def test_result_does_without_the_option_what_the_script_did(monkeypatch):
    torch = Torch(monkeypatch)
    assert torch.run(monkeypatch, rewritten(PROGRAM)) == torch.run(monkeypatch, PROGRAM)


def test_result_takes_list_and_home_device_from_the_option(monkeypatch):
    used = Torch(monkeypatch).run(monkeypatch, rewritten(PROGRAM), "--gpus", "3,1")
    assert used == {"device_ids": [3, 1], "output_device": 3, "current": 3, "to": "cuda:3"}


def test_option_refuses_what_is_no_list(monkeypatch, capsys):
    with pytest.raises(SystemExit) as ended:
        Torch(monkeypatch).run(monkeypatch, rewritten(PROGRAM), "--gpus", "all")
    assert ended.value.code == 2
    assert "--gpus" in capsys.readouterr().err
