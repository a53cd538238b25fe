"""Each check of the data: ok on the receipts, failing on the defect that it is there for."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ocrlab.config import schema as configs
from ocrlab.data.dataset import Crops, PageOrder
from ocrlab.training.sanity import data_checks
from tests.training.sanity.checks import check_named, words


def test_the_data_that_ships_is_right(config, samples) -> None:
    checks = [
        data_checks.order(PageOrder, 5, config),
        data_checks.augmentation(Crops, samples, config),
        data_checks.workers(Crops, samples, config),
        *data_checks.alignment(Crops, samples, config),
        data_checks.round_trip(samples, config),
    ]
    assert set(words(checks).values()) == {"ok"}


@pytest.mark.parametrize("name", ["shuffled", "one order", "with replacement"])
def test_an_order_that_is_no_function_of_the_seed(config, name: str) -> None:
    def walk(count: int, seed: int, stop: int) -> list[tuple[int, int]]:
        pages = {
            "shuffled": lambda e: np.random.permutation(count),  # noqa: NPY002
            "one order": lambda e: np.arange(count),
            "with replacement": lambda e: np.random.default_rng([seed, e]).integers(0, count, count),
        }[name]
        return [(e, int(page)) for e in range(stop // count) for page in pages(e)]

    assert data_checks.order(walk, 7, config).judgement == "fail"


class Dice(Crops):
    """Draws from NumPy's global generator, as many data sets do."""

    def __getitem__(self, index: tuple[int, int]) -> Any:
        crop, maps, name, problems = super().__getitem__(index)
        crop = crop.copy()
        crop[0, 0] = np.random.randint(0, 256, 3)  # noqa: NPY002
        return crop, maps, name, problems


class Shifted(Crops):
    """Its maps lie one pixel to the right of where they belong."""

    which = (0, 1, 2, 3)

    def __getitem__(self, index: tuple[int, int]) -> Any:
        crop, maps, name, problems = super().__getitem__(index)
        for i in self.which:
            maps.maps[i][:] = np.roll(maps.maps[i], 1, axis=1)
        return crop, maps, name, problems


class ShiftedBorder(Shifted):
    which = (2,)


def test_augmentation_and_workers_that_draw_from_a_global_generator(config, samples):
    assert data_checks.augmentation(Dice, samples, config).judgement == "fail"
    check = data_checks.workers(Dice, samples, config)
    assert check.judgement == "fail" and check.observed == "images differ"


def test_augmentation_that_stands_still_deserves_a_look(config, samples) -> None:
    class Still(Crops):
        def __getitem__(self, index: tuple[int, int]) -> Any:
            return super().__getitem__((0, index[1]))

    assert data_checks.augmentation(Still, samples, config).judgement == "warn"


def test_a_target_shifted_by_a_single_pixel_is_detected(config, samples) -> None:
    both = words(data_checks.alignment(Shifted, samples, config))
    assert both == {"alignment: shrink map": "fail", "alignment: threshold map": "fail"}
    only = list(data_checks.alignment(ShiftedBorder, samples, config))
    assert words(only) == {"alignment: shrink map": "ok", "alignment: threshold map": "fail"}
    assert check_named(only, "alignment: threshold map").observed.startswith("+1.0")


def test_a_page_without_text_cannot_be_aligned(config, samples) -> None:
    empty = [replace(s, polygons=(), ignored=np.zeros(0, bool), texts=()) for s in samples]
    assert set(words(data_checks.alignment(Crops, empty, config)).values()) == {"skip"}
    assert data_checks.round_trip(empty, config).judgement == "skip", "nothing is lost"
    [check] = data_checks.text(empty, config)
    assert check.judgement == "fail" and check.observed == f"0 boxes that count on {len(empty)} pages"
    assert not list(data_checks.text([*empty, samples[0]], config))


def test_settings_that_lose_polygons_are_detected(config, samples) -> None:
    wide = configs.apply(config, {"post.unclip": 4.0})
    assert data_checks.round_trip(samples, wide).judgement == "fail"
