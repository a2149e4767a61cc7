"""`support.limit` and `support.validation`: when a run is long enough, and when it validates."""

import argparse
from types import SimpleNamespace

import pytest

from patches.support import limit, validation


@pytest.mark.parametrize(
    ("most", "epoch", "step", "reached"),
    [
        (0, 5, 3, False),
        (7, 0, 6, False),
        (7, 0, 7, True),
        (23, 2, 2, False),
        (23, 2, 3, True),
        (20, 2, 0, True),
        (20, 3, 5, True),  # a resumed run has more steps than that
    ],
)
def test_steps_of_all_epochs_count(most, epoch, step, reached):
    run = SimpleNamespace(epoch=epoch, step=step, steps=10)
    assert limit.is_reached(run, argparse.Namespace(max_steps=most)) is reached


@pytest.mark.parametrize(
    ("every", "epochs", "validated"),
    [(1, 3, [0, 1, 2]), (2, 5, [1, 3, 4]), (3, 6, [2, 5]), (9, 4, [3])],
)
def test_every_nth_epoch_and_the_last_are_validated(every, epochs, validated):
    args = argparse.Namespace(val_every=every, epochs=epochs)
    assert [epoch for epoch in range(epochs) if validation.is_due(epoch, args)] == validated
