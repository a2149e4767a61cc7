"""`support.averaging`: when the average of the weights moves, how far, and what is kept of it."""

import copy
import threading

import pytest

torch = pytest.importorskip("torch")

from tiny_run import new_process, run_of, settings, state_of  # noqa: E402

from patches.support import averaging, ranks  # noqa: E402

THREAD = threading.Thread


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    new_process(tmp_path, monkeypatch)
    monkeypatch.setattr(averaging, "_average", None)
    monkeypatch.setattr(averaging.network.time, "sleep", lambda seconds: None)


def net():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))


def begun(model, ema=2.0, steps=64, state=None, **more):
    """A run with a loader of so many batches, which averages its weights."""
    args = settings(ema=ema, **more)
    run = run_of(model, args=args, state=state)
    averaging.begin(run, range(steps), args)
    return run


def trained(run, steps, first=0, epoch=0):
    """After each of these steps: numbers of the step and the epoch alone are added to the model."""
    model = averaging.network.unwrap(run.model)
    history = []
    for step in range(first, first + steps):
        dice = torch.Generator().manual_seed(1000 * epoch + step)
        with torch.no_grad():
            for value in (*model.parameters(), model[1].running_mean, model[1].running_var):
                value.add_(torch.randn(value.shape, generator=dice).abs(), alpha=0.1)
            model[1].num_batches_tracked += 1
        run.epoch = epoch
        averaging.update(run, step)
        history.append(copy.deepcopy(model.state_dict()))
    return history


def average():
    return averaging._average.module.state_dict()


def assert_close(found, wanted, **tolerance):
    assert set(found) == set(wanted)
    for name, value in found.items():
        if value.is_floating_point():
            torch.testing.assert_close(value.double(), wanted[name].double(), **tolerance)


# How far


@pytest.mark.parametrize("ema, steps", [(2.0, 64), (11.7, 40), (0.75, 50)])
def test_the_average_is_that_of_a_computation_in_double_precision(ema, steps):
    run = begun(net(), ema, steps)
    history = [one for epoch in range(8) for one in trained(run, steps, epoch=epoch)]
    wanted, share = None, min(1, 32 / (ema * steps))
    for weights in history[31::32]:
        numbers = {name: value.double() for name, value in weights.items()}
        if wanted is None:
            wanted = numbers  # the first one is a copy
        for name, value in wanted.items():
            wanted[name] = (1 - share) * value + share * numbers[name]
    assert_close(average(), wanted, rtol=2e-6, atol=0)
    assert not torch.equal(average()["0.weight"], history[-1]["0.weight"])


