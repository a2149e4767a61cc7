"""The device of each process, the process group, and the GPUs of one process."""

import argparse
import ast
import datetime
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
from conftest import REPO, ending  # noqa: E402

from patches.support import devices, gpu_list, job  # noqa: E402

# Lists of GPUs


@pytest.mark.parametrize(
    "spec, ids",
    [
        ("0", [0]),
        ("0,2", [0, 2]),
        ("2,0", [2, 0]),
        ("0-3", [0, 1, 2, 3]),
        ("0-3,7", [0, 1, 2, 3, 7]),
        ("5,1-2", [5, 1, 2]),
        ("4-4", [4]),
        (" 1 , 2 ", [1, 2]),
        ("1023", [1023]),
    ],
)
def test_ids_and_ranges_are_read_in_the_order_given(spec, ids):
    assert gpu_list.gpu_ids(spec) == ids


@pytest.mark.parametrize(
    "spec",
    [
        "",
        ",",
        "1,",
        ",1",
        "a",
        "-1",
        "1-",
        "3-1",
        "1-2-3",
        "0x1",
        "1.5",
        "1 2",
        "1024",
        "0-1024",
        "²",
        "0;1",
    ],
)
def test_what_is_no_list_of_ids_is_refused_and_quoted(spec):
    with pytest.raises(ValueError, match="such as 0,2 or 0-3,7") as caught:
        gpu_list.gpu_ids(spec)
    assert repr(spec) in str(caught.value)


@pytest.mark.parametrize("spec, twice", [("0,0", 0), ("0-2,1", 1), ("3,1-2,2-3", 2)])
def test_id_that_is_named_twice_is_refused(spec, twice):
    with pytest.raises(ValueError, match=f"^GPU {twice} is named twice") as caught:
        gpu_list.gpu_ids(spec)
    assert repr(spec) in str(caught.value)


@given(st.lists(st.integers(0, 1023), min_size=1, max_size=20, unique=True))
@settings(deadline=None, max_examples=50)
def test_every_list_of_distinct_ids_is_read_back(ids):
    assert gpu_list.gpu_ids(",".join(map(str, ids))) == ids


@given(st.text(alphabet="0123456789,- x", max_size=12))
@settings(deadline=None, max_examples=200)
def test_any_text_gives_distinct_ids_or_a_value_error(spec):
    try:
        ids = gpu_list.gpu_ids(spec)
    except ValueError:
        return
    assert len(set(ids)) == len(ids) > 0
    assert all(0 <= i < 1024 for i in ids)


@pytest.fixture
def select_gpus():
    """`select_gpus` called with so many GPUs visible."""

    def run(spec, visible, **options):
        return gpu_list.select_gpus(spec, argparse.ArgumentParser(), visible, **options)

    return run


@pytest.mark.parametrize(
    "spec, visible, gpus",
    [
        (None, 1, [0]),
        (None, 4, [0, 1, 2, 3]),
        ("1,2", 4, [1, 2]),
        ("3,0", 4, [3, 0]),
        ("0-7", 8, list(range(8))),
    ],
)
def test_selected_gpus_are_those_asked_for_or_all(select_gpus, spec, visible, gpus):
    assert select_gpus(spec, visible) == gpus


@pytest.mark.parametrize(
    "spec, visible, says",
    [
        ("4", 4, "GPU 4 was asked for, 4 visible: 0 to 3"),
        ("0-7", 2, "GPU 7 was asked for, 2 visible: 0 to 1"),
        ("1,1", 4, "GPU 1 is named twice in '1,1'"),
        ("all", 4, "expected GPU ids such as 0,2 or 0-3,7, found 'all'"),
        (None, 0, "no GPU is visible to this process: see nvidia-smi and CUDA_VISIBLE_DEVICES"),
        ("0", 0, "no GPU is visible to this process: see nvidia-smi and CUDA_VISIBLE_DEVICES"),
    ],
)
def test_gpus_that_cannot_be_had_end_in_one_line_and_status_2(
    select_gpus, capsys, spec, visible, says
):
    with pytest.raises(SystemExit) as ended:
        select_gpus(spec, visible)
    out, err = capsys.readouterr()
    assert ended.value.code == 2
    assert out == ""
    assert re.fullmatch(rf".+: error: --gpus: {re.escape(says)}\n", err)


