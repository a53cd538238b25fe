"""Stage G: pages per second of the shipped detector, post-processing included, and the latency of one page."""

from __future__ import annotations

import shutil
import statistics
import time
from pathlib import Path

from stage import ROOT, Stage

import ocrlab


def run(stage: Stage) -> None:
    """Detect on one page again and again, then over a folder by `ocrlab predict`."""
    detector = ocrlab.Detector.load("receipts", device=stage.device)
    pages = sorted((ROOT / "data_samples").glob("*/images/*"))
    rounds = 2 if stage.dry_run else 60
    seconds = []
    for number in range(rounds):
        page = pages[number % len(pages)]
        began = time.perf_counter()
        detector.detect(page)
        seconds.append(time.perf_counter() - began)
    middle = statistics.median(seconds[rounds // 4 :])
    stage.row(
        "one page at a time, file to polygons", f"{middle * 1e3:.1f} ms median, {max(seconds) * 1e3:.0f} ms the slowest"
    )
    copies = many_pages(stage.folder / "pages", pages[:1] if stage.dry_run else pages, 2 if stage.dry_run else 400)
    words = ["-m", "ocrlab", "predict", copies, "--checkpoint", "receipts", "--device", stage.device]
    done = stage.child([*words, "--jsonl", stage.folder / "pages.jsonl"], 60)
    count = len(list(copies.iterdir()))
    text = (
        f"{count} pages in {done.seconds:.1f} s with start-up, {count / done.seconds:.0f} pages/s, status {done.status}"
    )
    stage.row("ocrlab predict over a folder", text, "status 0", done.status == 0, dry_run_too=True)


def many_pages(folder: Path, pages: list[Path], count: int) -> Path:
    """Fill a folder with copies of pages: `predict` follows no link out of its folder."""
    folder.mkdir(exist_ok=True)
    for number in range(count):
        page = pages[number % len(pages)]
        copy = folder / f"{number:04d}{page.suffix}"
        if not copy.exists():
            shutil.copy(page, copy)
    return folder
