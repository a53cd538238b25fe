"""The reference of the loss against autograd, and wrong losses against the reference."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from ocrlab.data.dataset import Batch
from ocrlab.losses.db_loss import LossParts, TargetMaps, db_loss
from ocrlab.training.sanity import reference_loss
from tests.training.sanity.checks import check_named, words

WEIGHTS = (5.0, 1.0, 10.0)


@pytest.fixture
def maps(batch: Batch) -> TargetMaps:
    return TargetMaps(*batch.maps)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("kind", ["text", "blank", "ignored"])
def test_the_reference_agrees_with_the_published_formulas(maps: TargetMaps, seed: int, kind: str) -> None:
    """The formulas again, as published."""
    case_maps = {"text": maps, "blank": reference_loss.blank(maps), "ignored": reference_loss.ignored(maps)}[kind]
    x, y = (
        v.detach().double().requires_grad_() for v in reference_loss.random_logits(tuple(maps.shrink_map.shape), seed)
    )
    g, m, t, w = (v.double() for v in case_maps)
    pixel = binary_cross_entropy_with_logits(x, g, reduction="none")
    positives, negatives = int((g * m).sum()), int(((1 - g) * m).sum())
    k = min(3 * positives, negatives) if positives else -(-negatives // 64)
    hard = (pixel * (1 - g) * m).flatten().topk(k)[0].sum()
    bce = ((pixel * g * m).sum() + hard) / (positives + k + 1e-6)
    b = torch.sigmoid(50 * (x.sigmoid() - y.sigmoid()))
    dice = 1 - 2 * (b * g * m).sum() / ((b * m).sum() + (g * m).sum() + 1e-6)
    l1 = ((y.sigmoid() - t).abs() * w).sum() / w.sum().clamp_min(1e-6)
    (5 * bce + dice + 10 * l1).backward()
    assert reference_loss.learned_pixels(case_maps, 3.0) == (positives, k)
    total, by_probability, by_threshold = reference_loss.value_and_gradients(
        lambda x, y: reference_loss.reference(x, y, case_maps, WEIGHTS, 3.0), x, y
    )
    assert total == pytest.approx(float((5 * bce + dice + 10 * l1).detach()), rel=1e-12)
    assert x.grad is not None and y.grad is not None
    np.testing.assert_allclose(by_probability, x.grad.numpy(), atol=1e-15, rtol=1e-9)
    np.testing.assert_allclose(by_threshold, y.grad.numpy(), atol=1e-15, rtol=1e-9)


def spoilt(spoil: Any) -> Any:
    """Return the DB loss with other arguments."""

    def loss(x: Tensor, y: Tensor, maps: TargetMaps, **named: Any) -> LossParts:
        return db_loss(*spoil(x, y, maps), **named)

    return loss


def ratio_of(number: float) -> Any:
    return lambda x, y, maps, **named: db_loss(x, y, maps, **{**named, "negative_ratio": number})


def scaled(factor: float) -> Any:
    def loss(*args: Any, **named: Any) -> LossParts:
        parts = db_loss(*args, **named)
        return parts._replace(total=parts.total * factor)

    return loss


def no_mask(x: Tensor, y: Tensor, maps: TargetMaps) -> Any:
    return x, y, maps._replace(shrink_mask=torch.ones_like(maps.shrink_mask))


def no_border_mask(x: Tensor, y: Tensor, maps: TargetMaps) -> Any:
    return x, y, maps._replace(threshold_mask=torch.ones_like(maps.threshold_mask))


LOSSES: dict[str, tuple[Any, set[str]]] = {
    "swapped maps": (spoilt(lambda x, y, m: (y, x, m)), {"loss: value", "loss: gradient"}),
    "forgets the mask": (spoilt(no_mask), {"masked pixels", "loss: value"}),
    "forgets the mask of the border": (spoilt(no_border_mask), {"masked pixels", "loss: value"}),
    "mask the wrong way round": (
        spoilt(lambda x, y, m: (x, y, m._replace(shrink_mask=1 - m.shrink_mask))),
        {"masked pixels", "BCE counts", "loss: value"},
    ),
    "five hard negatives": (ratio_of(5), {"BCE counts", "loss: value"}),
    "right value, no gradient": (spoilt(lambda x, y, m: (x, y.detach(), m)), {"loss: gradient"}),
    "weights of another paper": (scaled(1.01), {"loss: value", "loss: gradient"}),
}


def test_the_loss_that_ships_is_right(maps: TargetMaps) -> None:
    checks = [*reference_loss.compare(db_loss, maps, WEIGHTS, 3.0), *reference_loss.counts(db_loss, maps, 3.0)]
    checks.append(reference_loss.masks(db_loss, maps, WEIGHTS, 3.0))
    assert set(words(checks).values()) == {"ok"}
    assert "(3.00 to 1)" in check_named(checks, "BCE counts").observed


@pytest.mark.parametrize("name", LOSSES)
def test_a_wrong_loss_is_detected(maps: TargetMaps, name: str) -> None:
    loss, expected = LOSSES[name]
    checks = [*reference_loss.compare(loss, maps, WEIGHTS, 3.0), *reference_loss.counts(loss, maps, 3.0)]
    checks.append(reference_loss.masks(loss, maps, WEIGHTS, 3.0))
    assert expected <= {check.name for check in checks if check.judgement == "fail"}


def test_a_loss_that_learns_nothing_without_text_is_detected(maps: TargetMaps) -> None:
    def loss(x: Tensor, y: Tensor, targets: TargetMaps, **named: Any) -> LossParts:
        if float(targets.shrink_map.sum()) == 0:
            return LossParts(*((x.sum() + y.sum()) * 0 for _ in range(4)))
        return db_loss(x, y, targets, **named)

    assert check_named(reference_loss.counts(loss, maps, 3.0), "BCE counts without text").judgement == "fail"
    assert check_named(reference_loss.compare(loss, maps, WEIGHTS, 3.0), "loss: value").judgement == "fail"
