"""The figures of `street.py`: hmean of each side and seed, and what a bootstrap over the pages says about them.

Shapes: S seeds, N pages, D draws.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from table import figure, judged, markdown

from ocrlab.data.formats import reader
from ocrlab.evaluation.metrics import iou

AT = 0.5
DRAWS = 10_000
Counts = NDArray[np.int64]  # (..., N, 3): matched, counted truths, counted detections of each page
Floats = NDArray[np.float64]


def report(place: Path) -> tuple[bool | None, str]:
    """Return whether ours is ahead (None if a side is missing), and tables of all that is finished in `place`."""
    truth = {split: reader.load(place / "data", split).samples for split in ("test", "tune")}
    sides = {side: finished(place, side) for side in ("ours", "doctr")}
    seeds = sorted(set(sides["ours"]) & set(sides["doctr"]))
    rows, met = [], []
    for name in ("own defaults", "tuned on 40 training pages"):
        tuned = name != "own defaults"
        counts = {side: {s: counted(r, truth, tuned) for s, r in settings.items()} for side, settings in sides.items()}
        for seed in sorted({*counts["ours"], *counts["doctr"]}):
            rows.append((name, seed, *compared([counts[side].get(seed) for side in counts])[:3]))
        if len(seeds) > 1:
            stacks = [np.stack([counts[side][s] for s in seeds]) for side in counts]
            *cells, low = compared(stacks)
            figure(f"ours - docTR, hmean@{AT}, lower end of 95 %: {name}", low, "hmean", limit="> 0", peer="docTR")
            for side, stack in zip(counts, stacks, strict=True):
                figure(
                    f"hmean@{AT}, median of seeds: {name}, {side}",
                    float(np.median(hmean(stack))),
                    "hmean",
                    peer="docTR",
                )
            rows.append((name, f"median of {len(seeds)}", *cells))
            met.append(low > 0)
    unequal = [s for s in seeds if not fair(*(sides[side][s]["about"] for side in ("ours", "doctr")))]
    if unequal:
        met = []  # not the same chances
    header = ("thresholds", "seed", f"ours hmean@{AT}", f"docTR hmean@{AT}", "ours - docTR")
    verdict = judged(all(met) if met else None)
    text = [markdown(header, rows), "In brackets: 95 % of a bootstrap over the pages, the same draws for both sides."]
    text += [f"Ours ahead, whole interval above 0, with both kinds of thresholds: {verdict}."]
    if unequal:
        text.append(f"NOT comparable: threads differ, or docTR got less CPU time: seeds {unequal}.")
    return (all(met) if met else None), "\n\n".join([*text, difference_text(sides)])


def fair(ours: Mapping[str, Any], doctr: Mapping[str, Any]) -> bool:
    """Return whether docTR had the same threads and at least 0.98 of the CPU seconds."""
    return bool(ours["threads"] == doctr["threads"] and doctr["cpu_seconds"] >= 0.98 * ours["cpu_seconds"])


def finished(place: Path, side: str) -> dict[int, dict[str, Any]]:
    """Return the records of a side by seed."""
    files = sorted(place.glob(f"{side}-seed*[0-9].json"))
    return {int(file.stem.rpartition("seed")[2]): json.loads(file.read_text(encoding="utf-8")) for file in files}


def counted(record: Mapping[str, Any], truth: Mapping[str, Sequence[reader.Sample]], tuned: bool) -> Counts:
    """Return the counts (N, 3) of the test pages, with the thresholds that are default or best on the tuning pages."""
    choice = record["default"]
    if tuned:
        on_tune = [pages_of(record, truth["tune"], k) for k in range(len(record["settings"]))]
        choice = int(np.argmax([hmean(counts) for counts in on_tune]))
    return pages_of(record, truth["test"], choice)


def pages_of(record: Mapping[str, Any], samples: Sequence[reader.Sample], setting: int) -> Counts:
    """Return the counts (N, 3) of pages with one pair of thresholds; pages that were not predicted are left out."""
    counts = []
    for sample in samples:
        if sample.image.name in record["pages"]:
            regions = record["pages"][sample.image.name][setting]
            match = iou.match(sample.polygons, sample.ignored, regions, thresholds=(AT,))
            counts.append((match.matched(AT), match.cared_truth, match.cared_detections))
    return np.array(counts, np.int64).reshape(-1, 3)


def hmean(counts: Counts) -> Floats:
    """Return the hmean of counts (..., N, 3) over their pages: 2 * matched / (truths + detections)."""
    total = counts.sum(axis=-2)
    both = total[..., 1] + total[..., 2]
    return np.asarray(np.divide(2 * total[..., 0], both, out=np.zeros(both.shape), where=both > 0))


def compared(sides: Sequence[Counts | None]) -> tuple[str, str, str, float]:
    """Return the cells of ocrlab, docTR and the difference, and its lower bound; counts are (N, 3) or (S, N, 3).

    Where seeds are stacked, it is the median over them, in each draw.
    """
    values, draws = [], []
    for counts in sides:
        if counts is None:
            continue
        stack = counts.reshape(-1, *counts.shape[-2:])  # (S, N, 3)
        values.append(float(np.median(hmean(stack))))
        draws.append(np.median(draw_samples(stack), axis=1))
    cells = iter(zip(values, draws, strict=True))
    intervals = ["not measured" if counts is None else interval(*next(cells)) for counts in sides]
    if len(values) < 2:
        return intervals[0], intervals[1], "not measured", float("nan")
    difference = draws[0] - draws[1]
    return (
        intervals[0],
        intervals[1],
        interval(values[0] - values[1], difference, "+"),
        float(np.percentile(difference, 2.5)),
    )


def draw_samples(stack: Counts) -> Floats:
    """Return hmeans (D, S) of pages drawn with replacement from counts (S, N, 3), the same draws every time."""
    count = stack.shape[1]
    weight = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=DRAWS)  # (D, N)
    total = np.einsum("dn,snk->dsk", weight, stack)
    both = total[..., 1] + total[..., 2]
    return np.asarray(np.divide(2 * total[..., 0], both, out=np.zeros(both.shape), where=both > 0))


def interval(value: float, draws: Floats, sign: str = "") -> str:
    """Return a value and the middle 95 % of its draws."""
    low, high = np.percentile(draws, (2.5, 97.5))
    return f"{value:{sign}.4f} [{low:{sign}.4f}, {high:{sign}.4f}]"


def difference_text(sides: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> str:
    """Return one line about each finished training."""
    lines = []
    for side, records in sides.items():
        for seed, record in records.items():
            facts = ", ".join(f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
                              for key, value in record["about"].items())  # fmt: skip
            lines.append(f"- {side}, seed {seed}: {facts}")
    return "\n".join(lines)
