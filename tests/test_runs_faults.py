"""Ring 3: whatever ends a run, and wherever, what it leaves can be read, and a resumed run ends
like a whole one.

`tests/faults` says where a run is struck, and forks the ranks of a job from one process, since
hundreds of jobs are run. `tiny` of `tests/tiny_models` is trained for two epochs of three steps on
two ranks, each of which validates three batches an epoch. Both epochs are better than all before
them.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from jobs import PATIENCE, TORCHRUN, environment_of, wait_for

torch = pytest.importorskip("torch")

RECIPE = ["--arch", "tiny", "--batch-size", "8", "--lr", "0.1", "--epochs", "2"]
RECIPE += ["--print-freq", "1", "--seed", "1", "--workers", "0"]
STEPS = 3  # an epoch
DONE = re.compile(
    r"resumed from (\S+): (\d+) epochs and (\d+) steps done, best Acc@1 \d+\.\d{3}(.*)"
)
FILES = ("checkpoint.pth.tar", "checkpoint_previous.pth.tar", "model_best.pth.tar")
METRICS = "metrics.jsonl"


@pytest.fixture(scope="module")
def data(noise):
    return noise


@pytest.fixture(scope="module")
def begin(fork, build_of, noise, tmp_path_factory):
    """A function that starts the job of RECIPE, and gives what waits for its end; see `fork`."""

    def begin(*options, ranks=2, recipe=RECIPE, folder=None, **given):
        folder = folder or tmp_path_factory.mktemp("job") / "run"
        argv = ["--data", noise, *recipe, "--output-dir", folder, *options]
        script = build_of() / "distributed.py"
        wait = fork(script, *argv, ranks=ranks, folder=folder, **given)

        def end():
            ended = wait()
            ended.errs = [re.sub(r".*warning: --seed.*\n", "", err) for err in ended.errs]
            return ended

        end.logs, end.folder = wait.logs, folder
        return end

    return begin


def state(path):
    """What is in a checkpoint, but for the name that the run has drawn, and how long its log is."""
    found = torch.load(path, weights_only=True)
    return {name: value for name, value in found.items() if name not in ("run", "appended")}


def difference(one, other, path="", within=0.0) -> str:
    """Where two states differ first, to the bit, or tensors by more than `within`; "" where they do
    not.
    """
    if type(one) is not type(other):
        return f"{path}: {type(one)}, {type(other)}"
    if isinstance(one, torch.Tensor):
        equal = (
            torch.equal(one, other)
            if within == 0
            else torch.allclose(one, other, rtol=0, atol=within)
        )
        return "" if equal else path
    if isinstance(one, dict):
        if list(one) != list(other):
            return f"{path}: {list(one)}, {list(other)}"
        return next(
            filter(
                None, (difference(one[name], other[name], f"{path}/{name}", within) for name in one)
            ),
            "",
        )
    if isinstance(one, (list, tuple)):
        return difference(dict(enumerate(one)), dict(enumerate(other)), path, within)
    return "" if one == other else f"{path}: {one}, {other}"


@pytest.fixture(scope="module")
def whole(begin):
    """A function that gives the files of a run that nothing disturbs, by name, for a number of
    ranks.
    """
    runs = {}

    def whole(ranks=2, *options):
        if (ranks, options) not in runs:
            done = begin(*options, ranks=ranks)()
            assert done.statuses == [0] * ranks and done.errs == [""] * ranks, done.errs
            runs[ranks, options] = {name: state(done.folder / name) for name in FILES}
        return runs[ranks, options]

    return whole


def wrong_end(end, whole, within=0.0) -> str:
    """What is wrong with how a resumed run ended, by the files that a whole one has left; "" for
    nothing.
    """
    if any(end.statuses) or any(end.errs):
        return f"resumed: {end.statuses} {end.errs}"
    # What a run has measured that had saved nothing is moved away.
    aside = {
        path.name for path in end.folder.glob("overwritten-*") if os.listdir(path) == [METRICS]
    }
    if left := {path.name for path in end.folder.iterdir()} - {*FILES, "filler", METRICS} - aside:
        return f"left behind: {left}"
    pairs = (
        (name, difference(state(end.folder / name), whole[name], within=within))
        for name in (FILES[0], FILES[2])
    )
    return "".join(f"{name}: {where} " for name, where in pairs if where)


def unreadable(folder) -> str:
    for path in folder.glob("*.pth.tar"):
        try:
            torch.load(path, weights_only=True)
        except Exception as error:
            return f"{path.name}: {error}"
    return ""


def progress(end):
    """Epochs and steps that a resumed run has found done, and what its line says besides; it is the
    first line.

    A run without anything to go on from says which weights it begins with, one that goes on does
    not.
    """
    lines = [
        line
        for line in end.outs[0].splitlines()
        if not line.startswith("run.lock: its owner is gone (")
    ]
    if lines[0] == "tiny: random weights":
        assert re.fullmatch(
            r"--resume auto: no checkpoint in \S+, starting from the beginning", lines[1]
        )
        assert "resumed from" not in end.outs[0]
        return 0, 0, ""
    assert lines[1].startswith("topology: ") and end.outs[0].count("resumed from") == 1
    _, epochs, steps, more = DONE.fullmatch(lines[0]).groups()
    return int(epochs), int(steps), more


# SIGKILL at any moment


def during_the_save(dice, size):
    """Each saves once an epoch, or after each step and then at the end of the epoch too."""
    name = FILES[0]
    at = dice.choice(
        [f"write {name}.tmp"] * 4
        + [f"fsync {name}.tmp", f"replace {name}"]
        + [f"replace {FILES[1]}"] * 2
    )
    at = dice.choice([at, at, at, f"link {FILES[1]}.tmp"])
    when = "before" if at.startswith("write") else dice.choice(["before", "after"])
    return {
        "at": at,
        "nth": dice.randint(1, 1 if FILES[1] in at else 2),
        "when": when,
        "bytes": dice.randrange(size),
    }


def during_the_best_copy(dice, size):
    name = FILES[2]
    at = dice.choice(
        [f"link {name}.tmp", f"fsync {name}.tmp", f"replace {name}"] + [f"copy {name}.tmp"] * 3
    )
    when = "before" if at.startswith("copy") else dice.choice(["before", "after"])
    return {"at": at, "nth": dice.randint(1, 2), "when": when, "bytes": dice.randrange(size)}


def between_steps(dice, size):
    return {
        "at": "step",
        "nth": dice.randint(2, 2 * STEPS - 1),
        "when": dice.choice(["before", "after"]),
    }


def in_validation(dice, size):
    return {"at": "validation", "nth": dice.randint(1, 6), "when": dice.choice(["before", "after"])}


def in_the_first_or_last_step(dice, size):
    return {
        "at": "step",
        "nth": dice.choice([1, 2 * STEPS]),
        "when": dice.choice(["before", "after"]),
    }


PLACES = [
    during_the_save,
    during_the_best_copy,
    between_steps,
    in_validation,
    in_the_first_or_last_step,
]


@pytest.mark.thorough
@pytest.mark.parametrize("who", ["one", "all"])
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_a_killed_run_leaves_whole_files_and_ends_like_an_undisturbed_one(place, who, begin, whole):
    dice, size, wrong = random.Random(f"{place.__name__} {who}"), 6000, []

    def trial():
        plan, every = place(dice, size), dice.randrange(2)
        writes = place in (during_the_save, during_the_best_copy)
        if every and place is during_the_save:
            plan["nth"] += dice.randrange(6)
        plan |= {"do": "SIGKILL", "rank": 0 if writes else dice.randrange(2)}
        plan["to"] = [0, 1] if who == "all" else [dice.randrange(2) if writes else plan["rank"]]
        env = {"FAULT_NO_LINKS": "1"} if plan["at"].startswith("copy") else {}
        options = ["--save-every", every]
        return plan, options, begin(*options, fault=plan, agent_store=dice.random() < 0.5, **env)

    def resumed(plan, options, end):
        killed = end()
        if killed.fired is None or not any(killed.statuses[rank] == -9 for rank in plan["to"]):
            # Rank 1 has nothing left to do while rank 0 writes for the last time.
            late = killed.fired and plan["to"] == [1] and killed.fired["steps"] == 2 * STEPS
            return None if late else f"was not killed: {killed}"
        if why := unreadable(killed.folder):
            return why
        again = begin(*options, "--resume", "auto", folder=killed.folder)
        return killed.fired["steps"] - 1, again  # but for the present step

    def judge(plan, options, found):
        if found is None or isinstance(found, str):
            return found
        made, end = found[0], found[1]()
        epochs, steps, _ = progress(end)
        if epochs * STEPS + steps < (made if options[-1] else made // STEPS * STEPS):
            return f"{made} steps were made, {epochs} epochs and {steps} steps are left"
        return wrong_end(end, whole())

    for _ in range(5):
        trials = [trial() for _ in range(4)]  # at once, since each waits now and then
        found = [resumed(*one) for one in trials]
        judged = [
            (plan, options, judge(plan, options, one))
            for (plan, options, _), one in zip(trials, found)
        ]
        wrong += [one for one in judged if one[-1]]
    assert not wrong, "\n".join(map(str, wrong))


# Signals that end a job


@pytest.mark.parametrize(
    "names",
    [
        ["SIGTERM", "SIGINT", "SIGUSR1"],
        pytest.param(["SIGINT", "SIGUSR1", "SIGTERM"], marks=pytest.mark.thorough),
        pytest.param(["SIGUSR1", "SIGTERM", "SIGINT"], marks=pytest.mark.thorough),
    ],
    ids="-".join,
)
def test_a_signal_to_any_rank_ends_all_with_status_75_behind_the_step_or_in_validation(
    names, begin, whole
):
    """Each place meets one of the signals, in turn."""
    # All ranks rest there until they have agreed, so that none is further.
    steps = [
        {"at": "step", "nth": nth, "rank": rank, "to": to, "rest": True}
        for nth, rank, to in [(1, 0, [0]), (2, 1, [1]), (3, 0, [0, 1]), (5, 1, [1])]
    ]
    validations = [
        {"at": "validation", "nth": nth, "rank": rank, "rest": True}
        for nth, rank in [(1, 0), (4, 1)]
    ]
    plans = [plan | {"do": name} for plan, name in zip(steps + validations, names * 2)]
    ends = [begin(fault=plan) for plan in plans]
    for plan, end in zip(plans, ends):
        stopped = end()
        assert stopped.statuses == [75, 75] and stopped.errs == ["", ""], (plan, stopped)
        assert stopped.outs[0].endswith(
            "stopped by a signal, and saved: --resume auto goes on from here\n"
        )
        assert not unreadable(stopped.folder)
        epochs = (plan["nth"] - 1) // STEPS
        assert stopped.outs[0].count(" * Acc@1 ") == epochs  # the present validation was not ended
        resumed = begin("--resume", "auto", folder=stopped.folder)()
        made = plan["nth"] - epochs * STEPS if plan["at"] == "step" else STEPS
        assert progress(resumed) == (epochs, made, ""), plan
        assert not (why := wrong_end(resumed, whole())), (plan, why)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_during_start_up_ends_the_job_and_spoils_nothing(name, begin, whole):
    """A10: it ends with status 75, and says what is true."""
    ends = [begin(fault={"at": "start", "rank": rank, "do": name}) for rank in (0, 1)]
    for rank, end in enumerate(ends):
        stopped = end()
        assert stopped.statuses[rank] == 75 and all(stopped.statuses), stopped
        if rank == 0:
            assert stopped.outs[0].endswith(
                f"stopped by {name} before the first step: there was nothing to save\n"
            )
        assert not list(stopped.folder.iterdir())
        resumed = begin("--resume", "auto", folder=stopped.folder)()
        assert progress(resumed) == (0, 0, "")
        assert not (why := wrong_end(resumed, whole())), why


def test_a_second_signal_during_the_save_does_not_spoil_it(begin, whole):
    plan = {
        "at": f"write {FILES[0]}.tmp",
        "to": [0, 1],
        "do": "SIGTERM",
    }  # the save at the end of an epoch
    stopped = begin(fault=plan)()
    assert stopped.statuses == [75, 75] and not unreadable(stopped.folder)
    resumed = begin("--resume", "auto", folder=stopped.folder)()
    assert not (why := wrong_end(resumed, whole())), why


# A rank that hangs


@pytest.mark.parametrize("agent_store", [False, True])
def test_a_hung_rank_ends_the_job_with_a_message_that_names_it(agent_store, begin):
    plans = [
        *({"at": "step", "nth": 2, "rank": rank, "do": "SIGSTOP"} for rank in (0, 1)),
        *({"at": "image", "nth": 5, "rank": rank, "do": "sleep"} for rank in (0, 1)),
    ]
    ends = [begin("--timeout", 5, fault=plan, agent_store=agent_store) for plan in plans]
    for plan, end in zip(plans, ends):
        stopped = end()
        assert all(stopped.statuses)
        said = [
            line
            for err in stopped.errs
            for line in err.splitlines()
            if "distributed.py: error: " in line
        ]
        # What the next one says of the job that is ending may come on top.
        assert (
            f"error: rank {plan['rank']} hangs: nothing has moved for --timeout 5 s" in said[0]
        ), (plan, said)


# Another number of ranks


def images_of(end):
    """Index by index what the ranks of a run have read of the training set, see `tests/faults`."""
    return sorted(
        int(line) for path in end.logs.glob("images.*") for line in path.read_text().split()
    )


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (2, 3), (3, 2)])
def test_another_number_of_ranks_goes_on_with_the_images_that_are_left_and_says_so(
    before, after, begin
):
    recipe = [*RECIPE, "--batch-size", "6", "--epochs", "1"]
    stopped = begin(
        ranks=before, recipe=recipe, fault={"at": "step", "nth": 2, "do": "SIGTERM", "rest": True}
    )()
    assert stopped.statuses == [75] * before
    resumed = begin(
        "--resume", "auto", ranks=after, recipe=recipe, folder=stopped.folder, fault={}
    )()
    assert resumed.statuses == [0] * after and resumed.errs == [""] * after, resumed.errs
    assert progress(resumed) == (0, 2, f"; world_size was {before}, is {after}")
    assert sorted(images_of(stopped) + images_of(resumed)) == list(range(24))
    last = state(stopped.folder / FILES[0])
    assert (last["epoch"], last["step"], last["world_size"]) == (1, 0, after)


def test_another_global_batch_trains_no_image_of_the_epoch_twice_but_for_those_it_names(begin):
    recipe = [*RECIPE, "--epochs", "1"]
    fault = {"at": "step", "nth": 5, "do": "SIGTERM", "rest": True}
    stopped = begin("--batch-size", "2", recipe=recipe, fault=fault)()
    resumed = begin(
        "--batch-size", "8", "--resume", "auto", recipe=recipe, folder=stopped.folder, fault={}
    )()
    assert resumed.statuses == [0, 0]
    more = "; global_batch was 2, is 8; the last 2 images of its unfinished epoch are trained again"
    assert progress(resumed) == (0, 5, more)
    assert len(images_of(stopped)) == 10 and len(images_of(resumed)) == 16
    assert set(images_of(stopped) + images_of(resumed)) == set(range(24))


def test_three_ranks_killed_and_resumed_end_like_three_undisturbed_ones(begin, whole):
    recipe = [*RECIPE, "--batch-size", "6"]
    straight = begin(ranks=3, recipe=recipe)()
    killed = begin(
        "--save-every", 1, ranks=3, recipe=recipe, fault={"at": "step", "nth": 6, "do": "SIGKILL"}
    )()
    assert killed.statuses[0] == -9
    resumed = begin("--resume", "auto", ranks=3, recipe=recipe, folder=killed.folder)()
    assert progress(resumed) == (1, 1, "")
    # DistributedDataParallel rearranges its buckets after the first step of a process, and with
    # them the order in
    # which gloo adds up the gradients of more than two ranks: the last bits of a sum may differ.
    straight = {name: state(straight.folder / name) for name in FILES}
    assert not (why := wrong_end(resumed, straight, within=1e-6)), why


# Files that are broken, or of something else


def spoil(path, how):
    data = bytearray(path.read_bytes())
    if how == "a flipped byte":
        data[data.index(state(path)["state_dict"]["3.weight"].numpy().tobytes()) + 100] ^= 1
    path.unlink()  # its other names stay whole
    path.write_bytes({"truncated": data[: len(data) // 2], "empty": b""}.get(how, data))


@pytest.mark.parametrize("how", ["a flipped byte", "truncated", "empty"])
def test_where_the_newest_checkpoint_is_broken_the_previous_one_is_used_and_it_says_so(
    how, begin, whole
):
    fault = {"at": "step", "nth": 5, "do": "SIGKILL"}
    killed = begin("--save-every", 1, fault=fault)()
    spoil(killed.folder / FILES[0], how)
    resumed = begin("--resume", "auto", folder=killed.folder)()
    assert resumed.errs[0].startswith(f"distributed.py: {FILES[0]}: cannot be read: ")
    assert resumed.errs[0].count("\n") == 1 and resumed.errs[1] == ""
    line = next(line for line in resumed.outs[0].splitlines() if line.startswith("resumed from"))
    assert line.startswith(f"resumed from {FILES[1]}: 1 epochs and 0 steps done, ")
    resumed.errs[0] = ""
    assert not (why := wrong_end(resumed, whole())), why


def test_a_kill_in_the_first_save_behind_a_broken_checkpoint_leaves_whole_ones(begin, whole):
    killed = begin("--save-every", 1, fault={"at": "step", "nth": 5, "do": "SIGKILL"})()
    spoil(killed.folder / FILES[0], "empty")
    (killed.folder / FILES[2]).unlink()
    fault = {"at": f"replace {FILES[1]}", "when": "after", "do": "SIGKILL"}
    again = begin("--save-every", 1, "--resume", "auto", folder=killed.folder, fault=fault)()
    assert again.statuses[0] == -9 and not unreadable(killed.folder)
    resumed = begin("--resume", "auto", folder=killed.folder)()
    assert progress(resumed)[0] == 1 and resumed.statuses == [0, 0]
    assert not difference(state(killed.folder / FILES[0]), whole()[FILES[0]])


def test_where_no_checkpoint_is_whole_a_run_does_not_start_anew(begin):
    done = begin()()
    for name, how in zip(FILES, ["truncated", "empty", "a flipped byte"]):
        spoil(done.folder / name, how)
    before = {path.name: path.read_bytes() for path in done.folder.iterdir()}
    refused = begin("--resume", "auto", folder=done.folder)()
    assert refused.statuses[0] == 2 and refused.statuses[1] != 0
    assert [
        line.startswith(f"distributed.py: {name}: ")
        for line, name in zip(refused.errs[0].splitlines(), FILES)
    ]
    assert refused.errs[0].splitlines()[-1] == (
        f"distributed.py: error: --resume auto: no checkpoint in {done.folder} is whole"
    )
    assert {path.name: path.read_bytes() for path in done.folder.iterdir()} == before


@pytest.mark.parametrize(
    "prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.module."]
)
def test_the_four_keys_of_upstream_load_under_any_wrapper_and_it_says_what_is_missing(
    prefix, begin, whole, tmp_path
):
    last = whole()[FILES[0]]
    four = {name: last[name] for name in ("epoch", "arch", "best_acc1")}
    four["best_acc1"] = torch.tensor([four["best_acc1"]])  # as upstream has it
    four["state_dict"] = {prefix + name: value for name, value in last["state_dict"].items()}
    torch.save(four, tmp_path / "four.pth.tar")
    done = begin("--resume", tmp_path / "four.pth.tar", "--epochs", "2")()
    assert done.statuses == [0, 0] and done.errs == ["", ""]
    line = f"resumed from {tmp_path}/four.pth.tar: 2 epochs and 0 steps done, best Acc@1 {last['best_acc1']:.3f}"
    line += "; there is no optimizer in it: its momentum starts at zero; nothing is left to do, with --epochs 2\n"
    assert done.outs[0].startswith(line)
    evaluated = begin("--evaluate", "--resume", tmp_path / "four.pth.tar")()
    assert evaluated.statuses == [0, 0]
    assert f" * Acc@1 {last['best_acc1']:.3f} " in evaluated.outs[0]
    assert not list(evaluated.folder.iterdir())


def rewritten(change):
    def write(path, last):
        torch.save(change(last), path)

    return write


def others(last, **changes):
    weights = {
        name: value for name, value in (last["state_dict"] | changes).items() if value is not None
    }
    return last | {"state_dict": weights}


WRONG = {
    "text": (lambda path, last: path.write_text("no checkpoint"), "cannot be read: "),
    "a pickle with code": (
        lambda path, last: torch.save({"epoch": print}, path),
        "cannot be read: ",
    ),
    "a tensor": (
        rewritten(lambda last: torch.zeros(3)),
        "not a checkpoint of this script, it has no arch, best_acc1, ",
    ),
    "weights alone": (
        rewritten(lambda last: last["state_dict"]),
        "not a checkpoint of this script, it has no arch",
    ),
    "another format": (
        rewritten(lambda last: last | {"format": 2}),
        "wrong.pth.tar: its format is 2, this script reads 1",
    ),
    "another arch": (
        rewritten(lambda last: last | {"arch": "resnet18"}),
        "it is of resnet18, --arch says tiny",
    ),
    "other classes": (
        rewritten(lambda last: last | {"classes": ["0", "1", "cat"]}),
        "it has 3 classes, train/ has 4; not in both: 2, 3, cat",
    ),
    "missing keys": (
        rewritten(lambda last: others(last, **{"3.bias": None, "4.bias": torch.zeros(4)})),
        "not the weights of this model: missing 3.bias, unexpected 4.bias",
    ),
    "other shapes": (
        rewritten(lambda last: others(last, **{"3.bias": torch.zeros(5)})),
        "not the weights of this model: 3.bias is [5], not [4]",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_file_that_is_none_of_this_run_is_refused_in_one_line(what, begin, whole, tmp_path):
    path = tmp_path / "wrong.pth.tar"
    WRONG[what][0](path, whole()[FILES[0]])
    refused = begin("--resume", path)()
    assert refused.statuses[0] == 2 and all(refused.statuses), refused.errs
    line, *more = refused.errs[0].splitlines()
    assert (
        WRONG[what][1] in line and line.startswith("distributed.py: error: ") and str(path) in line
    )
    assert more == [] and refused.errs[1] == ""
    assert not list(refused.folder.iterdir())


def test_a_missing_file_a_finished_run_and_a_folder_in_use_are_told_apart(begin, tmp_path):
    refused = begin("--resume", tmp_path / "none.pth.tar")()
    assert refused.statuses[0] == 2 and all(refused.statuses)
    assert (
        refused.errs[0]
        == f"distributed.py: error: --resume {tmp_path}/none.pth.tar: there is no such file\n"
    )
    done = begin()()
    before = {path.name: path.read_bytes() for path in done.folder.iterdir()}
    again = begin("--resume", "auto", folder=done.folder)()
    assert again.statuses == [0, 0] and "Epoch" not in again.outs[0]
    assert progress(again) == (2, 0, "; nothing is left to do, with --epochs 2")
    anew = begin(folder=done.folder)()
    assert anew.statuses[0] == 2 and anew.statuses[1] != 0 and "--overwrite" in anew.errs[0]
    assert {path.name: path.read_bytes() for path in done.folder.iterdir()} == before
    (done.folder / FILES[0]).unlink()  # as where the first save was broken off behind the best copy
    anew = begin(folder=done.folder)()
    assert anew.statuses[0] == 2 and anew.statuses[1] != 0 and "--overwrite" in anew.errs[0]


# Disks


@pytest.fixture
def small_disk(tmp_path):
    """A function that mounts a disk in memory, of so many bytes, and gives its folder."""
    folders = []

    def mount(size, *options):
        folder = tmp_path / f"disk{len(folders)}"
        folder.mkdir()
        command = [
            "mount",
            "-t",
            "tmpfs",
            "-o",
            ",".join([f"size={size}", *options]),
            "tmpfs",
            folder,
        ]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"only root can mount a tmpfs: {error}")
        folders.append(folder)
        return folder

    yield mount
    for folder in folders:
        subprocess.run(["umount", folder], check=True)


MB = 2**20
LARGE = ["--num-classes", "1000"]  # 0.4 MB a checkpoint


ROOM = [(nth, left) for nth in (1, 2, 4) for left in (0, 100, 150_000, 300_000, 390_000)]


@pytest.mark.parametrize(
    ("nth", "left"),
    [
        *ROOM[::3],
        *(pytest.param(*one, marks=pytest.mark.thorough) for one in ROOM if one not in ROOM[::3]),
    ],
)
def test_a_disk_that_fills_up_in_the_middle_of_a_save_keeps_the_files_before(
    nth, left, begin, small_disk, whole
):
    options = [*LARGE, "--save-every", 1]
    folder = small_disk(2 * MB)
    full = begin(
        *options,
        folder=folder,
        fault={"at": f"write {FILES[0]}.tmp", "nth": nth, "do": "fill", "bytes": left},
    )()
    assert full.statuses[0] == 2 and full.statuses[1] != 0, full
    lines = full.errs[0].splitlines()
    assert lines[-1].startswith(f"distributed.py: error: cannot write {folder}/{FILES[0]} ("), lines
    assert lines[-1].endswith("what was there stays as it is") and len(lines) == 1
    assert {path.name for path in folder.iterdir()} == {
        *("filler", METRICS),
        *FILES[: min(nth - 1, 2)],
        *(FILES[2:] * (nth > 4)),
    }
    assert not unreadable(folder)
    (folder / "filler").unlink()
    resumed = begin(*options, "--resume", "auto", folder=folder)()
    epochs, steps, _ = progress(resumed)
    assert epochs * STEPS + steps == min(nth, 4) - 1
    assert not (why := wrong_end(resumed, whole(2, *options))), why


def test_a_disk_that_is_too_small_or_read_only_is_refused_before_training(begin, small_disk):
    refused = begin("--num-classes", "2000", folder=small_disk(2 * MB))()
    assert refused.statuses[0] == 2 and "Epoch" not in refused.outs[0]
    line = refused.errs[0].splitlines()[-1]
    assert re.fullmatch(
        r"distributed.py: error: \S+: 2.0 MB free, and checkpoints take up to 3.\d MB; .*", line
    ), line

    folder = small_disk(2 * MB, "ro")
    refused = begin(folder=folder)()
    assert refused.statuses[0] == 2 and refused.outs[0] == ""
    line = f"distributed.py: error: --output-dir {folder}: cannot be written to: Read-only file system\n"
    assert refused.errs[0] == line


def test_resuming_on_the_smallest_disk_that_was_accepted_runs_to_the_end(begin, small_disk):
    """What is mapped from a checkpoint that has been replaced keeps its room until nothing uses it
    any more.
    """
    folder = small_disk(int(1.75 * MB))
    options = [*LARGE, "--save-every", 1]
    killed = begin(*options, folder=folder, fault={"at": "step", "nth": 5, "do": "SIGKILL"})()
    assert killed.statuses[0] == -9
    resumed = begin(*options, "--resume", "auto", folder=folder)()
    assert resumed.statuses == [0, 0], resumed.errs


# Two jobs in one folder


@pytest.fixture
def held(begin):
    """A function that starts a job which waits at a point; gives its folder, and what lets it go on
    to its end.
    """

    def held(at, nth):
        end = begin(fault={"at": at, "nth": nth, "do": "wait"})
        wait_for((end.logs / "fired").exists)

        def go_on():
            (end.logs / "go").touch()
            return end()

        return end.folder, go_on

    return held


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


SECOND = [
    (["--lr", "-1"], "--lr: expected 0 to 1000, found -1"),
    ([], f"{FILES[0]} is there already, and would be replaced"),
    (["--resume", "auto"], ": another job writes here since "),
    (["--overwrite"], ": another job writes here since "),
]


def test_a_second_command_in_the_folder_of_a_running_job_is_refused_and_changes_nothing(
    held, begin, whole
):
    """A1, A2: the first is in its second save meanwhile, and ends like an undisturbed one."""
    folder, go_on = held(f"fsync {FILES[0]}.tmp", 4)
    before = contents(folder)
    ends = [begin(*options, folder=folder) for options, _ in SECOND]
    for (options, words), end in zip(SECOND, ends):
        second = end()
        assert second.statuses[0] == 2 and second.statuses[1] != 0 and second.errs[1] == "", (
            options,
            second,
        )
        (line,) = second.errs[0].splitlines()
        assert line.startswith("distributed.py: error: ") and words in line
    assert contents(folder) == before and any(name.endswith(".tmp") for name in before)
    assert not (why := wrong_end(go_on(), whole())), why


def test_of_jobs_that_start_at_once_in_a_folder_one_trains(begin, whole, tmp_path):
    """A2: the others are refused, by the lock or by what the first has written."""
    jobs = [end() for end in [begin(folder=tmp_path / "run") for _ in range(3)]]
    first, *others = sorted(jobs, key=lambda job: job.statuses[0])
    assert not (why := wrong_end(first, whole())), why
    for other in others:
        assert other.statuses[0] == 2 and other.statuses[1] != 0, other
        assert len(other.errs[0].splitlines()) == 1 and other.errs[1] == ""


@pytest.mark.parametrize("name", [FILES[0], "run.lock"])
def test_a_save_that_finds_the_file_of_another_run_in_its_place_ends_the_job_and_spares_it(
    name, held
):
    """A2."""
    folder, go_on = held("step", 5)
    if name == "run.lock":
        lock = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(lock | {"owner": "another", "pid": os.getpid()}))
        words = "another job writes here now"
    else:
        torch.save(torch.load(folder / name, weights_only=True) | {"run": "another"}, folder / name)
        words = f"{folder / name} is another run's by now (another, this is "
    before = {name: (folder / name).read_bytes() for name in (FILES[0], name)}
    ended = go_on()
    assert ended.statuses[0] == 2 and ended.statuses[1] != 0, ended
    (line,) = ended.errs[0].splitlines()
    assert line.startswith("distributed.py: error: ") and words in line
    assert {name: (folder / name).read_bytes() for name in before} == before
    assert not list(folder.glob("*.tmp"))


def test_an_evaluation_in_the_folder_of_a_running_job_changes_nothing(held, begin, whole):
    """B12: nor does it wait for the job."""
    folder, go_on = held(f"fsync {FILES[0]}.tmp", 4)
    (folder / "skipped_images.txt").write_text("of the job\n")
    before = contents(folder)
    evaluated = begin("--evaluate", "--resume", "auto", folder=folder)()
    assert (
        evaluated.statuses == [0, 0]
        and evaluated.errs == ["", ""]
        and " * Acc@1 " in evaluated.outs[0]
    )
    assert contents(folder) == before
    (folder / "skipped_images.txt").unlink()
    assert not (why := wrong_end(go_on(), whole())), why


def test_a_run_that_overwrites_and_is_killed_before_its_first_save_leaves_nothing_to_resume(
    begin, whole
):
    """A8: the files of the run before are kept, out of the way."""
    done = begin()()
    files = contents(done.folder)
    both = begin("--overwrite", "--resume", "auto", folder=done.folder)()
    assert (
        both.statuses[0] == 2
        and "give one of them" in both.errs[0]
        and contents(done.folder) == files
    )
    killed = begin("--overwrite", folder=done.folder, fault={"at": "step", "do": "SIGKILL"})()
    assert killed.statuses[0] == -9
    (aside,) = done.folder.glob("overwritten-*")
    assert (
        f"the files of the run before are in {aside.name}/ now\n" in killed.outs[0]
        and contents(aside) == files
    )
    resumed = begin("--resume", "auto", folder=done.folder)()
    assert progress(resumed) == (0, 0, "")
    aside.rename(done.logs / "aside")
    assert not (why := wrong_end(resumed, whole())), why


# Errors, and readers that are gone


def test_an_error_on_one_rank_is_printed_and_ends_the_job_though_the_other_one_waits(begin):
    """A6: to destroy the process group would take both."""
    ended = begin("--timeout", 40, fault={"at": "step", "nth": 4, "rank": 1, "do": "raise"})()
    assert ended.statuses[1] == 1 and ended.statuses[0] != 0
    assert "Traceback (most recent call last):\n" in ended.errs[1]
    assert ended.errs[1].endswith("RuntimeError: out of pretended memory\n")
    assert "hangs" not in ended.err  # it did not wait for --timeout


@pytest.mark.parametrize("reader", ["head -1", "a full disk"])
def test_a_job_outlives_the_reader_of_its_output(reader, build_of, data, tmp_path):
    """A13: it ends with status 0, and its checkpoint is whole."""
    command = [sys.executable, build_of() / "distributed.py", "--data", data, *RECIPE]
    command += ["--output-dir", tmp_path / "run"]
    with open("/dev/full", "w") as full:
        out = subprocess.PIPE if reader == "head -1" else full
        process = subprocess.Popen(
            list(map(str, command)), env=environment_of(), stdout=out, stderr=subprocess.STDOUT
        )
    if process.stdout:
        process.stdout.readline()
        process.stdout.close()
    assert process.wait(PATIENCE) == 0
    assert state(tmp_path / "run" / FILES[0])["epoch"] == 2


# Ranks that are not of one mind


def test_ranks_with_other_options_end_in_one_line(begin):
    """A3: before anything is written."""
    ended = begin(own={1: {"argv": ["--lr", "0.2"]}})()
    assert ended.statuses[0] == 2 and ended.statuses[1] != 0 and ended.errs[1] == ""
    (line,) = ended.errs[0].splitlines()
    assert re.fullmatch(
        r".*: the ranks of this job differ: --lr: 0.1 on rank 0 \(.*\), 0.2 on rank 1 \(.*\)", line
    )
    assert not list(ended.folder.iterdir())


@pytest.mark.parametrize(
    ("options", "more"), [([], ""), (["--seed", "7"], "; seed stays 5, not 7")]
)
def test_a_run_keeps_its_seed_whatever_it_is_resumed_with(options, more, begin):
    """B4: each image of the unfinished epoch is trained once."""
    recipe = [*RECIPE[: RECIPE.index("--seed")], "--workers", "0", "--epochs", "1"]
    fault = {"at": "step", "nth": 2, "do": "SIGTERM", "rest": True}
    stopped = begin("--seed", "5", recipe=recipe, fault=fault)()
    assert stopped.statuses == [75, 75]
    resumed = begin("--resume", "auto", *options, recipe=recipe, folder=stopped.folder, fault={})()
    assert progress(resumed) == (0, 2, more)
    assert sorted(images_of(stopped) + images_of(resumed)) == list(range(24))
    assert state(stopped.folder / FILES[0])["seed"] == 5


# Under torchrun itself, with loading processes


@pytest.fixture
def launched(command, build_of, noise):
    """A function that runs ranks under torchrun with a fault, until all of them have ended."""

    def launched(*options, fault, restarts=0, ranks=2):
        agent = [*TORCHRUN, f"--max-restarts={restarts}", f"--nproc_per_node={ranks}"]
        argv = [build_of() / "distributed.py", "--data", noise, *RECIPE, "--workers", "1"]
        done = command(*agent, *argv, *options, fault=fault)
        done.agent, *done.errs = done.errs
        return done

    return launched


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param({"at": "step", "nth": 3, "rank": 1}, marks=pytest.mark.thorough),
        {"at": f"write {FILES[0]}.tmp", "nth": 2, "bytes": 3000},
    ],
    ids=["between steps", "during a save"],
)
def test_a_launcher_that_restarts_a_killed_rank_ends_like_an_undisturbed_run(
    fault, launched, whole
):
    done = launched(
        "--save-every", 1, "--resume", "auto", fault=fault | {"do": "SIGKILL"}, restarts=3
    )
    assert done.status == 0, done.agent
    starts = [out for out in done.outs if out]
    assert len(starts) == 2 and len(done.outs) == 4  # by rank 0 of either
    assert "Unable to shutdown" not in done.agent  # which waits for half a minute
    assert "Exception ignored" not in done.err
    epochs, steps, _ = progress(SimpleNamespace(outs=starts[1:]))
    assert epochs * STEPS + steps >= done.fired["steps"] - 1
    done.statuses, done.errs = [0], []
    assert not (why := wrong_end(done, whole())), why


@pytest.mark.thorough
def test_a_rank_that_is_stopped_under_max_restarts_is_started_again(launched, whole):
    """B13: torchrun takes every status but 0 for a failure; what was saved is gone on from."""
    fault = {"at": "step", "nth": 2, "rank": 1, "to": [1], "do": "SIGTERM", "rest": True}
    done = launched("--resume", "auto", fault=fault, restarts=1)
    assert done.status == 0, done.agent
    first, again = [out for out in done.outs if out]
    assert first.endswith("stopped by a signal, and saved: --resume auto goes on from here\n")
    assert progress(SimpleNamespace(outs=[again]))[:2] == (0, 2)
    done.statuses, done.errs = [0], []
    assert not (why := wrong_end(done, whole())), why


def test_ranks_end_with_a_launcher_that_was_killed(launched, begin, whole):
    killed = launched(
        "--save-every", 1, fault={"at": "step", "nth": 2, "to": ["agent"], "do": "SIGKILL"}
    )
    assert killed.status == -9
    assert not unreadable(killed.folder)
    resumed = begin("--resume", "auto", folder=killed.folder)()
    epochs, steps, _ = progress(resumed)
    assert epochs * STEPS + steps >= killed.fired["steps"]
    assert not (why := wrong_end(resumed, whole())), why


@pytest.mark.parametrize(
    ("to", "name"),
    [
        (["agent"], "SIGTERM"),
        pytest.param([1], "SIGTERM", marks=pytest.mark.thorough),
        pytest.param(["agent", 0, 1], "SIGUSR1", marks=pytest.mark.thorough),
    ],
)
def test_a_signal_under_a_launcher_saves_and_ends_all_ranks(to, name, launched, begin, whole):
    """A5: also where the launcher, which does not know SIGUSR1, dies of it at once."""
    fault = {"at": "step", "nth": 2, "rank": 1, "to": to, "do": name, "rest": True}
    stopped = launched(fault=fault)
    assert stopped.status == -signal.SIGUSR1 if name == "SIGUSR1" else stopped.status != 0
    assert stopped.outs[0].endswith(
        "stopped by a signal, and saved: --resume auto goes on from here\n"
    )
    if (
        to == [1]
        # torchrun lists how ranks have ended, unless it is ended itself; an older one lists the first
        # alone
    ):
        assert set(re.findall(r"exitcode +: (-?\d+)", stopped.agent)) == {"75"}, stopped.agent
    resumed = begin("--resume", "auto", folder=stopped.folder)()
    assert progress(resumed) == (0, 2, "")
    assert not (why := wrong_end(resumed, whole())), why


def test_dataparallel_ends_at_ctrl_c_with_status_75_and_resumes_like_an_undisturbed_run(
    build_of, data, tmp_path
):
    def start(folder, *more):
        argv = [build_of() / "dataparallel.py", "--data", data, *RECIPE, "-b", "2", *more]
        argv = [sys.executable, *argv, "--output-dir", tmp_path / folder]
        argv, env = list(map(str, argv)), environment_of()
        return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True)

    whole, cut = start("whole"), start("cut")
    for line in cut.stdout:
        if line.startswith("Epoch: [0][ 2/12]"):
            cut.send_signal(signal.SIGINT)
            break
    assert cut.communicate(timeout=PATIENCE)[0].endswith(
        "stopped by a signal, and saved: --resume auto goes on from here\n"
    )
    assert (cut.returncode, whole.wait(timeout=PATIENCE)) == (75, 0)
    left = torch.load(tmp_path / "cut" / FILES[0], weights_only=True)
    assert left["epoch"] == 0 and 3 <= left["step"] <= 12
    assert start("cut", "--resume", "auto").wait(timeout=PATIENCE) == 0
    ends = [
        torch.load(tmp_path / folder / FILES[0], weights_only=True) for folder in ("whole", "cut")
    ]
    for part in ("state_dict", "optimizer", "best_acc1", "epoch"):
        assert str(flat(ends[0][part])) == str(flat(ends[1][part])), part
    assert len((tmp_path / "cut" / "dataparallel.csv").read_text().splitlines()) == 2


def flat(value):
    """Tensors as lists, whatever holds them: every bit of a float is in its text."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return {name: flat(part) for name, part in value.items()} if isinstance(value, dict) else value
