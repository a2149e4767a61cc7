"""What patches add so that nothing is lost: whole files, checkpoints, resuming."""

import argparse
import os
import random
import stat
import zipfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from patches.added import device, resume, whole_file  # noqa: E402
from patches.added.checkpoint import bare, whole_state  # noqa: E402
from patches.added.job_seed import derived_seed  # noqa: E402
from patches.added.output_dir import in_output_dir  # noqa: E402
from patches.added.samples_left import SamplesLeft, SeededImages, each_epoch, first_step  # noqa: E402
from patches.added.saved_steps import steps_left  # noqa: E402

NAMES = ("checkpoint.pth.tar", "checkpoint_previous.pth.tar", "model_best.pth.tar")


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """One process in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["train.py"])
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def ending(capsys, function, *args) -> str:
    """The line with which a call ends the run."""
    with pytest.raises(SystemExit) as ended:
        function(*args)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


# Whole files


def write(path, content, **more):
    with whole_file.whole_file(path, **more) as temporary:
        Path(temporary).write_bytes(content)


def test_file_is_flushed_before_it_takes_its_place_and_its_folder_after(tmp_path, monkeypatch):
    events = []
    for name in ("fsync", "replace"):
        call = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *args, name=name, call=call: (events.append(name), call(*args)))
    write("a", b"1")
    assert events == ["fsync", "replace", "fsync"]


def test_a_file_that_cannot_be_written_leaves_all_as_it_was(tmp_path, capsys):
    write("a", b"1", previous="b")
    write("a", b"2", previous="b")

    def fails():
        with whole_file.whole_file("a", "b") as temporary:
            Path(temporary).write_bytes(b"half")
            raise OSError(28, "No space left on device")

    line = ending(capsys, fails)
    assert line.startswith(f"train.py: error: cannot write {tmp_path.resolve()}/a (")
    assert line.endswith("No space left on device; what was there stays as it is")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"2", "b": b"1"}


def test_a_link_stays_a_link_and_the_mode_is_that_of_the_umask(tmp_path):
    (tmp_path / "disk").mkdir()
    os.symlink("disk/a", "a")
    old = os.umask(0o027)
    try:
        write("a", b"1")
    finally:
        os.umask(old)
    assert os.readlink("a") == "disk/a"
    assert stat.S_IMODE(os.stat("disk/a").st_mode) == 0o640


@pytest.mark.parametrize("linked", [True, False])
def test_the_best_copy_is_a_link_or_where_there_are_none_a_copy(linked, monkeypatch):
    if not linked:
        monkeypatch.setattr(os, "link", lambda *args: (_ for _ in ()).throw(OSError(95, "not supported")))
    write("a", b"1")
    Path("best.tmp").write_bytes(b"of a run that was killed")
    whole_file.link_whole("a", "best")
    assert os.path.samefile("a", "best") == linked
    write("a", b"2")
    assert (Path("a").read_bytes(), Path("best").read_bytes()) == (b"2", b"1")
    assert sorted(os.listdir()) == ["a", "best"]


def test_lines_are_appended_all_or_none(capsys):
    for number in range(2):
        with whole_file.appended("log", "a", newline="") as file:
            file.write(f"{number}\r\n")

    def fails():
        with whole_file.appended("log", "a", newline="") as file:
            file.write("half")
            raise OSError(28, "No space left on device")

    ending(capsys, fails)
    assert Path("log").read_bytes() == b"0\r\n1\r\n"


def settings(**more):
    base = dict(data="d", evaluate=False, resume=None, overwrite=False, pretrained=False, output_dir="out")
    return argparse.Namespace(**{**base, "arch": "tiny", "seed": None, "batch_size": 4, "lr": 0.1, "epochs": 9, **more})


def test_output_folder_is_made_and_paths_stay_what_they_were(tmp_path):
    args = in_output_dir(settings(resume="old.pth.tar"))
    assert (Path.cwd(), args.data, args.resume) == (tmp_path / "out", f"{tmp_path}/d", f"{tmp_path}/old.pth.tar")
    os.chdir(tmp_path)
    (tmp_path / "out" / "checkpoint.pth.tar.tmp").write_bytes(b"half")
    (tmp_path / "out" / "mine.tmp").write_bytes(b"mine")
    assert in_output_dir(settings(resume="auto")).resume == "auto"
    assert os.listdir() == ["mine.tmp"]


def test_output_folder_that_is_a_file_is_refused(tmp_path, capsys):
    Path("out").touch()
    assert (
        ending(capsys, in_output_dir, settings())
        == "train.py: error: --output-dir out: cannot be written to: File exists"
    )


# Checkpoints


def net(bias=0.0):
    model = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(model.weight, 0.5)
    torch.nn.init.constant_(model.bias, bias)
    return model


def state_of(model, optimizer=None, args=None, **more):
    state = {"epoch": 3, "arch": "tiny", "state_dict": model.state_dict(), "best_acc1": torch.tensor(50.0)}
    args = args or settings(run="r")
    return whole_state(state, model, optimizer or torch.optim.SGD(model.parameters(), 0.1), args, **more)


def test_state_is_plain_enough_for_torch_to_read_it_without_code():
    model = net()
    wrapped = torch.nn.Sequential()
    wrapped.module = torch.nn.Sequential()
    wrapped.module._orig_mod = model
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    torch.save(state_of(wrapped, optimizer, step=4), "a")
    state = torch.load("a", weights_only=True)
    assert set(state["state_dict"]) == {"weight", "bias"}
    assert (state["best_acc1"], state["step"], state["world_size"]) == (50.0, 4, 1)
    assert torch.equal(state["optimizer"]["state"][0]["momentum_buffer"], torch.ones(2, 2))
    assert state["args"]["lr"] == 0.1


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
def test_weights_load_whatever_the_model_was_wrapped_in(prefix):
    model, old = torch.nn.DataParallel(net()), net(bias=7.0)
    weights = {prefix + name: value for name, value in old.state_dict().items()}
    resume.load_weights(model, {"state_dict": weights}, "old")
    assert torch.equal(bare(model).bias, old.bias)


def test_weights_of_another_model_are_refused_by_name(capsys):
    weights = {"weight": torch.ones(3, 2), "other": torch.ones(1)}
    line = ending(capsys, resume.load_weights, net(), {"state_dict": weights}, "old")
    words = "missing bias, unexpected other, weight is [3, 2], not [2, 2]"
    assert line == f"train.py: error: old: not the weights of this model: {words}"


def progress(name, epoch, step, run="r", **more):
    torch.save(dict(state_of(net()), epoch=epoch, step=step, run=run, **more), name)


def flip(name):
    """Change one byte of a tensor, which torch itself does not notice."""
    content = Path(name).read_bytes()
    with zipfile.ZipFile(name) as archive:
        entry = next(info for info in archive.infolist() if "/data/0" in info.filename)
    at = content.index(torch.full((4,), 0.5).numpy().tobytes(), entry.header_offset)
    Path(name).write_bytes(content[:at] + b"\x01" + content[at + 1 :])
    torch.load(name, weights_only=True)


def test_the_newest_whole_checkpoint_of_the_run_is_found(capsys):
    assert resume.newest_checkpoint() == (None, [])
    progress(NAMES[0], 3, 2)
    progress(NAMES[1], 3, 1)
    progress(NAMES[2], 4, 0)  # killed between the best copy and the checkpoint
    assert resume.newest_checkpoint() == (NAMES[2], [])
    progress(NAMES[2], 90, 0, run="another")
    assert resume.newest_checkpoint() == (NAMES[0], [])
    flip(NAMES[0])
    path, broken = resume.newest_checkpoint()
    assert (path, broken) == (NAMES[1], [f"{NAMES[0]}: cannot be read: a checksum does not fit"])


@pytest.mark.parametrize(
    "content, words",
    [
        (b"", "cannot be read: "),
        (b"text\n", "cannot be read: "),
        (None, "not a checkpoint of this script, it has no arch, best_acc1, epoch, state_dict"),
    ],
)
def test_a_file_that_is_no_checkpoint_is_refused(content, words):
    torch.save({"weight": torch.ones(2)}, "a") if content is None else Path("a").write_bytes(content)
    with pytest.raises(ValueError, match="^a: " + words):
        resume.read_checkpoint("a")


@pytest.mark.parametrize("broken", ["cut", "flipped"])
def test_resume_auto_goes_on_from_the_previous_one_and_says_so(broken, capsys):
    progress(NAMES[0], 3, 2)
    progress(NAMES[1], 3, 1)
    Path(NAMES[0]).write_bytes(Path(NAMES[0]).read_bytes()[:500]) if broken == "cut" else flip(NAMES[0])
    assert resume.chosen_checkpoint(settings(resume="auto")) == NAMES[1]
    assert capsys.readouterr().err.startswith(f"train.py: {NAMES[0]}: cannot be read: ")
    assert os.path.samefile(NAMES[0], NAMES[1])  # which is the newest now, and not what the next save puts aside
    flip(NAMES[0])
    with pytest.raises(SystemExit):
        resume.chosen_checkpoint(settings(resume="auto"))
    assert "--resume auto: no checkpoint in " in capsys.readouterr().err


def test_resume_auto_starts_anew_where_there_is_nothing(tmp_path, capsys):
    assert resume.chosen_checkpoint(settings(resume="auto")) is None
    assert capsys.readouterr().out == f"--resume auto: no checkpoint in {tmp_path}, this run starts anew\n"


def test_another_run_is_not_overwritten_unasked(capsys):
    resume.check_resume(settings())
    Path(NAMES[0]).touch()
    assert "is there already, and would be replaced: go on from it with --resume auto" in ending(
        capsys, resume.check_resume, settings()
    )
    for allowed in ({"overwrite": True}, {"resume": "auto"}, {"evaluate": True, "pretrained": True}):
        resume.check_resume(settings(**allowed))


@pytest.mark.parametrize(
    "given, words",
    [
        ({"evaluate": True}, "--evaluate: there are no weights; name a checkpoint with --resume"),
        ({"resume": "old.pth.tar"}, "--resume old.pth.tar: there is no such file"),
    ],
)
def test_what_cannot_be_resumed_is_one_line(given, words, capsys):
    assert words in ending(capsys, resume.check_resume, settings(**given))


def test_disk_without_room_for_the_checkpoints_is_refused(monkeypatch, capsys):
    free = {"free": 256}  # 8 numbers of 4 bytes, and as many of the optimizer, four times
    monkeypatch.setattr("shutil.disk_usage", lambda path: argparse.Namespace(**free))
    resume.check_room(torch.nn.Linear(1, 4))
    free["free"] = 190
    words = "0.0 MB free, and checkpoints take up to 0.0 MB; choose another --output-dir"
    assert words in ending(capsys, resume.check_room, torch.nn.Linear(1, 4))
    Path(NAMES[0]).write_bytes(bytes(66))  # which it will replace
    os.link(NAMES[0], NAMES[2])
    resume.check_room(torch.nn.Linear(1, 4))


def resumed(state, **given):
    torch.save(state, "a")
    args, model = settings(resume="a", **given), net()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    resume.resumed(optimizer, model, args)
    return args, model, optimizer


def test_weights_momentum_and_progress_come_back_and_the_command_line_wins(capsys, monkeypatch):
    old = net(bias=3.0)
    optimizer = torch.optim.SGD(old.parameters(), 0.1, momentum=0.5)
    old(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state = state_of(old, optimizer, settings(job_seed=77), step=5, images=20, meters=[[1.0, 2]])
    monkeypatch.setattr(resume, "class_folders", lambda folder: state["classes"])
    args, model, new = resumed(state, lr=0.2)
    assert torch.equal(model.weight, old.weight)
    assert torch.equal(new.state[model.weight]["momentum_buffer"], optimizer.state[old.weight]["momentum_buffer"])
    assert (new.param_groups[0]["lr"], new.param_groups[0]["momentum"]) == (0.2, 0.9)
    assert (args.start_epoch, args.images_done, args.best_acc1, args.job_seed) == (3, 20, 50.0, 77)
    out = capsys.readouterr().out
    assert out == "a: 3 epochs and 5 steps are done, best Acc@1 50.000; lr was 0.1, is 0.2\n"


def test_another_world_size_goes_on_and_says_what_changed(capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    state = dict(state_of(net()), world_size=2, step=5, images=40, classes=[])
    args, _, _ = resumed(state)
    words = (
        "world_size was 2, is 3; global_batch was 8, is 12; the last 4 images of its unfinished epoch are trained again"
    )
    assert capsys.readouterr().out.endswith(f"; {words}\n")
    assert first_step(args, 3, range(20)) == 3  # 36 of the 40 images


def test_upstreams_four_keys_are_weights_and_a_best_that_cannot_be_is_forgotten(capsys):
    state = {"epoch": 2, "arch": "tiny", "state_dict": net(1.0).state_dict(), "best_acc1": 177.778}
    args, model, _ = resumed(state)
    assert (args.start_epoch, args.best_acc1, model.bias.tolist()) == (2, 0.0, [1.0, 1.0])
    out = capsys.readouterr().out
    assert "there is no optimizer in it" in out and "its best Acc@1, 177.778 %, cannot be: forgotten" in out


@pytest.mark.parametrize(
    "change, words",
    [
        ({"arch": "huge"}, "--resume a: it is of huge, --arch says tiny"),
        ({"classes": ["cat"]}, "--resume a: it has 1 classes, train/ has 0; not in both: cat"),
    ],
)
def test_checkpoint_of_another_model_or_data_set_is_refused(change, words, capsys):
    assert ending(capsys, resumed, dict(state_of(net()), **change)) == f"train.py: error: {words}"


# What is left of an epoch


def sampled(images, epoch, start=(0, 0), seed=1, batch=4):
    args = settings(batch_size=batch, start_epoch=start[0], images_done=start[1], job_seed=seed)
    sampler = SamplesLeft(torch.utils.data.RandomSampler(range(images)), args)
    (args.epoch,) = each_epoch([epoch], args)
    return list(sampler)


def test_a_resumed_epoch_has_the_samples_left_that_the_whole_one_ends_with():
    whole = sampled(10, epoch=2)
    assert sorted(index for index, _ in whole) == list(range(10))
    assert sampled(10, epoch=2) == whole != sampled(10, epoch=3)
    assert sampled(10, epoch=2, seed=5) != whole
    for steps in range(4):
        assert sampled(10, epoch=2, start=(2, 4 * steps)) == whole[4 * steps :]
    assert len(sampled(10, epoch=3, start=(2, 8))) == 10


@pytest.mark.parametrize("world, images, batch, step", [(1, 12, 4, 3), (2, 16, 4, 2), (2, 70, 4, 9), (4, 70, 8, 3)])
def test_steps_that_are_done_are_counted_over_all_ranks(world, images, batch, step, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", str(world))
    args = settings(batch_size=batch, start_epoch=0, images_done=images)
    assert first_step(args, 0, range(-(-70 // world))) == step  # of 70 images, all done at 70 and more
    assert first_step(args, 1, range(-(-70 // world))) == 0


def test_an_image_is_augmented_by_its_seed_and_leaves_the_generators_alone():
    class Draws(list):
        def __getitem__(self, index):
            return index, random.random(), torch.rand(1).item()

    images = SeededImages(Draws(range(3)))
    random.seed(0)
    torch.manual_seed(0)
    states = random.getstate(), torch.get_rng_state()
    first = images[1, 5]
    assert images[2, 9][1:] != first[1:] and images[1, 5] == first
    assert random.getstate() == states[0] and torch.equal(torch.get_rng_state(), states[1])


def test_seeds_differ_by_each_part():
    seeds = {derived_seed(*parts) for parts in ((1, 2, 3), (1, 2, 4), (1, 23), (12, 3), (1, 2), (2, 1))}
    assert len(seeds) == 6


class Steady:
    """Stands for the watch of a job that nobody stops."""

    def beat(self):
        pass

    def goes_on(self):
        return True


@pytest.mark.parametrize("rank", [0, 1])
def test_a_resumed_epoch_draws_in_its_steps_what_the_whole_one_draws_there(rank, monkeypatch):
    monkeypatch.setenv("RANK", str(rank))
    loader = argparse.Namespace(sampler=range(20))
    dropout = torch.nn.Dropout()

    def drawn(epoch, done=0, seed=3):
        args = settings(start_epoch=epoch, images_done=done, job_seed=seed, save_every=0, watch=Steady())
        args.device = torch.device("cpu")
        batches = type("Loader", (list,), {"sampler": loader.sampler})(range(5 - done // 4))
        progress = argparse.Namespace(meters=[])
        steps = steps_left(batches, progress, None, None, epoch, args)
        torch.manual_seed(done)  # whatever state the process is in
        return {step: dropout(torch.ones(32)).tolist() for step, _ in steps}

    whole = drawn(2)
    assert sorted(whole) == list(range(5)) and len({tuple(mask) for mask in whole.values()}) == 5
    assert drawn(2, done=12) == {step: whole[step] for step in (3, 4)}
    assert drawn(3)[0] != whole[0] != drawn(2, seed=4)[0]
    monkeypatch.setenv("RANK", str(1 - rank))
    assert drawn(2)[0] != whole[0]


@pytest.mark.parametrize("launched", [True, False])
def test_ranks_join_within_the_timeout_and_under_a_launcher_with_keys_of_this_start(launched, monkeypatch):
    joined = {}
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda **options: joined.update(options))
    monkeypatch.setattr(device.signal, "signal", lambda number, handler: None)
    shared = torch.distributed.HashStore()
    monkeypatch.setattr(torch.distributed, "rendezvous", lambda url, timeout: iter([(shared, 1, 2)]))
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    if launched:
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "3")
    device.join_process_group(argparse.Namespace(device="cpu", timeout=40.0))
    assert joined["timeout"].total_seconds() == 60  # a little later than the watch, which says more
    assert joined["backend"] == "gloo"
    assert ("store" in joined) == launched
    if launched:
        joined["store"].set("key", "value")
        assert (joined["rank"], joined["world_size"]) == (1, 2)
        assert shared.check(["start3/key"]) and not shared.check(["key"])
