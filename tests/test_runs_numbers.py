"""Ring 3: the numbers that whole runs print are the true ones, however many processes computed
them.

Every image has one grey, which training's random crops do not change, and `tests/tiny_models` knows
the class of each grey, so what is right can be counted here without any of the scripts. There are
more pretended devices than processes.
"""

import math
import os
import re

import pytest
from jobs import FREE_PORT, REPO, TORCHRUN
from test_runs import parsed, plain_accuracy

from patcher.build.project import Project, Request
from patcher.core.engine import render

GREYS = (20, 50, 82, 116, 152, 190, 230)  # as in tests/tiny_models
WRONG = {"train": 7, "val": 8}  # so many images lie in the folder of another class
COUNT = {"train": 24, "val": 70}


def labelled(part):
    """(grey, class of the folder) of each image."""
    for index in range(COUNT[part]):
        truth = index % len(GREYS)
        yield GREYS[truth], (truth + 1 + index % 5) % len(GREYS) if index < WRONG[part] else truth


def plain_numbers(part):
    """Mean loss, top-1 and top-5 in per cent, image by image."""
    losses, places = [], []
    for grey, label in labelled(part):
        scores = [-((4 * (grey - known) / 255) ** 2) for known in GREYS] + [-100.0] * 993
        losses.append(math.log(sum(map(math.exp, scores))) - scores[label])
        places.append(sum(score > scores[label] for score in scores))
    share = [100 * sum(place < k for place in places) / len(places) for k in (1, 5)]
    return sum(losses) / len(losses), *share


def write(folder, parts):
    from PIL import Image

    for part, images in parts.items():
        for name in range(len(GREYS)):
            (folder / part / str(name)).mkdir(parents=True)
        for index, (grey, label) in enumerate(images):
            Image.new("RGB", (64, 64), (grey,) * 3).save(
                folder / part / str(label) / f"{index:02}.png"
            )
    return folder


@pytest.fixture(scope="session")
def data(shared):
    parts = {part: labelled(part) for part in COUNT}
    return shared("greys", lambda folder: write(folder, parts))


@pytest.fixture(scope="session")
def script(tmp_path_factory):
    """A function that gives a script as a series makes it, or would without one of its patches."""
    project = Project(REPO)

    support = {path.stem: path.read_bytes() for path in (REPO / "patches" / "support").glob("*.py")}

    def make(name, series="standard", without=None):
        path = tmp_path_factory.mktemp("built") / name
        patches = [
            patch for patch in project.patches_of(Request(series, ())) if patch.slug() != without
        ]
        made = render(name, (REPO / "upstream" / name).read_bytes(), patches, support)
        path.write_bytes(made.after)
        (path.parent / "support").mkdir()
        for module in made.support:
            (path.parent / "support" / f"{module}.py").write_bytes(support[module])
        return path

    return make


def options(data, batch_size, *more, arch="gray", lr="0", epochs=2):
    command = [
        "--data",
        data,
        "--arch",
        arch,
        "--batch-size",
        batch_size,
        "--lr",
        lr,
        "--epochs",
        epochs,
    ]
    return [*command, "--print-freq", "1", "--workers", "0", *more]


def averages(line):
    """The averages of loss and accuracies in a training line, which stand in parentheses behind
    Time and Data.
    """
    return [float(number) for number in re.findall(r"\(\s*([-+.\de]+)\)", line)[2:]]


def check(result, data, outs, steps):
    import torch

    assert result.status == 0, result.err
    assert len(result.outs) == outs
    loss, top1, top5 = plain_numbers("train")
    _, true1, true5 = plain_numbers("val")
    assert f"{true1:.3f}" == "88.571"
    (out,) = filter(None, result.outs)  # rank 0 of all nodes prints
    assert parsed(out)["result"] == [(f"{true1:.3f}", f"{true5:.3f}")] * 2  # every epoch
    last = [
        line for line in out.splitlines() if line.startswith(f"Epoch: [1][{steps - 1}/{steps}]")
    ]
    assert averages(last[0]) == [pytest.approx(loss, rel=2e-4), round(top1, 2), round(top5, 2)]
    for name in ("checkpoint", "model_best"):
        assert (
            torch.load(result.folder / f"{name}.pth.tar", weights_only=True)["best_acc1"]
            == 100 * 62 / 70
        )


@pytest.mark.parametrize(
    "ranks, batch_size, steps",
    [
        *((1, 9, 3), (2, 10, 3), (3, 9, 3), (4, 4, 6)),
        *(
            pytest.param(*one, marks=pytest.mark.thorough)
            for one in ((1, 70, 1), (2, 24, 1), (2, 4, 6), (3, 12, 2))
        ),
    ],
)
def test_distributed_prints_the_true_numbers_at_every_world_size(
    ranks, batch_size, steps, script, run, data
):
    result = run(script("distributed.py"), *options(data, batch_size), ranks=ranks, gpus=4)
    check(result, data, ranks, steps)


LAUNCH = ["-m", "torch.distributed.launch", "--local-addr=127.0.0.1", *FREE_PORT]


