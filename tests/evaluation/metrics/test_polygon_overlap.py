"""Areas against shapely's, on anything a detector can make up; and nothing that raises."""

import numpy as np
import pytest
import shapely
from numpy.typing import NDArray

from ocrlab.evaluation.metrics.polygon_overlap import convex_areas, meeting, shapes, shared_areas

SQUARE = np.array([[0, 0], [10, 0], [10, 10], [0, 10]], float)


def some_quads(rng: np.random.Generator, count: int, step: float) -> NDArray[np.float64]:
    """Return quads around one place, whole multiples of `step` where that is not 0: convex, concave and crossing."""
    quads = rng.uniform(0, 60, (count, 1, 2)) + rng.uniform(-20, 20, (count, 4, 2))
    return np.round(quads / step) * step if step else quads


@pytest.mark.parametrize("step", [0, 1, 5])
@pytest.mark.parametrize("seed", range(4))
def test_validity_areas_and_shared_areas_are_those_of_shapely(seed: int, step: float) -> None:
    rng = np.random.default_rng(seed)
    first, other = some_quads(rng, 50, step), some_quads(rng, 50, step)
    other[:10], other[10:20] = first[:10], first[10:20, ::-1]  # the same, also the other way round
    other[20:30] = first[20:30] + np.array([5, 0])
    a, b = shapes(first), shapes(other)
    expected = []
    for polygons, quads in ((a, first), (b, other)):
        wanted = np.array([shapely.Polygon(p) for p in quads])
        valid = shapely.is_valid(wanted) & (shapely.area(wanted) > 1e-9)
        assert polygons.valid.tolist() == valid.tolist()
        assert polygons.area == pytest.approx(np.where(valid, shapely.area(wanted), 0))
        expected.append(np.where(valid, wanted, shapely.Polygon()))
    rows, columns = meeting(a.bounds, b.bounds)
    shared = np.zeros((50, 50))
    shared[rows, columns] = shared_areas(a, b, rows, columns)
    wanted = shapely.area(shapely.intersection(expected[0][:, None], expected[1][None]))
    assert shared == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize(("other", "wanted"), [
    (SQUARE, 100),
    (SQUARE + np.array([10, 0]), 0),  # edges that touch
    (SQUARE + np.array([10, 10]), 0),  # corners that touch
    (SQUARE + np.array([5, 0]), 50),  # edges on the same lines
    (SQUARE / 2, 25),
    (SQUARE * 2 - 5, 100),  # all inside
    ((SQUARE - 5) @ np.array([[1, 1], [-1, 1]]) / 2 + 5, 50),  # a diamond with its corners on the edges
])  # fmt: skip
def test_edges_that_coincide_are_counted_once(other: NDArray[np.float64], wanted: float) -> None:
    areas, sure = convex_areas(SQUARE[None], other[None])
    assert (areas.tolist(), sure.tolist()) == ([wanted], [True])
    assert convex_areas(other[None], SQUARE[None])[0].tolist() == [wanted]