def test_gpu_ids_needs_no_torch():
    # The patch reads its own option with it, and `apply` runs on machines without torch.
    module = ast.parse((REPO / "patches/support/gpu_list.py").read_bytes())
    assert not any(isinstance(node, (ast.Import, ast.ImportFrom)) for node in ast.walk(module))


def test_optional_gpus_may_be_missing_unless_one_is_asked_for(select_gpus, capsys):
    assert select_gpus(None, 0, optional=True) == []
    assert select_gpus(None, 2, optional=True) == [0, 1]
    with pytest.raises(SystemExit):
        select_gpus("0", 0, optional=True)
    assert "no GPU is visible" in capsys.readouterr().err


# The device of a process


@pytest.fixture
def gpus(monkeypatch):
    """A function that lets this process see so many GPUs; gives those that are made current."""
    current = []
    for name in ("LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.argv", ["distributed.py"])
    monkeypatch.setattr("torch.cuda.set_device", current.append)

    def see(count):
        monkeypatch.setattr("torch.cuda.device_count", lambda: count)
        if hasattr(torch, "accelerator"):
            monkeypatch.setattr("torch.accelerator.is_available", lambda: count > 0)
        return current

    return see


def options(*argv):
    parser = argparse.ArgumentParser()
    devices.add_options(parser)
    return parser.parse_args(argv)


def test_options_have_the_documented_defaults():
    assert vars(options()) == {"device": None, "timeout": 600}


@pytest.mark.parametrize("argv", [[], ["--device", "cuda"]])
def test_rank_takes_the_gpu_of_its_number_and_makes_it_current(gpus, argv, monkeypatch):
    current = gpus(4)
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    args = options(*argv)
    before = dict(vars(args))
    assert devices.select(args) == torch.device("cuda", 3)
    assert (current, vars(args)) == ([3], before)


@pytest.mark.parametrize("count, argv", [(0, []), (0, ["--device", "cpu"]), (2, ["--device=cpu"])])
def test_cpu_is_used_if_asked_for_or_if_there_is_nothing_else(gpus, count, argv, monkeypatch):
    current = gpus(count)
    monkeypatch.setenv("LOCAL_RANK", "7")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert devices.select(options(*argv)) == torch.device("cpu")
    assert current == []


def test_device_that_is_not_there_is_one_line(gpus, capsys):
    gpus(0)
    with pytest.raises(SystemExit):
        devices.select(options("--device", "cuda"))
    line = "distributed.py: error: --device cuda: there is none here, or none is visible\n"
    assert capsys.readouterr() == ("", line)


@pytest.mark.parametrize(
    "name, words",
    [
        (
            "cuda:1",
            "expected a kind of device, such as cuda; for this one alone set CUDA_VISIBLE_DEVICES=1, "
            "or choose --gpus 1 for dataparallel.py",
        ),
        ("cuda:0", "expected a kind of device, such as cuda; "),
        ("cpu:0", "expected a kind of device, such as cpu; "),
        ("foo", "this torch knows no such device; try cuda or cpu"),
        ("accelerator", "this torch knows no such device; try cuda or cpu"),
        ("foo:1", "expected a kind of device"),
        ("meta", "this torch knows no such device; try cuda or cpu"),
        ("1", "this torch knows no such device; try cuda or cpu"),
        ("", "this torch knows no such device; try cuda or cpu"),
        (
            "distributed",
            "this torch knows no such device; try cuda or cpu",
        ),  # torch has a module of that name
    ],
)
def test_device_that_cannot_be_meant_is_one_line(gpus, name, words, capsys):
    """B15: a number was dropped without a word, and a slip of the finger was a traceback."""
    current = gpus(2)
    for select in (devices.select, lambda args: devices.home(args, [0])):
        line = ending(capsys, select, options("--device", name))
        assert line.startswith(f"distributed.py: error: --device {name}: {words}")
    assert current == []


