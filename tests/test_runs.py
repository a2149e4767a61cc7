"""Ring 3: what was built runs, in real processes, on real JPEG files, and leaves the right things
behind.

There is no GPU here: `tests/stand_in` plays `torch.cuda` on the CPU and writes down what was asked
of it. At least two images a rank, since the fault of `view` hides at one.
"""

import re
from datetime import datetime
from pathlib import Path

import pytest
from jobs import REPO as ROOT
from jobs import TORCHRUN, tiny_models

SMALL = ["--arch", "shufflenet_v2_x0_5", "--learning-rate", "0.01", "--print-freq", "1"]

# Fixed widths, as the meters print them: 6 characters for seconds and for per cents.
SECONDS, PERCENT, LOSS = r"[ \d]\d\.\d{3}", r"[ \d]{2}\d\.\d\d", r"\d\.\d{4}e[+-]\d\d"
TIME, DATA = rf"\tTime {SECONDS} \({SECONDS}\)", rf"\tData {SECONDS} \({SECONDS}\)"
NUMBERS = rf"\tLoss {LOSS} \({LOSS}\)\tAcc@1 {PERCENT} \({PERCENT}\)\tAcc@5 {PERCENT} \({PERCENT}\)"
RATE = r"(?:\tLR \d\.\d{4}e[+-]\d\d\tImages/s \d+\.\d)?"  # not in guide
TRAIN_LINE = re.compile(r"Epoch: \[(\d+)\]\[ *(\d+)/(\d+)\]" + TIME + DATA + NUMBERS + RATE)
TEST_LINE = re.compile(r"Test: \[ *(\d+)/(\d+)\]" + TIME + NUMBERS)
RESULT_LINE = re.compile(r" \* Acc@1 (\d+\.\d{3}) Acc@5 (\d+\.\d{3})")


def of(result, event):
    """The recorded calls of one kind, without what differs from run to run."""
    return [
        {k: v for k, v in e.items() if k not in ("event", "pid")}
        for e in result.events
        if e["event"] == event
    ]


def parsed(out):
    """The lines of a training run by kind; every line has to be of one of the documented shapes."""
    lines = {"train": [], "test": [], "result": [], "other": []}
    for line in out.splitlines():
        for kind, shape in (("train", TRAIN_LINE), ("test", TEST_LINE), ("result", RESULT_LINE)):
            if match := shape.fullmatch(line):
                lines[kind].append(match.groups())
                break
        else:
            lines["other"].append(line)
    return lines


