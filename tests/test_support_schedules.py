"""`support.schedules`: the rate of each step, against torch's own schedulers and closed forms."""

import argparse
import math
import random

import pytest

torch = pytest.importorskip("torch")

from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR  # noqa: E402
from torchvision import models  # noqa: E402

from patches.support import arguments, schedules  # noqa: E402

nn = torch.nn


def args_of(*argv, lr=0.1, epochs=90, evaluate=False, **more):
    parser = argparse.ArgumentParser()
    schedules.add_options(parser)
    numbers = {"lr": lr, "epochs": epochs, "evaluate": evaluate, **more}
    return argparse.Namespace(**vars(parser.parse_args(map(str, argv))), **numbers)


def test_by_default_the_rate_is_that_of_upstream_in_each_step_to_the_bit():
    for lr in (0.1, 0.001, 0.3):
        args = args_of(lr=lr)
        for steps in (1, 7, 1252):
            for epoch in (0, 1, 29, 30, 59, 60, 89):
                for step in {0, steps // 2, steps - 1}:
                    expected = lr * 0.1 ** (epoch // 30)  # the line of upstream
                    assert schedules.rate(epoch + step / steps, args) == expected


@pytest.mark.parametrize(
    "lr, least, first, warm, epochs, steps",
    [
        (0.003, 0.0, 0.033, 30, 300, 13),  # torchvision's ViT
        (0.5, 1e-4, 0.01, 5, 20, 40),
        (0.1, 0.0, 0.0, 1, 2, 5),
    ],
)
def test_the_rate_is_that_of_torchs_schedulers_in_every_step(lr, least, first, warm, epochs, steps):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr)
    # LinearLR takes no factor of 0; it goes from there in a line, so one that small is the same.
    parts = [
        LinearLR(optimizer, max(first, 1e-300), total_iters=warm * steps),
        CosineAnnealingLR(optimizer, (epochs - warm) * steps, least),
    ]
    scheduler = SequentialLR(optimizer, parts, [warm * steps])
    argv = ("--schedule", "cosine", "--warmup", warm, "--warmup-start", first, "--min-lr", least)
    args = args_of(*argv, lr=lr, epochs=epochs)
    for number in range(epochs * steps):
        epoch, step = divmod(number, steps)
        (theirs,) = scheduler.get_last_lr()
        ours = schedules.rate(epoch + step / steps, args)
        assert ours == pytest.approx(theirs, rel=1e-8, abs=1e-12), number
        optimizer.step()
        scheduler.step()


def test_first_and_last_step_of_the_warm_up_and_of_the_training():
    args = args_of("--schedule", "cosine", "--warmup", 2, "--warmup-start", 0.25, epochs=10)
    steps = 8
    assert schedules.rate(0, args) == 0.1 * 0.25
    last = schedules.rate(1 + 7 / steps, args)
    assert last == pytest.approx(0.1 * (0.25 + 0.75 * 15 / 16))
    assert schedules.rate(2, args) == 0.1
    assert schedules.rate(6, args) == pytest.approx(0.05)  # half of the cosine
    end = schedules.rate(9 + 7 / steps, args)
    assert end == pytest.approx(0.1 * math.sin(math.pi / 2 / 64) ** 2)
    assert schedules.rate(10, args) == pytest.approx(0, abs=1e-18)


def test_the_rate_does_not_hang_on_what_was_asked_before():
    args = args_of("--schedule", "cosine", "--warmup", 3, epochs=7)
    epochs = [n / 11 for n in range(77)]
    in_order = [schedules.rate(epoch, args) for epoch in epochs]
    shuffled = random.Random(0).sample(range(77), 77)
    assert [schedules.rate(epochs[n], args) for n in shuffled] == [in_order[n] for n in shuffled]


def test_the_warm_up_goes_before_steps_too_and_min_lr_ends_them():
    args = args_of("--warmup", 40, "--warmup-start", 0, "--min-lr", 0.002, lr=0.1)
    assert schedules.rate(20, args) == pytest.approx(0.05)
    assert schedules.rate(35, args) == pytest.approx(0.01 * 35 / 40)
    assert schedules.rate(45, args) == pytest.approx(0.01)
    assert schedules.rate(60, args) == schedules.rate(89.9, args) == 0.002


@pytest.mark.parametrize("epochs, warm", [(1, 1), (3, 30), (0, 0)])
def test_a_warm_up_as_long_as_the_training_is_all_there_is(epochs, warm):
    args = args_of("--schedule", "cosine", "--warmup", warm, lr=1, epochs=epochs)
    for step in range(epochs * 4):
        expected = 0.01 + 0.99 * step / 4 / warm
        assert schedules.rate(step / 4, args) == pytest.approx(expected)


def test_steps_of_warm_up_become_epochs_and_the_line_says_what_the_rate_is(capsys):
    argv = ("--schedule", "cosine", "--warmup-steps", 10000, "--warmup-start", 0)
    args = args_of(*argv, lr=0.003, epochs=300)
    schedules.begin(nn.Linear(1, 1), range(313), args)
    assert args.warmup == 10000 / 313
    assert schedules.rate(31 + 297 / 313, args) == pytest.approx(0.003, rel=1e-12)  # step 10,000
    assert schedules.rate(15 + 305 / 313, args) == pytest.approx(0.0015, rel=1e-12)  # step 5,000
    out, err = capsys.readouterr()
    assert out == (
        "learning rate: 0.003, along a cosine to 0 in epoch 300; "
        "before that 31.9489 epochs of warm-up, from 0\n"
    )
    assert err == ""


@pytest.mark.parametrize(
    "argv, line",
    [
        ((), "0.1, a tenth of it after each 30 epochs"),
        (("--min-lr", "1e-5"), "0.1, a tenth of it after each 30 epochs, and never below 1e-05"),
        (
            ("--warmup", "0.5"),
            "0.1, a tenth of it after each 30 epochs; before that 0.5 epochs of warm-up, "
            "from 0.001",
        ),
    ],
)
def test_the_line_names_the_steps_their_end_and_the_warm_up(argv, line, capsys):
    schedules.begin(nn.Linear(1, 1), range(4), args_of(*argv))
    assert capsys.readouterr() == (f"learning rate: {line}\n", "")


def vit():
    return models.VisionTransformer(8, 4, 1, 1, 4, 4)


@pytest.mark.parametrize(
    "lr, epoch", [(0.001, 90), (0.1, 150), (0.0011, 120), (1e-6, 0), (0.0009, 90), (1000, 270)]
)
def test_a_vit_with_sgd_and_steps_draws_one_warning_that_names_the_epoch(lr, epoch, capsys):
    """The guide's rate of 0.001 is 1e-6 after 90 of its 400 epochs."""
    model = nn.ModuleDict({"module": vit()})  # as a wrapper has it
    schedules.begin(model, range(4), args_of(lr=lr, epochs=400, opt="sgd"))
    err = capsys.readouterr().err
    assert err.count("warning: ") == err.count("\n") == 1
    assert f"from epoch {epoch} on the learning rate is 1e-06 or less" in err
    assert epoch == 0 or schedules.rate(epoch - 1, args_of(lr=lr)) > 1.001e-6
    assert schedules.rate(epoch, args_of(lr=lr)) < 1.001e-6


@pytest.mark.parametrize(
    "model, argv, more",
    [
        (vit, ("--schedule", "cosine"), {"opt": "sgd"}),
        (vit, (), {"opt": "adamw"}),
        (vit, (), {"evaluate": True}),
        (lambda: nn.Linear(1, 1), (), {}),
    ],
)
def test_other_models_and_other_recipes_draw_none(model, argv, more, capsys):
    schedules.begin(model(), range(4), args_of(*argv, **more))
    assert capsys.readouterr().err == ""


def test_a_rate_that_stays_above_is_not_said_to_fall(capsys):
    schedules.begin(vit(), range(4), args_of("--min-lr", "1e-4"))
    err = capsys.readouterr().err
    assert "--schedule step; --opt adamw" in err and "epoch" not in err


def test_a_warm_up_without_an_end_is_said(capsys):
    schedules.begin(nn.Linear(1, 1), range(4), args_of("--warmup", 30, epochs=3))
    assert "the warm-up takes 30 epochs, and there are 3" in capsys.readouterr().err


def test_both_lengths_of_the_warm_up_are_refused_before_anything_starts(capsys):
    with pytest.raises(SystemExit) as ended:
        arguments.check(args_of("--warmup", 1, "--warmup-steps", 5))
    err = capsys.readouterr().err
    assert (ended.value.code, err.count("\n")) == (2, 1) and "give one of the two" in err
