"""Attention over the padding of a batch: named where nothing hides it, let alone where something does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ocrlab.debug.instruments.step_check import checker
from ocrlab.debug.instruments.step_check.attention_masks import padding_masks
from tests.debug.instruments.step_check.test_forward_pass import finding_of, rules
from tests.debug.instruments.step_check.test_padding_in_loss import IDS, LENGTHS

THERE = torch.arange(12) < LENGTHS[:, None]
CLASSES = torch.arange(8) % 4


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
