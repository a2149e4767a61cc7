"""Model and loss get mixed images and the shares of their classes; without the options, neither."""

import torch
from builds import run_loop


def trained(module, monkeypatch, **options):
    """What the model and the loss got in two batches, of four images and of one."""
    torch.manual_seed(2)
    images, labels = torch.rand(5, 3, 8, 8), torch.tensor([0, 1, 2, 3, 5])
    model, got, wanted = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 6)), [], []
    model.register_forward_pre_hook(lambda model, inputs: got.append(inputs[0]))
    loss = torch.nn.CrossEntropyLoss.forward

    def noting(self, scores, labels):
        wanted.append(labels)
        return loss(self, scores, labels)

    with monkeypatch.context() as context:
        context.setattr("torch.nn.CrossEntropyLoss.forward", noting)
        if hasattr(module, "precision"):
            context.setattr(module.precision, "_dtype", None)
        batches = [(images[:4], labels[:4]), (images[4:], labels[4:])]
        run_loop(module, "train", context, model, batches, {"num_classes": 6, **options})
    return images, labels, got, wanted


def serves(distributed, dataparallel, monkeypatch):
    for module in (distributed, dataparallel):
        assert vars(module.parser.parse_args(["--mixup", "0.2", "--cutmix", "1"]))["mixup"] == 0.2
        for options in ({"mixup": 1.0}, {"cutmix": 1.0}, {"mixup": 0.2, "cutmix": 1.0}):
            images, labels, got, wanted = trained(module, monkeypatch, **options)
            assert [shares.shape for shares in wanted] == [(4, 6), (1, 6)]
            for shares in wanted:
                torch.testing.assert_close(shares.sum(1), torch.ones(len(shares)))
            assert not torch.equal(got[0], images[:4])
            torch.testing.assert_close(got[1], images[4:])  # one image has nothing to mix with
            parts = trained(module, monkeypatch, accum=2, **options)
            assert torch.equal(torch.cat(parts[3]), torch.cat(wanted))
            assert torch.equal(torch.cat(parts[2]), torch.cat(got))
        images, labels, got, wanted = trained(module, monkeypatch)
        assert torch.equal(torch.cat(got), images) and torch.equal(torch.cat(wanted), labels)
