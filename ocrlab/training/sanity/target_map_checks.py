"""What the four target maps of DBNet must keep (Liao et al. 2020): their ranges, and how they lie to each other."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from ocrlab.config.schema import Config
from ocrlab.data.dataset import Batch
from ocrlab.debug.instruments.step_check.checker import Finding, Range
from ocrlab.debug.instruments.step_check.findings import position_text

ROUNDED = 1e-6  # of float32
LOST = 0.5  # share of the text that ignored boxes may cover before the mask is more likely the wrong way round


def ranges(config: Config) -> list[Range]:
    """Return between what the tensors of a training batch lie; maps.0 to maps.3 are those of `Batch`."""
    low, high = config.targets.threshold_range
    mask = "A mask has 1 where a pixel counts, and 0 elsewhere"
    return [
        Range("images", 0, 255, do="Images are RGB in 0..255; the detector normalises them itself"),
        Range("maps.0", 0, 1, only=(0, 1), do="The shrink map has 1 inside shrunk text, else 0"),
        Range("maps.1", 0, 1, only=(0, 1), do=mask),
        Range("maps.2", low - ROUNDED, high + ROUNDED, do="The threshold map lies in targets.threshold_range"),
        Range("maps.3", 0, 1, only=(0, 1), do=mask),
    ]


def relations(batch: Batch) -> Iterator[Finding]:
    """Yield how the maps of a batch contradict each other: text that no mask counts, text without a border."""
    shrink, mask, border, band = batch.maps
    if any(m.shape != shrink.shape for m in batch.maps) or shrink.shape[-2:] != batch.images.shape[-2:]:
        got = ", ".join(str(tuple(t.shape)) for t in (batch.images, *batch.maps))
        yield Finding("targets.shape", "batch.maps", got, "(B, 1, H, W) as the images", "Draw the maps at crop size")
        return
    text = shrink > 0.5
    count = int(text.sum())
    covered = text & (mask < 0.5)
    if count and int(covered.sum()) > LOST * count:
        do = "Turn the mask round: it is 0 inside ignored boxes, and 1 everywhere else"
        yield _finding("targets.mask", "batch.maps.1 (shrink mask)", covered, count, "text that counts", do, batch)
    bare = text & (band < 0.5)
    if bool(bare.any()):
        do = "Turn the mask round, or move it: it is 1 from the far side of the border to the text"
        need = "text inside the border's mask"
        yield _finding("targets.border_mask", "batch.maps.3 (threshold mask)", bare, count, need, do, batch)
    if bool((band > 0.5).any()):
        inside = float(border[band > 0.5].mean())
        outside = float(border[band < 0.5].mean()) if bool((band < 0.5).any()) else float(border.min())
        if inside <= outside:
            do = "The threshold map is highest on the outline of the text"
            got = f"mean {inside:.3f} at the text, {outside:.3f} elsewhere"
            yield Finding("targets.border", "batch.maps.2 (threshold map)", got, "higher at the text", do)


def _finding(rule: str, where: str, broken: Tensor, count: int, need: str, do: str, batch: Batch) -> Finding:
    got = f"{int(broken.sum())} of {count} pixels of text are not under it"
    return Finding(rule, f"{where}, {position_text(broken, batch.pages)}", got, need, do)