WAY_OUT = "; start fewer, or let each see all GPUs of the node or one of its own"


@pytest.mark.parametrize(
    "environment, words",
    [
        (
            {"LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "4"},
            "4 processes on this node, 2 GPUs visible (CUDA_VISIBLE_DEVICES=not set)",
        ),
        (
            {"LOCAL_RANK": "2", "CUDA_VISIBLE_DEVICES": "0,1"},
            "3 processes on this node, 2 GPUs visible (CUDA_VISIBLE_DEVICES=0,1)",
        ),
    ],
)
def test_more_processes_than_gpus_is_one_line(gpus, environment, words, monkeypatch, capsys):
    """B5: the line names the ways out."""
    gpus(2)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert ending(capsys, devices.select, options()) == f"distributed.py: error: {words}{WAY_OUT}"


def test_process_with_a_gpu_of_its_own_takes_it_whatever_its_number(gpus, monkeypatch):
    """B5: under srun --gpus-per-task=1 each of four processes sees one GPU, as number 0."""
    current = gpus(1)
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setattr(job, "_has_own_gpu", True)
    assert devices.select(options()) == torch.device("cuda", 0)
    assert current == [0]


def test_processes_that_see_one_and_the_same_gpu_are_refused(gpus, monkeypatch, capsys):
    """B5: one GPU that all see is not one each."""
    gpus(1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    line = ending(capsys, devices.select, options())
    assert "2 processes on this node, 1 GPUs visible" in line and line.endswith(WAY_OUT)


@pytest.mark.parametrize(
    "argv, ids, count, home",
    [
        ([], [2, 0], 4, "cuda:2"),
        (["--device", "cuda"], [1], 4, "cuda:1"),
        (["--device", "cpu"], [1], 4, "cpu"),
        ([], [], 0, "cpu"),
    ],
)
def test_home_is_the_first_gpu_of_the_list_unless_another_device_is_asked_for(
    gpus, argv, ids, count, home
):
    gpus(count)
    assert devices.home(options(*argv), ids) == torch.device(home)


def test_model_on_the_cpu_has_the_attribute_of_one_on_several_gpus():
    model = torch.nn.Linear(2, 3)
    wrapped = devices.data_parallel(model, [], torch.device("cpu"))
    assert wrapped.module is model
    assert wrapped(torch.ones(1, 2)).shape == (1, 3)


def test_wrapper_for_gpus_gathers_on_the_first_of_them(monkeypatch):
    made = []
    monkeypatch.setattr("torch.nn.DataParallel", lambda model, **options: made.append(options))
    devices.data_parallel(torch.nn.Linear(1, 1), [3, 1], torch.device("cuda:3"))
    assert made == [{"device_ids": [3, 1], "output_device": 3}]


# The process group


@pytest.mark.parametrize(
    "device, options",
    [
        ("cuda:1", {"backend": "nccl", "device_id": torch.device("cuda:1")}),
        ("cpu", {"backend": "gloo"}),
        ("meta", {"backend": None}),
    ],
)
def test_group_fits_the_device_and_waits_longer_than_the_watch(device, options, monkeypatch):
    calls = []
    monkeypatch.setattr(
        "torch.distributed.init_process_group", lambda **options: calls.append(options)
    )
    monkeypatch.setattr(job, "_store", None)
    devices.init_process_group(torch.device(device), 600)
    assert calls == [{**options, "timeout": datetime.timedelta(seconds=620)}]


def test_group_meets_in_the_store_with_the_keys_of_this_start(monkeypatch):
    """A11: the store of the launcher may still hold the addresses of the start before."""
    calls, store = [], torch.distributed.HashStore()
    monkeypatch.setattr(
        "torch.distributed.init_process_group", lambda **options: calls.append(options)
    )
    monkeypatch.setattr(job, "_store", store)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    devices.init_process_group(torch.device("cpu"), 5)
    assert (calls[0]["store"], calls[0]["rank"], calls[0]["world_size"]) == (store, 1, 2)
