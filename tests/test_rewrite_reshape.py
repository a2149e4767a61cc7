"""Flattened slices in scripts that are not ours: small inputs, and the exact bytes that they
become.
"""

import pytest
from rewriting import left, rewritten

from patcher.rewrite.sites import State

SITES = [
    "correct[:k].view(-1).float().sum(0, keepdim=True)",
    "correct[: k].view(-1)",
    "correct[:k, :].view(-1)",
    "correct[:k,].view(-1)",
    "correct[:self.topK].view(-1)",
    "correct[:5].view(-1)",
    "correct[0:k].view(-1)",
    "correct[k:].view(-1)",
    "correct[:, :k].view(-1)",
    "correct[:max(topk)].view(-1)",
    "corrects[:k].view(-1)",
    "self.correct[:k].view(-1)",
    "is_correct[:k].view( -1 )",
    "hits[:k].view(-1,)",
    "matches[:k].view((-1,))",
    "correct [:k] .view (-1)",
    "correct[:k].view(- 1)",
    "correct[:k].float().view(-1).sum()",
    "correct[:k].to(torch.float32).view(-1)",
    "(correct[:k]).view(-1)",
    "pred.eq(target)[:k].view(-1)",
    "torch.eq(pred, target)[:k].view(-1)",
    "(pred == target)[:k].view(-1)",
    "pred.t()[:k].view(-1)",
    "pred.T[:k].view(-1)",
    "(correct[:1].view(-1), correct[:5].view(-1))",
    "[correct[:k].view(-1).float().sum(0) for k in topk]",
    "correct[:correct[:k].view(-1).sum()].view(-1)",
    "lambda k: correct[:k].view(-1)",
    "correct[\n        :k  # of the first\n    ].view(  # flat\n        -1  # all\n    )",
    "(correct[:k]\n     # flat\n     .view(-1)\n     .float())",
    "'ä', correct[:k].view(-1), 'ü'",
]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("site", SITES)
def test_slice_of_hits_is_flattened_with_reshape(site, newline):
    source = f"def accuracy(self):\n    n = {site}  # view\n    return n\n".replace("\n", newline)
    expected = source.replace(".view", ".reshape")
    assert rewritten(source) == expected


MAKES = [
    "rows = pred.eq(target.view(1, -1).expand_as(pred))",
    "rows = pred == target",
    "rows = pred.t()",
    "rows = torch.transpose(pred, 0, 1)",
    "rows = pred.permute(1, 0).float()",
    "rows = pred.contiguous()\nrows = rows.t()",
    "rows = pred.t()\nif x:\n    rows = rows.contiguous()",
    "rows = pred.t().contiguous()\nfor x in y:\n    rows = rows.t()",
]


@pytest.mark.parametrize("make", MAKES)
def test_name_of_what_a_comparison_or_a_turn_makes_is_about_hits(make):
    source = f"{make}\nn = rows[:k].view(-1)\n"
    assert rewritten(source) == source.replace("rows[:k].view(-1)", "rows[:k].reshape(-1)")


LEFT = [
    "correct.view(-1)",
    "x.view(-1)",
    "target.view(1, -1)",
    "target.view(1, -1).expand_as(pred)",
    "correct[:k].view(-1, k)",
    "correct[:k].view(k, -1)",
    "correct[:k].view(1)",
    "correct[:k].view(*shape)",
    "correct[:k].view(-1, dtype=x)",
    "correct[:k].view(torch.uint8)",
    "correct[k].view(-1)",
    "correct[0].view(-1)",
    "correct[:].view(-1)",
    "correct[:, 0].view(-1)",
    "correct[...].view(-1)",
    "embeddings[:k].view(-1)",
    "loss[:5].view(-1)",
    "self.weight[:n].view(-1)",
    "view(correct[:k], -1)",
    "'correct[:k].view(-1)'",
    "x  # correct[:k].view(-1)",
    "memoryview(b)[:k].view(-1)",
]


@pytest.mark.parametrize("site", LEFT)
def test_look_alike_is_left_alone_and_not_spoken_of(site):
    left(f"n = {site}\n")


