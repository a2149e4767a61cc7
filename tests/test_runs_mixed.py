"""Ring 3: two ranks that mix and repeat images, smooth labels and average weights go on, bit for bit."""

import pytest

torch = pytest.importorskip("torch")

ONCE_MORE = "once more, with the averaged weights:\n"
RECIPE = ["--mixup", "0.2", "--cutmix", "1", "--repeats", "3", "--label-smoothing", "0.1"]
RECIPE += ["--ema", "8", "--accum", "2", "--amp", "off"]


def test_two_ranks_go_on_inside_an_epoch_with_all_that_they_mix_and_average(fork, build_of, data):
    """Five steps an epoch: the average moves after steps 32 and 64, and the job stops near 47."""
    script = build_of("--series", "vit") / "distributed.py"
    job = ["--data", data, "--arch", "tiny", "--batch-size", "4", "--seed", "1", "--lr", "0.01"]
    job += ["--print-freq", "100", "--workers", "0", "--epochs", "13", "--resume", "auto"]
    whole = fork(script, *job, *RECIPE, ranks=2)
    fault = {"at": "step", "nth": 48, "do": "SIGTERM", "to": [0, 1], "rest": True}
    stopped = fork(script, *job, *RECIPE, ranks=2, fault=fault)()
    assert stopped.statuses == [75, 75], stopped.err
    state = torch.load(stopped.folder / "checkpoint.pth.tar", weights_only=True)
    assert state["epoch"] == 9 and 0 < state["step"] < 5
    assert int(state["ema"]["n_averaged"]) == 1
    again = fork(script, *job, *RECIPE, ranks=2, folder=stopped.folder)()
    whole = whole()
    assert whole.statuses == again.statuses == [0, 0], whole.err + again.err
    assert f"9 epochs and {state['step']} steps done" in again.outs[0]
    assert whole.outs[0].count(ONCE_MORE) == 7  # epochs 6 to 12

    files = [one.folder / "checkpoint.pth.tar" for one in (whole, again)]
    first, second = (torch.load(file, weights_only=True) for file in files)
    assert int(first["ema"]["n_averaged"]) == 2
    for name in ("state_dict", "ema"):
        for key, value in first[name].items():
            assert torch.equal(value, second[name][key]), (name, key)
    assert not torch.equal(first["ema"]["module.3.weight"], first["state_dict"]["3.weight"])
    assert first["best_acc1"] == second["best_acc1"]

    job[job.index("auto")] = files[0]
    evaluated = fork(script, *job, "--evaluate", ranks=2)()
    assert evaluated.statuses == [0, 0] and evaluated.outs[0].count(ONCE_MORE) == 1
    lines = [line for line in whole.outs[0].splitlines() if line.startswith(" * Acc@1")]
    assert lines[-2:] == [one for one in evaluated.outs[0].splitlines() if one in lines[-2:]]