@pytest.mark.parametrize(
    "launcher, ranks, batch_size, steps",
    [
        ([*TORCHRUN, "--nproc_per_node=2"], 2, 10, 3),
        pytest.param([*LAUNCH, "--nproc_per_node=3"], 1, 12, 2, marks=pytest.mark.thorough),
        pytest.param(
            [*LAUNCH, "--nproc_per_node=2", "--use_env"], 1, 4, 6, marks=pytest.mark.thorough
        ),
        pytest.param([], 1, 70, 1, marks=pytest.mark.thorough),
    ],
    ids=["torchrun", "launch", "launch --use_env", "plain python"],
)
def test_the_numbers_are_the_same_under_every_launcher(
    launcher, ranks, batch_size, steps, script, command, data
):
    result = command(*launcher, script("distributed.py"), *options(data, batch_size), gpus=4)
    check(result, data, ranks, steps)


def test_one_process_without_a_launcher_prints_the_true_numbers(script, run, data):
    check(run(script("distributed.py"), *options(data, 7), gpus=4), data, 1, 4)


def test_two_nodes_of_two_ranks_print_the_true_numbers(script, run, data):
    # The batch is that of a node: 24 images on 4 ranks with 4 each make 2 steps, the second of 2.
    own = {rank: {"env": {"LOCAL_RANK": rank % 2, "GROUP_RANK": rank // 2}} for rank in range(4)}
    two = {"ranks": 4, "own": own, "LOCAL_WORLD_SIZE": 2, "gpus": 4}
    check(run(script("distributed.py"), *options(data, 8), **two), data, 4, 2)


def test_dataparallel_prints_the_true_numbers(script, run, data):
    check(run(script("dataparallel.py"), *options(data, 9), gpus=4), data, 1, 3)


def test_trained_model_scores_as_its_checkpoint_does_though_one_rank_has_nothing_to_validate(
    script, run, tmp_path
):
    # Two images on three ranks; each rank's running statistics are its own, and the checkpoint has
    # those of rank 0.
    data = write(
        tmp_path / "data", {"train": labelled("train"), "val": [(GREYS[0], 0), (GREYS[6], 6)]}
    )
    for name in range(1, 6):
        (data / "val" / str(name)).rmdir()
        (data / "train" / str(name)).rename(data / "train" / f"x{name}")
    chosen = options(data, 6, arch="tiny", lr="0.05")
    result = run(script("distributed.py"), *chosen, ranks=3, gpus=4)
    assert result.status == 0, result.err
    top = plain_accuracy(result.folder / "checkpoint.pth.tar", data)
    assert parsed(result.outs[0])["result"][-1] == tuple(f"{share:.3f}" for share in top)


# Without the patches the runs above come out wrong, or they would prove nothing.


def test_guide_prints_half_of_it_for_two_processes_on_four_devices(script, run, data):
    guide = script("distributed.py", "guide")
    result = run(guide, *options(data, 20, epochs=1), ranks=2, gpus=4)
    assert result.status == 0, result.err
    assert [top1 for top1, _ in parsed(result.outs[0])["result"]] == ["44.286"]


# 64 of 72, since two images count twice; or a mean of means, divided by the four devices instead of
# the three ranks.
@pytest.mark.parametrize(
    ("without", "printed"), [("val_sampler", "88.889"), ("exact_validation", "66.667")]
)
def test_three_ranks_print_another_number_without_one_patch(without, printed, script, run, data):
    patched = script("distributed.py", without=without)
    result = run(patched, *options(data, 9, epochs=1), ranks=3, gpus=4)
    assert result.status == 0, result.err
    assert [top1 for top1, _ in parsed(result.outs[0])["result"]] == [printed]


@pytest.mark.parametrize("name, ranks", [("distributed.py", 2), ("dataparallel.py", None)])
def test_loss_that_is_not_finite_ends_the_run_and_spares_the_checkpoint(
    name, ranks, script, run, data, tmp_path
):
    kept = {f"{kind}.pth.tar": os.urandom(99) for kind in ("checkpoint", "model_best")}
    for file, content in kept.items():
        (tmp_path / "run" / file).write_bytes(content)
    steep = options(data, 4, "--overwrite", arch="steep", lr="1000", epochs=3)
    result = run(script(name), *steep, ranks=ranks, gpus=4)
    assert result.status != 0
    lines = [line for line in result.err.splitlines() if line.startswith(f"{name}: error:")]
    words = (
        r"epoch 0, step [1-5]: the loss is (nan|inf) \(learning rate 1000\); stopped, "
        "and the last checkpoint stays as it is"
    )
    assert len(lines) == 1 and re.search(words, lines[0]), result.err
    # Nothing was saved, and --overwrite has moved away what was there.
    aside, metrics = sorted(result.folder.iterdir(), reverse=True)
    assert metrics.name == "metrics.jsonl"
    assert {path.name: path.read_bytes() for path in aside.iterdir()} == kept
    assert not any(parsed(out)["result"] for out in result.outs)


def test_batch_that_does_not_divide_is_one_line_for_all_processes(script, run, data):
    result = run(script("distributed.py"), *options(data, 3), ranks=2, gpus=4)
    assert result.status != 0
    lines = [line for line in result.err.splitlines() if line.startswith("distributed.py: error:")]
    words = "--batch-size 3: does not divide by the 2 processes of this node; 2 and 4 do"
    assert lines == [f"distributed.py: error: {words}"]
    assert list(result.folder.iterdir()) == []
