"""A batch is computed in parts, and the run is the one of whole batches."""

import contextlib

import torch
from builds import run_loop


class Counting(torch.nn.Linear):
    """A model that notes the sizes of its batches, and which of them DDP would not reduce."""

    def __init__(self):
        super().__init__(6, 6)
        self.sizes, self.held, self.quiet = [], [], False

    @contextlib.contextmanager
    def no_sync(self):
        self.quiet = True
        yield
        self.quiet = False

    def forward(self, inputs):
        self.sizes.append(len(inputs))
        self.held.append(self.quiet)
        return super().forward(inputs)


def trained(module, monkeypatch, accum):
    """The model after three batches of six, six and three images, and the meters' sums."""
    torch.manual_seed(5)
    model, meters = Counting(), []
    batches = [(torch.randn(n, 6), torch.randint(6, (n,))) for n in (6, 6, 3)]
    with monkeypatch.context() as context:
        made = module.AverageMeter

        class Meter(made):
            def __init__(self, *given):
                super().__init__(*given)
                meters.append(self)

        context.setattr(module, "AverageMeter", Meter)
        if hasattr(module, "precision"):  # bfloat16, if a run has begun before, would round
            context.setattr(module.precision, "_dtype", None)
        run_loop(module, "train", context, model, batches, {"accum": accum})
    sums = [
        (float(meter.sum), meter.count) for meter in meters if meter.name not in ("Time", "Data")
    ]
    return model, sums


def serves(distributed, dataparallel, monkeypatch):
    for module in (distributed, dataparallel):
        assert module.parser.parse_args(["--accum", "4"]).accum == 4
        whole, sums = trained(module, monkeypatch, 1)
        assert whole.sizes == [6, 6, 3] and not any(whole.held)
        parts, others = trained(module, monkeypatch, 4)
        assert parts.sizes == [2, 2, 1, 1, 2, 2, 1, 1, 1, 1, 1]
        assert parts.held == [True, True, True, False] * 2 + [True, True, False]
        torch.testing.assert_close(parts.weight, whole.weight, rtol=0, atol=1e-6)
        torch.testing.assert_close(torch.tensor(others), torch.tensor(sums), rtol=0, atol=1e-5)