@pytest.mark.parametrize("epochs, horizon", [(300, 11.7), (600, 23.4)])
@pytest.mark.parametrize("batch", [256, 4096])
def test_the_share_is_that_of_torchvisions_reference(epochs, horizon, batch):
    images = 1281167
    theirs = (1 - 0.99998) * batch * 32 / epochs  # train.py: alpha * adjust
    ours = averaging.Average(net(), horizon, -(-images // batch), 0).share
    assert ours == pytest.approx(theirs, rel=0.005)


def test_with_a_horizon_below_an_update_it_is_a_copy():
    run = begun(net(), ema=0.01, steps=64)
    history = trained(run, 64)
    assert_close(average(), history[-1], rtol=0, atol=0)


# When


def test_it_moves_after_each_32nd_step_of_all_epochs():
    run = begun(net(), steps=48)
    moved, last = [], average()["0.weight"].clone()
    for epoch in range(3):
        for step in range(48):
            trained(run, 1, first=step, epoch=epoch)
            if not torch.equal(average()["0.weight"], last):
                moved.append(48 * epoch + step + 1)
                last = average()["0.weight"].clone()
    assert moved == [32, 64, 96, 128]


@pytest.mark.parametrize("warmup, copies", [(0, 1), (1, 3), (1.5, 4), (2, 5), (0.25, 1)])
def test_in_warm_up_it_is_a_copy_and_so_is_the_first_update_after_it(warmup, copies):
    run = begun(net(), steps=64, warmup=warmup)
    equal = []
    for update in range(8):
        history = trained(run, 32, first=update % 2 * 32, epoch=update // 2)
        equal.append(torch.equal(average()["0.weight"], history[-1]["0.weight"]))
    assert equal == [True] * copies + [False] * (8 - copies)


# What is kept


def test_an_average_that_goes_on_from_a_checkpoint_is_the_one_that_never_stopped():
    one = begun(net())
    trained(one, 64)
    trained(one, 40, epoch=1)
    torch.save(state_of(one.model) | {"ema": averaging._average.state_dict()}, "a")
    weights = copy.deepcopy(one.model.state_dict())
    trained(one, 24, first=40, epoch=1)
    whole, updates = copy.deepcopy(average()), int(averaging._average.n_averaged)

    state = torch.load("a", weights_only=True)
    other = net()
    other.load_state_dict(weights)
    again = begun(other, state=state)
    assert "ema" not in again.found  # not held in memory twice
    trained(again, 24, first=40, epoch=1)
    assert int(averaging._average.n_averaged) == updates
    for name, value in whole.items():
        assert torch.equal(average()[name], value)


def test_a_checkpoint_has_it_under_the_keys_of_torchvisions_reference():
    run = begun(net())
    kept = run.kept["ema"].state_dict()
    own = run.model.state_dict()
    assert set(kept) == {"n_averaged", *(f"module.{name}" for name in own)}


def test_without_the_option_there_is_none_and_that_of_a_checkpoint_goes():
    run = begun(net(), ema=0, state=state_of(net()) | {"ema": {"module.weight": 1}})
    averaging.update(run, 31)
    assert averaging._average is None and not run.kept and "ema" not in run.found


@pytest.mark.parametrize("wrapper", ["module", "_orig_mod"])
def test_wrappers_have_no_part_in_it(wrapper):
    wrapped = torch.nn.Sequential()
    setattr(wrapped, wrapper, net())
    run = begun(wrapped)
    trained(run, 32)
    assert set(average()) == set(net().state_dict())


def test_a_model_that_is_to_be_compiled_is_averaged_too(monkeypatch):
    monkeypatch.setattr("threading.Thread", THREAD)  # torch's compiler has some
    model = net()
    model.compile(backend="eager")
    trained(begun(model), 32)
    averaging._average.module.eval()
    assert averaging._average.module(torch.ones(2, 3)).shape == (2, 4)


# What is validated


def test_the_average_comes_after_the_model_and_a_line_says_so(capsys):
    run = begun(net())
    assert [*averaging.versions(run.model)] == [run.model]  # nothing yet
    trained(run, 64)
    capsys.readouterr()
    found = averaging.versions(run.model)
    assert next(found) is run.model and capsys.readouterr().out == ""
    assert next(found) is averaging._average.module
    assert capsys.readouterr().out == "once more, with the averaged weights:\n"
    assert not [*found]


def test_as_long_as_it_is_a_copy_the_model_alone_is_validated():
    run = begun(net(), warmup=1)
    trained(run, 64)
    assert [*averaging.versions(run.model)] == [run.model]
    trained(run, 32, epoch=1)
    assert len([*averaging.versions(run.model)]) == 2


def test_an_evaluation_has_the_average_of_its_checkpoint():
    one = begun(net())
    trained(one, 64)
    wanted = copy.deepcopy(average())
    state = state_of(one.model) | {"ema": averaging._average.state_dict()}
    run = begun(net(), ema=0, evaluate=True, state=state)
    _, found = averaging.versions(run.model)
    assert_close(found.state_dict(), wanted, rtol=0, atol=0)
    run = begun(net(), ema=0, evaluate=True, state=state_of(net()))
    assert [*averaging.versions(run.model)] == [run.model]


def test_all_ranks_validate_the_statistics_of_rank_0(monkeypatch):
    run, sent = begun(net()), []
    trained(run, 64)
    monkeypatch.setattr(ranks, "has_process_group", lambda: True)
    monkeypatch.setattr(
        "torch.distributed.broadcast", lambda value, rank: sent.append((value, rank))
    )
    _, found = averaging.versions(run.model)
    assert [value is buffer for (value, _), buffer in zip(sent, found.buffers())] == [True] * 3
    assert {rank for _, rank in sent} == {0}


def test_the_average_uses_the_gpus_of_data_parallel(monkeypatch):
    made = []

    class Parallel(torch.nn.Module):
        def __init__(self, module, device_ids):
            super().__init__()
            self.module, self.device_ids = module, device_ids
            made.append(device_ids)

    run = begun(net())
    trained(run, 64)
    monkeypatch.setattr("torch.nn.DataParallel", Parallel)
    for ids, wanted in (([2, 0], [[2, 0], [2, 0]]), ([], [[]])):
        made.clear()
        _, found = averaging.versions(Parallel(run.model, ids))
        assert made == wanted
        assert averaging.network.unwrap(found) is averaging._average.module


def test_gradients_are_not_recorded_for_it():
    begun(net())
    assert not any(value.requires_grad for value in averaging._average.parameters())
