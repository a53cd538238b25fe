"""What answers depend on: a model that mixes samples, ignores its input or reads its target is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ocrlab.debug.instruments.step_check import checker

ROWS, TOKENS = 16, 12


def findings_by_rule(model: nn.Module, batch: Any, loss: Callable[..., Any]) -> dict[str, checker.Finding]:
    report = checker.check(model, batch, loss)
    assert not any("answers" in text for text in report.unchecked)
    return {f.rule: f for f in report.findings if f.rule.startswith(("answers.", "inputs.", "target."))}


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def squares(model: nn.Module, batch: Any) -> Tensor:
    return functional.mse_loss(model(batch[0]), batch[1])


@pytest.mark.parametrize("last", [nn.Softmax(dim=1), nn.LayerNorm(1)])
def test_answers_that_are_all_equal(last: nn.Module) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1), last)
    finding = findings_by_rule(model, (numbers(ROWS, 8), numbers(ROWS, 1)), squares)
    assert list(finding) == ["answers.equal"]
    assert "16 samples differ and all answers are equal" in finding["answers.equal"].got


def test_a_last_layer_that_begins_at_zero_is_right() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    nn.init.zeros_(model[2].weight)
    before = [p.detach().clone() for p in model.parameters()]
    assert findings_by_rule(model, (numbers(ROWS, 8), numbers(ROWS, 1)), squares) == {}
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_samples_that_are_all_equal() -> None:
    finding = findings_by_rule(nn.Linear(8, 1), (torch.zeros(ROWS, 8), numbers(ROWS, 1)), squares)
    assert list(finding) == ["inputs.equal"]
    assert finding["inputs.equal"].judgement == "warn"


class Reader(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.rnn, self.out = nn.GRU(3, 8, batch_first=batch_first), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0][:, -1])  # (B, 1)


def test_a_recurrent_layer_that_runs_over_the_batch() -> None:
    batch = (numbers(ROWS, 5, 3), numbers(ROWS, 1))
    finding = findings_by_rule(Reader(batch_first=False), batch, squares)
    assert list(finding) == ["answers.mixed"]
    assert finding["answers.mixed"].where == "rnn" and "batch_first=True" in finding["answers.mixed"].do
    assert findings_by_rule(Reader(batch_first=True), batch, squares) == {}


def test_data_with_time_in_front_is_right() -> None:
    class Frames(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.out = nn.GRU(3, 8), nn.Linear(8, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.rnn(x)[0])  # (T, B, 1)

    assert findings_by_rule(Frames(), (numbers(20, 5, 3), numbers(20, 5, 1)), squares) == {}


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(4), nn.BatchNorm2d(4, track_running_stats=False), nn.GroupNorm(2, 4)])
def test_a_normalisation_is_no_mixing(norm: nn.Module) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.Flatten(), nn.Linear(4 * 36, 1))
    assert findings_by_rule(model, (numbers(ROWS, 3, 8, 8), numbers(ROWS, 1)), squares) == {}


def test_a_softmax_over_the_batch_is_a_warning() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3), nn.Softmax(dim=0))
    finding = findings_by_rule(model, (numbers(ROWS, 3, 4, 4), numbers(ROWS, 3)), squares)
    assert list(finding) == ["answers.mixed"] and finding["answers.mixed"].judgement == "warn"


def test_nodes_of_a_graph_and_points_of_a_cloud_may_see_each_other() -> None:
    class Cloud(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(x - x.mean(0))

    assert findings_by_rule(Cloud(), (numbers(ROWS, 3), numbers(ROWS, 1)), squares) == {}


def test_the_target_among_the_features() -> None:
    features, wanted = numbers(ROWS, 8), numbers(ROWS, 3)[:, :1]
    finding = findings_by_rule(nn.Linear(9, 1), (torch.cat([features, wanted], 1), wanted), squares)
    assert list(finding) == ["target.given"] and "value 8 of each of 16 samples" in finding["target.given"].got
    assert findings_by_rule(nn.Linear(9, 1), (torch.cat([features, wanted + 1e-3], 1), wanted), squares) == {}


def test_labels_of_two_classes_that_equal_a_feature_by_chance_are_right() -> None:
    labels = (torch.arange(8) % 2).float().reshape(8, 1)
    assert findings_by_rule(nn.Linear(9, 1), (torch.cat([numbers(8, 8), labels], 1), labels), squares) == {}


class Language(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.tokens, self.out, self.causal = nn.Embedding(30, 16), nn.Linear(16, 30), causal
        self.att = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        h, mask = self.tokens(ids), nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.out(h + self.att(h, h, h, attn_mask=mask if self.causal else None)[0])


def following(model: nn.Module, ids: Tensor) -> Tensor:
    return functional.cross_entropy(model(ids)[:, :-1].reshape(-1, 30), ids[:, 1:].reshape(-1))


def copied(model: nn.Module, ids: Tensor) -> Tensor:
    return functional.cross_entropy(model(ids).transpose(1, 2), ids)


def hidden(model: nn.Module, ids: Tensor) -> Tensor:
    at = torch.rand(ids.shape) < 0.3
    return functional.cross_entropy(model(ids.masked_fill(at, 0)).transpose(1, 2), ids.masked_fill(~at, -100))


def test_a_token_that_is_read_before_it_is_predicted() -> None:
    ids = torch.randint(1, 30, (ROWS, TOKENS), generator=torch.Generator().manual_seed(0))
    finding = findings_by_rule(Language(causal=False), ids, following)
    assert list(finding) == ["target.read"] and "mask does not hide it" in finding["target.read"].got
    finding = findings_by_rule(Language(causal=True), ids, copied)
    assert list(finding) == ["target.read"] and "only copies" in finding["target.read"].got
    assert findings_by_rule(Language(causal=True), ids, following) == {}
    assert findings_by_rule(Language(causal=False), ids, hidden) == {}


def test_the_loss_need_not_call_the_model_itself() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1))
    assert findings_by_rule(model, numbers(ROWS, 8), lambda net, x: net[1](net[0](x)).square().mean()) == {}
    assert (
        findings_by_rule(nn.Linear(8, 1), [numbers(3, 8)] * 5, lambda net, xs: sum(net(x).square().mean() for x in xs))
        == {}
    )
