"""Views that tear rows and softmaxes of one value are named; what only looks like them is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ocrlab.debug.instruments.step_check import checker
from tests.debug.instruments.step_check.helpers import rules

IMAGES = torch.randn(8, 3, 20, 24, generator=torch.Generator().manual_seed(0))
WORDS = torch.randint(0, 9, (8, 10), generator=torch.Generator().manual_seed(1))
Forward = Callable[["Net", Tensor], Tensor]


class Net(nn.Module):
    """Layers for all of the forward passes below, each of which uses some."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.how = forward
        self.words = nn.Embedding(9, 16)
        self.heads, self.out = nn.Linear(16, 16), nn.Linear(16, 5)
        self.score, self.gate = nn.Linear(16, 1), nn.Linear(16, 2)
        self.maps = nn.Sequential(nn.Conv2d(3, 16, 3, 4, 1), nn.BatchNorm2d(16), nn.ReLU())  # 5 x 6
        self.column, self.rnn = nn.Linear(80, 5), nn.GRU(80, 5, batch_first=True)
        self.first, self.line = nn.Conv2d(3, 5, 3), nn.Conv1d(16, 20, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.how(self, x)


def rules_of(forward: Forward, inputs: Tensor) -> dict[str, checker.Finding]:
    torch.manual_seed(0)
    model = Net(forward)
    report = checker.check(model, inputs, lambda net, x: net(x).float().square().mean())
    assert report.loss is not None
    return {finding.rule: finding for finding in report.findings}


def split(net: Net, x: Tensor) -> Tensor:
    return net.heads(net.words(x)).view(8, 10, 4, 4).transpose(1, 2)  # samples, heads, places, width


def flattened(net: Net, x: Tensor) -> Tensor:
    return net.out(net.maps(x).view(8, 30, 16) + torch.zeros(30, 16))


TORN: dict[str, tuple[Forward, Tensor, str]] = {
    "heads": (lambda net, x: net.out(split(net, x).reshape(8, 10, 16)), WORDS, "(8, 4, 10, 4) viewed as (8, 10, 16)"),
    "heads of all samples": (lambda net, x: net.out(split(net, x).contiguous().view(-1, 16)), WORDS, "(80, 16)"),
    "heads of one matrix": (
        lambda net, x: net.out(
            net.heads(net.words(x)).view(8, 10, 1, 4, 4).permute(2, 0, 3, 1, 4)[0].reshape(8, 10, 16)
        ),
        WORDS,
        "(8, 4, 10, 4)",
    ),
    "maps as tokens": (flattened, IMAGES, "(8, 16, 5, 6) viewed as (8, 30, 16)"),
    "maps as columns": (lambda net, x: net.rnn(net.maps(x).view(8, 6, 80))[0], IMAGES, "read by gru"),
    "colours last": (lambda net, x: net.first(x.view(8, 3, 20, 24)), IMAGES.permute(0, 2, 3, 1).contiguous(), "conv2d"),
    "words as channels": (lambda net, x: net.line(net.words(x).view(8, 16, 10)), WORDS, "read by conv1d"),
}


@pytest.mark.parametrize("case", list(TORN))
def test_a_view_where_a_transpose_is_meant(case: str) -> None:
    forward, inputs, words = TORN[case]
    finding = rules_of(forward, inputs)["axes.torn"]
    assert words in finding.got and finding.judgement == "fail" and "permute" in finding.do


def normalised(net: Net, x: Tensor) -> Tensor:
    """GroupNorm by hand, with as many groups as there are columns."""
    maps = net.maps(x)[..., :4]
    groups = maps.reshape(8, 4, -1)
    return ((groups - groups.mean(-1, keepdim=True)) / groups.std(-1, keepdim=True)).view_as(maps)


RIGHT: dict[str, tuple[Forward, Tensor]] = {
    "heads": (lambda net, x: net.out(split(net, x).transpose(1, 2).reshape(8, 10, 16)), WORDS),
    "maps as tokens": (lambda net, x: net.out(net.maps(x).flatten(2).transpose(1, 2)), IMAGES),
    "maps as columns": (lambda net, x: net.rnn(net.maps(x).permute(0, 3, 1, 2).reshape(8, 6, 80))[0], IMAGES),
    "maps in one row": (lambda net, x: net.maps(x).view(8, -1), IMAGES),
    "colours moved": (lambda net, x: net.first(x.permute(0, 3, 1, 2)), IMAGES.permute(0, 2, 3, 1).contiguous()),
    "two frames in one": (lambda net, x: net.column(net.words(x)[:, :8].repeat(1, 4, 5).view(8, 32, 80)), WORDS),
    "frames stacked": (  # 32 frames of 16: 16 of 32, which a transpose would give as well
        lambda net, x: functional.linear(net.words(x).repeat(1, 4, 1)[:, :32].view(8, 16, 32), torch.ones(3, 32)),
        WORDS,
    ),
    "groups": (normalised, IMAGES),
    "tokens that are only counted": (lambda net, x: net.maps(x).view(8, 30, 16).sum(), IMAGES),
}


@pytest.mark.parametrize("case", list(RIGHT))
def test_views_that_keep_rows_whole_are_no_finding(case: str) -> None:
    assert "axes.torn" not in rules_of(*RIGHT[case])


def pooled(dim: int) -> Forward:
    def forward(net: Net, x: Tensor) -> Tensor:
        words = net.words(x)
        return net.out((functional.softmax(net.score(words), dim=dim) * words).sum(1))

    return forward


def masked(net: Net, x: Tensor) -> Tensor:
    words = net.words(x)
    scores = net.score(words).masked_fill((x == 0)[..., None], -1e9)
    return net.out((scores.softmax(-1) * words).sum(1))


def test_a_softmax_over_a_single_score() -> None:
    finding = rules_of(pooled(-1), WORDS)["softmax.one"]
    assert "(8, 10, 1)" in finding.got and "dim=1" in finding.do and finding.judgement == "warn"
    assert "softmax.one" in rules_of(pooled(2), WORDS) and "softmax.one" in rules_of(masked, WORDS)
    assert "softmax.one" not in rules_of(pooled(1), WORDS)


def test_a_single_place_and_a_single_key_are_no_mistake() -> None:
    def attended(net: Net, x: Tensor) -> Tensor:
        words = net.words(x)
        query, key = net.heads(words), net.heads(words[:, :1])
        return net.out((query @ key.transpose(1, 2)).softmax(-1) @ words[:, :1])

    assert "softmax.one" not in rules_of(pooled(1), WORDS[:, :1])  # a text of one word
    assert "softmax.one" not in rules_of(attended, WORDS)  # one key, of the data's making
    assert "softmax.one" not in rules_of(lambda net, x: net.gate(net.words(x)).softmax(-1), WORDS)


@pytest.mark.parametrize("dim", [0, -2, 1, -1])
def test_a_softmax_over_the_batch_in_the_loss(dim: int) -> None:
    def focal(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        chosen = functional.log_softmax(model(batch[0]), dim=dim).gather(1, batch[1][:, None]).squeeze(1)
        return (-((1 - chosen.exp()) ** 2) * chosen).mean()

    batch = (torch.randn(6, 8), torch.tensor([0, 1, 2, 0, 1, 2]))
    assert ("softmax.batch" in rules(checker.check(nn.Linear(8, 3), batch, focal))) == (dim in (0, -2))


def test_a_softmax_over_pairs_of_the_batch_and_inside_the_model_are_no_finding() -> None:
    def pairs(model: nn.Module, batch: Tensor) -> Tensor:
        first, two = model(batch), model(batch + 0.1)
        return -(first @ two.t()).softmax(0).diag().log().mean()

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weigh, self.last = nn.Linear(8, 2), nn.Linear(8, 3)

        def forward(self, bag: Tensor) -> Tensor:
            return self.last(self.weigh(bag).softmax(0).t() @ bag)

    assert "softmax.batch" not in rules(checker.check(nn.Linear(8, 3), torch.randn(6, 8), pairs))
    bag = checker.check(Pooled(), torch.randn(6, 8), lambda model, batch: model(batch).square().mean())
    assert "softmax.batch" not in rules(bag)
