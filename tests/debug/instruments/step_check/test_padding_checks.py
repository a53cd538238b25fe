"""Padding: what the loss counts, what attention sees, and what a recurrent layer ends in."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ocrlab.debug.instruments.step_check import checker
from ocrlab.debug.instruments.step_check.padding_checks import find_padding, padding_masks
from tests.debug.instruments.step_check.helpers import finding_of, rules

LENGTHS = torch.tensor([3, 4, 6, 9, 12, 5, 4, 3])
IDS = torch.randint(2, 20, (8, 12), generator=torch.Generator().manual_seed(0))
IDS[torch.arange(12) >= LENGTHS[:, None]] = 0  # padding
THERE = torch.arange(12) < LENGTHS[:, None]
CLASSES = torch.arange(8) % 4
TEXT_LENGTHS = torch.tensor([12, 5, 9, 7, 3, 12, 4, 6])
TEXTS = torch.randint(1, 40, (8, 12), generator=torch.Generator().manual_seed(0))
TEXTS[torch.arange(12) >= TEXT_LENGTHS[:, None]] = 0
LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])


class Tagger(nn.Module):
    """Words to classes, with attention; `mask` makes key_padding_mask of the ids."""

    def __init__(self, mask: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.words, self.mask = nn.Embedding(20, 16), mask
        self.places = nn.Embedding(12, 16)
        self.attention = nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True)
        self.last = nn.Linear(16, 20)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        hidden = None if self.mask is None else self.mask(ids)
        return self.last(x + self.attention(x, x, x, key_padding_mask=hidden)[0])


def flat(model: nn.Module, ids: Tensor, **options: int) -> Tensor:
    return functional.cross_entropy(model(ids).flatten(0, 1), ((ids * 7) % 20).flatten(), **options)


def test_padding_that_the_loss_counts() -> None:
    finding = finding_of(checker.check(Tagger(), IDS, flat), "targets.padding")
    assert "52% of its targets are 0" in finding.got and "ignore_index=0" in finding.do and finding.judgement == "warn"


@pytest.mark.parametrize("way", ["ignored", "weighted", "masked"])
def test_padding_that_is_left_out_in_any_way_is_right(way: str) -> None:
    def loss(model: nn.Module, ids: Tensor) -> Tensor:
        if way == "ignored":
            return flat(model, ids, ignore_index=0)
        logits, targets = model(ids).transpose(1, 2), (ids * 7) % 20
        if way == "weighted":
            return functional.cross_entropy(logits, targets, weight=torch.ones(20).index_fill(0, torch.tensor([0]), 0))
        return (functional.cross_entropy(logits, targets, reduction="none") * (ids != 0)).sum() / (ids != 0).sum()

    assert "targets.padding" not in rules(checker.check(Tagger(), IDS, loss))


def test_only_what_fills_rows_up_and_stands_nowhere_else_is_padding() -> None:
    padding = find_padding(IDS.flatten(), 8)
    assert padding is not None and padding[0] == 0 and bool((padding[1] == (IDS == 0)).all())
    left = find_padding(IDS.flip(1), 8)
    assert left is not None and bool((left[1] == (IDS.flip(1) == 0)).all())
    inside = IDS.clone()
    inside[0, 0] = 0  # a background, silence
    assert find_padding(inside, 8) is None
    assert find_padding((IDS != 0).long(), 8) is None  # two classes
    assert find_padding(torch.randint(0, 20, (8, 12)), 8) is None
    assert find_padding(IDS[:, 0], 8) is None


def test_attention_that_sees_only_padding() -> None:
    finding = finding_of(
        checker.check(Tagger(lambda ids: ids != 0), IDS, lambda m, b: flat(m, b, ignore_index=0)), "attention.padding"
    )
    assert "52% of the places" in finding.got
    right = checker.check(Tagger(lambda ids: ids == 0), IDS, lambda m, b: flat(m, b, ignore_index=0))
    assert "attention.padding" not in rules(right)


@pytest.mark.parametrize(("wrong", "count"), [(True, 1), (False, 0)])
def test_the_mask_of_scaled_dot_product_attention_the_wrong_way_round(wrong: bool, count: int) -> None:
    class Own(Tagger):
        def forward(self, ids: Tensor) -> Tensor:
            x = self.words(ids)
            heads = x.unflatten(-1, (2, 8)).transpose(1, 2)
            mask = ((ids == 0) if wrong else (ids != 0))[:, None, None]
            attended = functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask)
            return self.last(x + attended.transpose(1, 2).flatten(2))

    report = checker.check(Own(), IDS[LENGTHS < 12], lambda m, b: flat(m, b, ignore_index=0))
    assert [finding.rule for finding in report.findings].count("attention.padding") == count


@pytest.mark.parametrize(("rows", "named"), [(20, True), (4, False)])
def test_texts_of_unknown_words(rows: int, named: bool) -> None:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.last = nn.Embedding(rows, 8), nn.Linear(8, 3)

        def forward(self, ids: Tensor) -> Tensor:
            return self.last(self.words(ids).mean(1))

    loss = nn.CrossEntropyLoss()
    unknown = checker.check(Bag(), ((IDS != 0).long(), torch.arange(8) % 3), loss)
    assert ("inputs.few" in rules(unknown)) == named
    if named:
        assert "all 96 of its batch are 0 or 1, of 20" in finding_of(unknown, "inputs.few").got
        assert "inputs.few" not in rules(checker.check(Bag(), (IDS, torch.arange(8) % 3), loss))


class Encoder(nn.Module):
    """Words to classes; `way` is how the attention is written, `hide` whether it is told of the padding."""

    def __init__(self, way: str, hide: bool, heads: int = 2) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(20, 16, padding_idx=0), nn.Embedding(12, 16)
        self.layer = nn.TransformerEncoderLayer(16, heads, 32, batch_first=True)
        self.qkv, self.last = nn.Linear(16, 48), nn.Linear(16, 4)
        self.way, self.hide, self.heads = way, hide, heads

    def attention(self, x: Tensor, pad: Tensor) -> Tensor:
        length = x.shape[1]
        if self.way in ("layer", "causal"):
            causal = nn.Transformer.generate_square_subsequent_mask(length) if self.way == "causal" else None
            shown: Tensor = self.layer(x, src_mask=causal, src_key_padding_mask=pad if self.hide else None)
            return shown
        if self.way == "by hand":
            q, k, v = self.qkv(x).chunk(3, -1)
            scores = q @ k.transpose(1, 2) / 4
            scores = scores.masked_fill(pad[:, None, :], -1e9) if self.hide else scores
            mixed: Tensor = x + scores.softmax(-1) @ v
            return mixed
        q, k, v = self.qkv(x).view(len(x), length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mask = ~pad[:, None, None, :] if self.hide else None
        return x + functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        answer: Tensor = self.last(self.attention(x, ids == 0)[:, 0])
        return answer


def check(model: nn.Module, ids: Tensor = IDS) -> checker.Report:
    return checker.check(model, (ids, CLASSES), lambda net, batch: functional.cross_entropy(net(batch[0]), batch[1]))


@pytest.mark.parametrize("way", ["layer", "by hand", "scaled"])
def test_visible_and_hidden_padding(way: str) -> None:
    torch.manual_seed(0)
    finding = finding_of(check(Encoder(way, hide=False)), "attention.unmasked")
    assert "batch.0" in finding.got and "key_padding_mask" in finding.do and finding.judgement == "warn"
    assert finding.where == ("layer.self_attn" if way == "layer" else "the model itself")
    assert "attention.unmasked" not in rules(check(Encoder(way, hide=True)))


def test_a_causal_mask_hides_what_follows_and_not_what_comes_before() -> None:
    assert "attention.unmasked" not in rules(check(Encoder("causal", hide=False)))
    assert "attention.unmasked" in rules(check(Encoder("causal", hide=False), IDS.flip(1)))  # filled up from the left


def test_rows_that_are_full_and_values_that_end_many_rows_are_no_padding() -> None:
    full = torch.randint(1, 20, (8, 12), generator=torch.Generator().manual_seed(1))
    assert "attention.unmasked" not in rules(check(Encoder("layer", hide=False), full))
    ends = full.clone()
    ends[:, -1] = 3  # an end of the text, in all rows
    assert "attention.unmasked" not in rules(check(Encoder("layer", hide=False), ends))


class Features(nn.Module):
    def __init__(self, hide: bool) -> None:
        super().__init__()
        self.first, self.last, self.hide = nn.Linear(6, 16), nn.Linear(16, 4), hide
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: Tensor, there: Tensor) -> Tensor:
        h = self.first(x)
        mask = ~there if self.hide else None
        answer: Tensor = self.last((h + self.attention(h, h, h, key_padding_mask=mask)[0])[:, 0])
        return answer


@pytest.mark.parametrize("hide", [True, False])
def test_features_beside_a_mask_that_nobody_uses(hide: bool) -> None:
    x = torch.randn(8, 12, 6, generator=torch.Generator().manual_seed(0)) * THERE[..., None]
    batch = {"there": THERE, "x": x, "wanted": CLASSES}
    report = checker.check(
        Features(hide), batch, lambda net, b: functional.cross_entropy(net(b["x"], b["there"]), b["wanted"])
    )
    assert ("attention.unmasked" in rules(report)) is not hide


def test_where_a_batch_is_filled_up() -> None:
    images = torch.rand(8, 3, 16, 16)
    named = [("ids", IDS), ("left", IDS.flip(1)), ("mask", THERE.float()), ("images", images), ("y", CLASSES)]
    fills = dict(padding_masks([*named, ("free", torch.randn(8, 12)), ("same", torch.zeros(8, 12))]))
    assert set(fills) == {"ids", "left", "mask"}
    assert bool((fills["ids"] == ~THERE).all()) and bool((fills["left"] == ~THERE.flip(1)).all())
    assert bool((fills["mask"] == ~THERE).all())


class Reader(nn.Module):
    """Words through a recurrent layer; `way` says what of it is read."""

    def __init__(self, way: str, kind: type[nn.RNNBase] = nn.LSTM, batch_first: bool = True) -> None:
        super().__init__()
        self.way, self.batch_first = way, batch_first
        self.words, self.layer = nn.Embedding(40, 8, padding_idx=0), kind(8, 16, batch_first=batch_first)
        self.last = nn.Linear(16, 3)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        x = self.words(ids if self.batch_first else ids.t())
        if self.way == "packed":
            x = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=self.batch_first, enforce_sorted=False)
        steps, state = self.layer(x)
        state = state[0] if isinstance(state, tuple) else state
        if self.way in ("packed", "state"):
            return self.last(state[-1])
        steps = steps if self.batch_first else steps.transpose(0, 1)
        if self.way == "mean":
            return self.last(steps.mean(1))
        return self.last(steps[:, -1] if self.way == "last" else steps[torch.arange(len(ids)), lengths - 1])


def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    return functional.cross_entropy(model(*batch[:2]), batch[2])


@pytest.mark.parametrize("way", ["last", "state"])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("batch_first", [True, False])
def test_the_last_step_behind_the_padding(way: str, kind: type[nn.RNNBase], batch_first: bool) -> None:
    finding = finding_of(
        checker.check(Reader(way, kind, batch_first), (TEXTS, TEXT_LENGTHS, LABELS), loss), "recurrent.padding"
    )
    assert finding.where == "layer" and "6 of 8 rows" in finding.got and "pack_padded_sequence" in finding.do


@pytest.mark.parametrize("way", ["packed", "at the length", "mean"])
def test_what_is_packed_taken_at_its_length_or_read_in_all_steps_is_right(way: str) -> None:
    assert "recurrent.padding" not in rules(checker.check(Reader(way), (TEXTS, TEXT_LENGTHS, LABELS), loss))


def test_texts_of_the_same_length_and_padding_in_front_are_right() -> None:
    full = torch.randint(1, 40, (8, 12), generator=torch.Generator().manual_seed(1))
    for ids in (full, TEXTS.flip(1)):
        assert "recurrent.padding" not in rules(checker.check(Reader("last"), (ids, TEXT_LENGTHS, LABELS), loss))
