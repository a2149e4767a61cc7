"""Ring 3: the series `fast` in whole runs, of two ranks, on photographs: a run that was killed ends
as if it had not been, and with everything off that rounds otherwise, losses are those of
`standard`.
"""

import random
import re

import pytest
from test_runs_faults import DONE, FILES, difference, state

torch = pytest.importorskip("torch")

RECIPE = ["--batch-size", "6", "--lr", "0.01", "--epochs", "2", "--seed", "1", "--workers", "1"]
STEPS = 2  # an epoch
EXACT = ["--amp", "off", "--exact-transforms"]


@pytest.fixture(scope="module")
def photos(shared):
    """Three classes with four JPEGs each to train on and two to validate, of 240 x 180 or more."""

    def make(folder):
        from PIL import Image

        dice = random.Random(1)
        for part, count in (("train", 4), ("val", 2)):
            for label in range(3):
                (folder / part / str(label)).mkdir(parents=True)
                for number in range(count):
                    image = Image.new("RGB", (8, 6))
                    for place in range(48):
                        colour = [dice.randrange(150) for _ in range(3)]
                        colour[label] += 100
                        image.putpixel((place % 8, place // 8), tuple(colour))
                    size = (240 + 80 * number, 180 + 60 * number)
                    image = image.resize(size, Image.Resampling.BICUBIC)
                    image.save(folder / part / str(label) / f"{number}.JPEG", quality=90)

    return shared("photos", make)


@pytest.fixture(scope="module")
def begin(fork, build_of, photos, tmp_path_factory):
    """A function that starts a job of two ranks, and gives what waits for its end; see `fork`."""

    def begin(series, *options, folder=None, **given):
        folder = folder or tmp_path_factory.mktemp("job") / "run"
        argv = ["--data", photos, *RECIPE, "--output-dir", folder, *options]
        script = build_of("--series", series) / "distributed.py"
        return fork(script, *argv, ranks=2, folder=folder, **given)

    return begin


def killed_after_save(number):
    """The plan that kills both ranks; with --save-every 1, each step saves, and then each epoch."""
    place = f"replace {FILES[0]}"
    return {"at": place, "nth": number, "when": "after", "to": [0, 1], "do": "SIGKILL"}


def test_a_killed_run_with_accumulation_ends_bit_for_bit_like_a_whole_one(begin):
    """As it comes: what the device computes fast, fast decoding, batches ahead, parts of 2 and 1."""
    options = ["--arch", "shufflenet_v2_x0_5", "--accum", "2", "--save-every", "1"]
    struck = begin("fast", *options, fault=killed_after_save(STEPS + 2))
    whole, killed = begin("fast", *options)(), struck()
    assert whole.statuses == [0, 0], whole.err
    assert killed.fired and -9 in killed.statuses, killed.err
    resumed = begin("fast", *options, "--resume", "auto", folder=killed.folder)()
    assert resumed.statuses == [0, 0], resumed.err
    _, epochs, steps, more = DONE.search(resumed.outs[0]).groups()
    assert (epochs, steps, more) == ("1", "1", "")
    for name in (FILES[0], FILES[2]):
        pair = (state(end.folder / name) for end in (resumed, whole))
        assert not (where := difference(*pair)), where


LOSS = re.compile(r"Epoch: .*Loss (\S+) ")


@pytest.mark.parametrize(
    "arch, options", [("tiny", []), ("tiny_vit", ["--accum", "2"])], ids=["whole batches", "parts"]
)
def test_losses_and_weights_are_those_of_standard(arch, options, begin):
    """After five steps of three an epoch. A model without BatchNorm sees no parts."""
    given = ["--arch", arch, "--batch-size", "4", "--save-every", "1"]
    jobs = [("standard", given), ("fast", [*given, *EXACT, *options])]
    starts = [begin(series, *argv, fault=killed_after_save(6)) for series, argv in jobs]
    ends = [end() for end in starts]
    assert all(end.fired and -9 in end.statuses for end in ends), [end.err for end in ends]
    for name, steps in ((FILES[0], 2), (FILES[1], 1)):
        plain, fast = (state(end.folder / name) for end in ends)
        assert [(one["epoch"], one["step"]) for one in (plain, fast)] == [(1, steps)] * 2
        loss, *hits = fast["sums"][2:]
        expected, *others = plain["sums"][2:]
        assert loss == pytest.approx(expected, rel=0, abs=1e-5 * loss[1]) and hits == others
        assert plain["best_acc1"] == fast["best_acc1"]
        weights = (one["state_dict"] for one in (plain, fast))
        assert not (where := difference(*weights, within=1e-5)), where


def test_a_convolutional_model_begins_with_the_loss_of_standard(begin):
    """With --amp off the weights lie as ever. BatchNorm of two images multiplies each bit."""
    given = ["--arch", "shufflenet_v2_x0_5", "--epochs", "1", "--batch-size", "12"]
    starts = [begin("standard", *given), begin("fast", *given, *EXACT)]
    ends = [end() for end in starts]
    assert [end.statuses for end in ends] == [[0, 0], [0, 0]], [end.err for end in ends]
    ((one,), (other,)) = (map(float, LOSS.findall(end.outs[0])) for end in ends)
    assert one == pytest.approx(other, rel=0, abs=1e-4)  # four digits are printed


def test_vit_without_options_trains_bit_for_bit_like_fast(begin):
    starts = [begin(series, "--arch", "tiny_vit", "--epochs", "1") for series in ("fast", "vit")]
    ends = [end() for end in starts]
    assert [end.statuses for end in ends] == [[0, 0], [0, 0]], [end.err for end in ends]
    fast, vit = (state(end.folder / FILES[0]) for end in ends)
    for name in ("state_dict", "optimizer", "sums", "best_acc1"):
        assert not (where := difference(fast[name], vit[name])), where