def plain_accuracy(checkpoint, data):
    """Top-1 and top-5 in per cent, counted image by image, with nothing of the scripts."""
    import torch
    import torchvision
    from PIL import Image
    from torchvision import transforms

    state = torch.load(checkpoint, weights_only=True)
    classes = len([*state["state_dict"].values()][-1])  # of the head's bias
    builders = vars(torchvision.models) | tiny_models()
    model = builders[state["arch"]](num_classes=classes)
    model.load_state_dict(state["state_dict"])
    model.eval()
    prepare = transforms.Compose(
        [
            transforms.Resize(256),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    ranks = []
    classes = sorted(folder.name for folder in (data / "val").iterdir())
    for label, name in enumerate(classes):
        for path in sorted((data / "val" / name).iterdir()):
            with torch.no_grad():
                scores = model(prepare(Image.open(path).convert("RGB")).unsqueeze(0))[0].tolist()
            ranks.append(sum(score > scores[label] for score in scores))
    return [100 * sum(rank < k for rank in ranks) / len(ranks) for k in (1, 5)]


def check_checkpoints(folder, arch, epochs):
    import torch

    last = torch.load(folder / "checkpoint.pth.tar", weights_only=True)
    best = last  # where no image was right, as may be after a single step, there is none
    if last["best_acc1"] > 0:
        best = torch.load(folder / "model_best.pth.tar", weights_only=True)
    for state in (last, best):
        assert {"epoch", "arch", "state_dict", "best_acc1"} <= set(state)
        assert state["arch"] == arch
        assert not any(key.startswith("module.") for key in state["state_dict"])
        assert all(torch.isfinite(tensor).all() for tensor in state["state_dict"].values())
    assert last["epoch"] == epochs
    assert 1 <= best["epoch"] <= epochs
    return last, best


@pytest.mark.parametrize(
    ("series", "gpus"),
    [("guide", 2), pytest.param("standard", 2, marks=pytest.mark.thorough), ("standard", None)],
)
def test_distributed_trains_on_two_ranks(series, gpus, build_of, command, data):
    script = build_of("--series", series) / "distributed.py"
    options = ["--data", data, *SMALL, "--batch-size", "4", "--epochs", "3"]
    result = command(*TORCHRUN, "--nproc_per_node=2", script, *options, gpus=gpus)
    assert result.status == 0, result.err
    assert ("stand-in: torch.cuda is played by the CPU, 2 devices" in result.err) == (gpus == 2)

    assert len(result.outs) == 2
    if series != "guide":  # upstream prints on every rank
        assert result.outs.pop() == ""
    for out in result.outs:
        lines = parsed(out)
        other = [line for line in lines["other"] if not line.startswith("topology: ")]
        assert other == ["shufflenet_v2_x0_5: random weights"]
        # 20 images on 2 ranks in batches of 2 make 5 steps.
        assert lines["train"] == [
            (str(epoch), str(step), "5") for epoch in range(3) for step in range(5)
        ]
        assert lines["test"] == [(str(step), "5") for _ in range(3) for step in range(5)]
        assert len(lines["result"]) == 3

    _, best = check_checkpoints(result.folder, "shufflenet_v2_x0_5", 3)
    top1, top5 = plain_accuracy(result.folder / "checkpoint.pth.tar", data)
    assert [float(n) for n in lines["result"][-1]] == [
        pytest.approx(top1, abs=1e-3),
        pytest.approx(top5, abs=1e-3),
    ]
    assert best["best_acc1"] == max(float(acc1) for acc1, _ in lines["result"])

    if gpus is None:
        return
    by_rank = [{"index": rank, "rank": str(rank)} for rank in range(2)]
    assert sorted(of(result, "set_device"), key=str) == by_rank
    assert {e["backend"] for e in of(result, "init_process_group")} == {"nccl"}
    ddp = sorted((e["rank"], e["device_ids"]) for e in of(result, "DistributedDataParallel"))
    assert ddp == [("0", [0]), ("1", [1])]
    saves = of(result, "save")  # by one writer, and beside the file before in its place
    if series == "standard":
        assert len({save["path"] for save in saves}) == 1
        assert re.fullmatch(
            rf"{result.folder.resolve()}/checkpoint\.pth\.tar\..+\.tmp", saves[0]["path"]
        )
    else:
        assert {save["path"] for save in saves} == {"checkpoint.pth.tar"}
    assert [save["rank"] for save in saves] == ["0"] * 3
    assert {e["rank"] for e in of(result, "copyfile")} == ({"0"} if series == "guide" else set())
    if series != "guide":  # upstream joins the group first, and every rank takes memory on GPU 0
        for rank in "01":
            calls = [e["event"] for e in result.events if e["rank"] == rank]
            assert calls.index("set_device") < calls.index("init_process_group")


def test_a_vision_transformer_trains_on_two_ranks(build_of, run, data):
    script = build_of("--series", "guide") / "distributed.py"
    options = ["--arch", "tiny_vit", "--batch-size", "20", "--epochs", "1", "--workers", "0"]
    options += ["--print-freq", "1", "--learning-rate", "0.001"]
    result = run(script, "--data", data, *options, ranks=2, gpus=2)
    assert result.status == 0, result.err
    lines = parsed(result.outs[1])
    assert lines["train"] == [("0", "0", "1")]
    check_checkpoints(result.folder, "tiny_vit", 1)
    top1, top5 = plain_accuracy(result.folder / "checkpoint.pth.tar", data)
    assert [float(n) for n in lines["result"][-1]] == [
        pytest.approx(top1, abs=1e-3),
        pytest.approx(top5, abs=1e-3),
    ]


@pytest.mark.parametrize(
    ("arguments", "options", "ids"),
    [
        ((), ("--gpus", "2,0-1"), [2, 0, 1]),
        pytest.param((), (), [0, 1, 2], marks=pytest.mark.thorough),
        (("--set", "configurable_gpus.gpus=1,2"), (), [1, 2]),
    ],
    ids=["chosen when it runs", "every visible GPU", "written into the script"],
)
def test_dataparallel_trains_on_the_gpus_that_were_chosen(
    arguments, options, ids, build_of, run, data
):
    script = build_of(*arguments) / "dataparallel.py"
    result = run(
        script, "--data", data, *SMALL, "--batch-size", "10", "--epochs", "2", *options, gpus=3
    )
    assert result.status == 0, result.err

    lines = parsed(result.outs[0])
    assert lines["other"][0] == "shufflenet_v2_x0_5: random weights"
    assert lines["train"] == [
        (str(epoch), str(step), "2") for epoch in range(2) for step in range(2)
    ]
    assert len(lines["result"]) == 2
    check_checkpoints(result.folder, "shufflenet_v2_x0_5", 2)
    top1, top5 = plain_accuracy(result.folder / "checkpoint.pth.tar", data)
    assert [float(n) for n in lines["result"][-1]] == [
        pytest.approx(top1, abs=1e-3),
        pytest.approx(top5, abs=1e-3),
    ]

    # The list reaches DataParallel as it is, and its first id is the home device everywhere.
    assert of(result, "DataParallel") == [
        {"device_ids": ids, "output_device": ids[0], "rank": None}
    ]
    assert of(result, "set_device") == [{"index": ids[0], "rank": None}]
    saves = [Path(e["path"]).name for e in of(result, "save")]
    assert len(saves) == 2 and all(
        re.fullmatch(r"checkpoint\.pth\.tar\..+\.tmp", name) for name in saves
    )

    rows = [row.split(",") for row in (result.folder / "dataparallel.csv").read_text().splitlines()]
    assert len(rows) == 2
    for start, seconds in rows:
        datetime.strptime(start, "%Y-%m-%d %H:%M:%S")
        assert 0 < float(seconds) < 300


@pytest.mark.parametrize(
    ("options", "gpus", "words"),
    [
        ((), 0, "no GPU is visible to this process: see nvidia-smi and CUDA_VISIBLE_DEVICES"),
        (("--gpus", "0"), 0, "no GPU is visible"),
        (("--gpus", "0-3"), 2, "GPU 3 was asked for, 2 visible: 0 to 1"),
        (("--gpus", "0,1,0"), 2, "GPU 0 is named twice in '0,1,0'"),
        (("--gpus", "first"), 2, "expected GPU ids such as 0,2 or 0-3,7, found 'first'"),
    ],
)
def test_gpus_that_cannot_be_had_are_one_clear_line(options, gpus, words, build_of, run, data):
    # Where the guide's script needs a GPU the standard one does not; one that was asked for is
    # missed by both.
    series = "standard" if options else "guide"
    result = run(
        build_of("--series", series) / "dataparallel.py", "--data", data, *options, gpus=gpus
    )
    assert result.status == 2
    lines = [line for line in result.err.splitlines() if not line.startswith("stand-in:")]
    assert (
        len(lines) == 1
        and lines[0].startswith("dataparallel.py: error: --gpus: ")
        and words in lines[0]
    )
    assert result.events == [] and list(result.folder.iterdir()) == []


# Upstream itself must fail the same runs, or they would prove nothing.


UPSTREAM = ["--workers", "0", "--epochs", "1"]


@pytest.mark.thorough
def test_upstream_has_no_rank_under_torchrun(command, data):
    script = ROOT / "upstream" / "distributed.py"
    options = ["--data", data, *SMALL, *UPSTREAM, "--batch-size", "4"]
    result = command(*TORCHRUN, "--nproc_per_node=2", script, *options, gpus=2)
    assert result.status != 0
    assert {e["index"] for e in of(result, "set_device")} <= {-1}
    assert "Device index must not be negative" in result.err
    assert not (result.folder / "checkpoint.pth.tar").exists()


def test_upstream_distributed_cannot_view_the_slice_once_it_has_a_rank(run, data):
    script = ROOT / "upstream" / "distributed.py"
    options = ["--data", data, *SMALL, *UPSTREAM, "--batch-size", "4", "--local_rank", "0"]
    result = run(script, *options, ranks=1, gpus=1)
    assert result.status != 0
    assert "view size is not compatible" in result.err
    assert not (result.folder / "checkpoint.pth.tar").exists()


def test_upstream_dataparallel_wants_four_gpus_and_then_cannot_view_the_slice(run, data):
    script = ROOT / "upstream" / "dataparallel.py"
    options = ["--data", data, *SMALL, *UPSTREAM, "--batch-size", "8"]
    few = run(script, *options, gpus=2)
    assert few.status != 0 and "Invalid device id" in few.err
    enough = run(script, *options, gpus=4)
    assert enough.status != 0 and "view size is not compatible" in enough.err
    assert list(enough.folder.iterdir()) == []