ALREADY = [
    "correct[:k].reshape(-1)",
    "correct[:k].contiguous().view(-1)",
    "correct[:k].contiguous().float().view(-1)",
    "correct[:k].float().contiguous().view(-1)",
    "correct[:k].reshape(-1) .float()",
]


@pytest.mark.parametrize("site", ALREADY)
def test_slice_that_is_flattened_rightly_is_already_so(site):
    left(f"n = {site}\n", state=State.ALREADY)


CONTIGUOUS = [  # the rule in patcher/rewrite/reshape.py
    "correct = pred.eq(t).contiguous()",
    "correct = pred.eq(t)\ncorrect = correct.contiguous()",
    "correct = torch.zeros(5, 10)",
    "correct = torch.randint(0, 2, (5, 10), dtype=torch.uint8)",
    "if x:\n    correct = torch.zeros(5, 10)\nelse:\n    correct = y.contiguous()",
]


@pytest.mark.parametrize("head", CONTIGUOUS)
def test_slice_of_the_first_dimension_of_what_lies_in_order_is_left_alone(head):
    for index in (":k", ":k, :", "0:5"):
        left(f"{head}\nn = correct[{index}].view(-1)\n", state=State.ALREADY)


def test_line_that_makes_a_slice_contiguous_is_named():
    """T16: a slice that is left because a line makes it contiguous names that line, not its own."""
    source = "correct = pred.eq(t)\ncorrect = correct.contiguous()\n\nn = correct[:k].view(-1)\n"
    (finding,) = left(source, state=State.ALREADY)
    assert (finding.line, finding.why) == (2, "the slice in line 4 is contiguous by this")


def test_loop_that_makes_it_contiguous_each_time_is_left_alone():
    body = "correct = x.eq(t)\n    correct = correct.contiguous()\n    n = correct[:k].view(-1)\n"
    left(f"for x in y:\n    {body}", state=State.ALREADY)


@pytest.mark.parametrize("index", [":k, :5", "::2", ":, :k"])
def test_other_slices_of_it_do_not_lie_in_order(index):
    source = f"correct = pred.eq(t).contiguous()\nn = correct[{index}].view(-1)\n"
    assert rewritten(source) == source.replace(".view", ".reshape")


MAYBE = [
    "correct = pred.eq(t)\nif x:\n    correct = correct.contiguous()\nn = FLAT\n",
    "correct = x.contiguous(memory_format=torch.channels_last)\nn = FLAT\n",
    "correct = correct.contiguous()\ncorrect = correct.t()\nn = FLAT\n",
    "for x in y:\n    n = FLAT\n    correct = x.t()\ncorrect = x.contiguous()\n",
    "correct = x.contiguous()\nfor x in y:\n    n = FLAT\n    correct = x.t()\n",
    "correct = x.contiguous()\ndef f(correct):\n    return FLAT\n",
    "def f():\n    correct = x.contiguous()\ndef g():\n    return FLAT\n",
]


@pytest.mark.parametrize("source", MAYBE)
def test_slice_that_may_not_lie_in_order_is_rewritten(source):
    expected = source.replace("FLAT", "correct[:k].reshape(-1)")
    assert rewritten(source.replace("FLAT", "correct[:k].view(-1)")) == expected


def test_site_in_an_f_string_is_left_to_a_human():
    left("print(f'{correct[:k].view(-1)}')\n", state=State.HUMAN)


def test_rewritten_function_counts_hits_where_the_old_one_raised():
    torch = pytest.importorskip("torch")
    source = (
        "def hits(output, target, k):\n"
        "    _, pred = output.topk(k, 1, True, True)\n"
        "    pred = pred.t()\n"
        "    correct = pred.eq(target.view(1, -1).expand_as(pred))\n"
        "    return correct[:k].view(-1).float().sum(0)\n"
    )
    output, target = torch.randn(8, 10, generator=torch.Generator().manual_seed(0)), torch.arange(8)
    old, new = {}, {}
    exec(source, old)
    exec(rewritten(source), new)
    with pytest.raises(RuntimeError, match="view"):
        old["hits"](output, target, 5)
    expected = sum(int(t) in row.topk(5).indices.tolist() for row, t in zip(output, target))
    assert new["hits"](output, target, 5) == expected
