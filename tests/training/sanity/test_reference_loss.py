"""The reference of the loss against autograd, and wrong losses against the reference."""

from typing import Any

import pytest
import torch
from torch import Tensor

from ocrlab.data.dataset import Batch
from ocrlab.losses.db_loss import LossParts, TargetMaps, db_loss
from ocrlab.training.sanity import reference_loss
from tests.training.sanity.checks import check_named, words

WEIGHTS = (5.0, 1.0, 10.0)


@pytest.fixture
def maps(batch: Batch) -> TargetMaps:
    return TargetMaps(*batch.maps)


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
    "forgets the mask": (spoilt(no_mask), {"loss: value"}),
    "forgets the mask of the border": (spoilt(no_border_mask), {"loss: value"}),
    "mask the wrong way round": (
        spoilt(lambda x, y, m: (x, y, m._replace(shrink_mask=1 - m.shrink_mask))),
        {"loss: value"},
    ),
    "five hard negatives": (ratio_of(5), {"loss: value"}),
    "right value, no gradient": (spoilt(lambda x, y, m: (x, y.detach(), m)), {"loss: gradient"}),
    "weights of another paper": (scaled(1.01), {"loss: value", "loss: gradient"}),
}


def test_the_loss_that_ships_is_right(maps: TargetMaps) -> None:
    assert set(words(reference_loss.compare(db_loss, maps, WEIGHTS, 3.0)).values()) == {"ok"}


@pytest.mark.parametrize("name", LOSSES)
def test_a_wrong_loss_is_detected(maps: TargetMaps, name: str) -> None:
    loss, expected = LOSSES[name]
    checks = reference_loss.compare(loss, maps, WEIGHTS, 3.0)
    assert expected <= {check.name for check in checks if check.judgement == "fail"}


def test_a_loss_that_learns_nothing_without_text_is_detected(maps: TargetMaps) -> None:
    def loss(x: Tensor, y: Tensor, targets: TargetMaps, **named: Any) -> LossParts:
        if float(targets.shrink_map.sum()) == 0:
            return LossParts(*((x.sum() + y.sum()) * 0 for _ in range(4)))
        return db_loss(x, y, targets, **named)

    assert check_named(reference_loss.compare(loss, maps, WEIGHTS, 3.0), "loss: value").judgement == "fail"
