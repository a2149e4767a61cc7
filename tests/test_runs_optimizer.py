"""Ring 3: two ranks with AdamW, a warm-up, a cosine and clipped gradients, killed inside an epoch
and resumed, end as if nothing had been.
"""

import pytest
from test_runs_fast import killed_after_save
from test_runs_faults import DONE, FILES, difference, state

torch = pytest.importorskip("torch")

STEPS = 3  # an epoch: 24 images, 8 a step
RECIPE = ["--arch", "tiny_vit", "--batch-size", "8", "--epochs", "2", "--seed", "1"]
RECIPE += ["--workers", "0", "--save-every", "1", "--print-freq", "1", "--accum", "2"]
RECIPE += ["--opt", "adamw", "--betas", "0.8", "0.95", "--lr", "0.01", "--wd", "0.1"]
RECIPE += ["--schedule", "cosine", "--warmup-steps", "4", "--warmup-start", "0.25"]
RECIPE += ["--clip-grad", "0.5"]


def test_a_killed_run_goes_on_bit_for_bit_with_the_rate_of_its_step(
    fork, build_of, noise, tmp_path_factory
):
    def begin(*options, folder=None, **given):
        folder = folder or tmp_path_factory.mktemp("job") / "run"
        argv = ["--data", noise, *RECIPE, "--output-dir", folder, *options]
        script = build_of("--series", "vit") / "distributed.py"
        return fork(script, *argv, ranks=2, folder=folder, **given)

    struck = begin(fault=killed_after_save(STEPS + 2))
    whole, killed = begin()(), struck()
    assert whole.statuses == [0, 0], whole.err
    assert "VisionTransformer" not in whole.err  # neither SGD nor steps
    assert "learning rate: 0.01, along a cosine to 0 in epoch 2; before that 1.3" in whole.outs[0]
    assert killed.fired and -9 in killed.statuses, killed.err
    part = state(killed.folder / FILES[0])
    assert (part["epoch"], part["step"]) == (1, 1)
    rates = [group["lr"] for group in part["optimizer"]["param_groups"]]
    assert rates == pytest.approx([0.01 * (0.25 + 0.75 * 3 / 4)] * 2)  # its fourth step
    resumed = begin("--resume", "auto", folder=killed.folder)()
    assert resumed.statuses == [0, 0], resumed.err
    _, epochs, steps, more = DONE.search(resumed.outs[0]).groups()
    assert (epochs, steps, more) == ("1", "1", "")
    ends = [state(end.folder / FILES[0]) for end in (resumed, whole)]
    assert not (where := difference(*ends)), where
    optimizer = ends[1]["optimizer"]
    assert {float(kept["step"]) for kept in optimizer["state"].values()} == {6}
    decaying, others = optimizer["param_groups"]
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.1, 0)
    assert decaying["lr"] == pytest.approx(0.005)  # the sixth step: half of the cosine
