"""The sections of the sanity notebook: the checks, one crop with its maps, and the overfitted page.

The checks run in a child, and what it sends back is arrays and words, so that this kernel needs no torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ocrlab.config.schema import Config
from ocrlab.notebook.lab_session import Lab
from ocrlab.records import Check
from ocrlab.reports import doctor_view, plots
from ocrlab.reports.html import page_images
from ocrlab.reports.view import View, heading, join_views

if TYPE_CHECKING:
    from ocrlab.training.sanity.sanity_checks import Report


@dataclass(frozen=True)
class SanityReport:
    """What the checks found: the checks, the contract's findings in words, and the arrays of the pictures."""

    checks: list[Check]
    findings: list[str]
    crop: NDArray[np.uint8]  # (H, W, 3); of no size where there is none
    maps: list[NDArray[np.float32]]  # shrink map and mask, threshold map and mask, (H, W)
    page: str
    threshold_range: tuple[float, float]
    learned: dict[str, Any]  # page, canvas, polygons, ignored, detections, pairs, counts, curve


def checks(config: Config, progress: Callable[[dict[str, Any]], None]) -> SanityReport:
    """Return what every check of train.sanity says; it imports torch, so call it with `lab.run`. Raises DataError."""
    from ocrlab.training.sanity import sanity_checks

    return summarize(sanity_checks.check(config, progress=progress), config)


def summarize(report: Report, config: Config) -> SanityReport:
    """Return a report of the checks as arrays and words."""
    from ocrlab.evaluation.metrics import iou

    batch, learned, contract = report.batch, report.learned, report.contract
    crop, maps, page = np.zeros((0, 0, 3), np.uint8), [], ""
    if batch is not None:
        crop = np.ascontiguousarray(batch.images[0].permute(1, 2, 0).numpy())
        maps, page = [m[0, 0].numpy() for m in batch.maps], batch.pages[0]
    about: dict[str, Any] = {}
    if learned is not None and learned.canvas.size:
        match = iou.match(learned.polygons, learned.ignored, learned.detections)
        about = {**vars(learned), "pairs": match.pairs[0.5], "counts": match.detection_counts, "hmean": learned.hmean}
    findings = [str(finding) for finding in contract.findings] if contract else []
    return SanityReport(report.checks, findings, crop, maps, page, config.targets.threshold_range, about)


def table(report: SanityReport) -> View:
    """Return every check with what was measured against its limit, and below the contract's findings."""
    counts = Counter(check.judgement for check in report.checks)
    judged = len(report.checks) - counts["skip"]
    finding = f"Data, model and loss agree: {counts['ok']} of {judged} checks are ok"
    if counts["warn"]:
        finding = f"Nothing fails; {counts['warn']} of {judged} checks deserve a look"
    if counts["fail"]:
        finding = f"Data, model and loss do not agree: {counts['fail']} of {judged} checks fail"
    rows = doctor_view.rows(report.checks)
    more = "".join(f"<p><code>{escape(text)}</code></p>" for text in report.findings)
    more += f'<p class="note">{counts["skip"]} skipped.</p>' if counts["skip"] else ""
    html = f"<style>{doctor_view.CSS}</style>{heading(finding)}{rows.html}{more}"
    return View(html, "\n".join([finding, rows.text, *report.findings]))


def targets(report: SanityReport) -> View:
    """Return the first training crop beside the four maps that are learned from it."""
    if not report.maps:
        return View(heading("No batch could be loaded"), "No batch could be loaded")
    shrink, mask, *_ = report.maps
    titles = ("Shrink map", "Shrink mask", "Threshold map", "Threshold mask")
    maps = dict(zip(titles, report.maps, strict=True))
    pictures = page_images.target_pictures(report.page, report.crop, maps, *report.threshold_range, width=164)
    counted = 100 * float(mask.mean())
    finding = f"{100 * float(shrink.mean()):.1f} % of this crop is text to learn, {counted:.0f} % of it counts"
    note = "Yellow is 1, dark is 0: text pixels lie inside the threshold mask; the shrink mask is dark where ignored."
    return page_images.row(finding, pictures, note=note)


def learned(report: SanityReport) -> View:
    """Return the curve of the page that was overfitted, and its detections."""
    got = report.learned
    if not got or not got["curve"]:
        why = ": no legible box lies whole in any part of the first pages" if got and np.all(got["ignored"]) else ""
        return View(heading(f"No page was overfitted{why}"), f"No page was overfitted{why}")
    layers = page_images.match_layers(got["polygons"], got["ignored"], got["detections"], got["pairs"], got["counts"])
    count = int((~np.asarray(got["ignored"])).sum())
    text = f"{len(got['pairs'])} of {count} boxes found"
    caption = f"<b>{escape(got['page'])}</b> · {text}"
    page = page_images.picture(got["canvas"], f"part of page {got['page']}: {text}", layers, caption, width=330)
    finding = f"hmean@0.5 {got['hmean']:.3f} on a part of one page after {got['curve'][-1]['step']:.0f} steps"
    view = page_images.row(finding, [page], page_images.legend([layers]))
    return join_views([view, plots.curves(got["curve"])])


def judge(lab: Lab, report: SanityReport) -> None:
    """Judge the share of checks that are ok, and the overfitted page; checks that only warn make the outcome WARN."""
    counted = [check for check in report.checks if check.judgement != "skip"]
    share = sum(check.judgement == "ok" for check in counted) / len(counted) if counted else 0.0
    fails = any(check.judgement == "fail" for check in counted)
    lab.outcome("share of checks that are ok", share, limit=1.0, warn=1.0 if fails or not counted else min(share, 0.5))
