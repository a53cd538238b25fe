"""What the child of the layers notebook sends back, without torch: maps, a short training, planted faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIKE = 0.7  # correlation of two maps, above which they show the same
Progress = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class PageMaps:
    """One page, and what one module gives on it: `maps` (C, h, w) uint8, each from its own lowest to highest value."""

    name: str
    origin: str  # of the weights
    module: str
    kind: str
    canvas: NDArray[np.uint8]  # (H, W, 3)
    maps: NDArray[np.uint8]
    figures: list[dict[str, Any]]  # of each channel: min, max, mean, std, zeros, count

    @property
    def strongest(self) -> list[int]:
        """The channels by their standard deviation, the largest first."""
        return sorted(range(len(self.figures)), key=lambda channel: -self.figures[channel]["std"])

    def different(self, count: int) -> list[int]:
        """Return the strongest channels of which no two show nearly the same."""
        flat = self.maps[:, ::4, ::4].reshape(len(self.maps), -1).astype(np.float64)
        flat -= flat.mean(axis=1, keepdims=True)
        flat /= np.linalg.norm(flat, axis=1, keepdims=True) + 1e-9
        alike = np.abs(flat @ flat.T)
        channels: list[int] = []
        for channel in self.strongest:
            if len(channels) < count and all(alike[channel, other] < ALIKE for other in channels):
                channels.append(channel)
        return channels

    def describe_channel(self, channel: int) -> str:
        """Return a channel's figures in words."""
        figures = self.figures[channel]
        return f"{figures['min']:.2g} to {figures['max']:.2g}, {100 * figures['zeros'] / figures['count']:.0f} % zeros"


@dataclass
class ShortTraining:
    """A short training: samples of a module's values (V,) by step, the table of all modules, and the plot of them."""

    module: str
    losses: list[float] = field(default_factory=list)
    outputs: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    gradients: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    table: list[dict[str, Any]] = field(default_factory=list)
    plot: tuple[Any, str] | None = None  # figure and alternative text
    note: str = ""


@dataclass(frozen=True)
class PlantedFault:
    """A planted fault, what was found, and the share of bad values of modules in the order in which they compute.

    `short` names the fault over its plot; `backward`: the values are gradients, in the order of the backward pass.
    """

    planted: str
    reported: str
    right: bool
    spread: list[tuple[str, float]]
    short: str
    backward: bool = False


@dataclass(frozen=True)
class LayersReport:
    """All that the notebook shows: maps of a page, a short training, and planted faults."""

    looked: PageMaps
    learned: ShortTraining
    faults: list[PlantedFault]
