"""The sections of the inspect notebook: a detector in a child, the page alive and in a report, the outcome."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ocrlab.config.schema import load
from ocrlab.notebook import child_runner, page_viewer


class FakeLab:
    """A lab that only remembers its outcome."""

    def __init__(self, root: Path, runs: Path) -> None:
        self.config = load(overrides={"data": str(root / "data_samples"), "runs": str(runs)})
        self.next, self.outcomes = "", list[tuple[str, float, float]]()

    def outcome(self, *judged: Any) -> None:
        self.outcomes.append(judged)


@pytest.fixture(scope="module")
def lab(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return FakeLab(root, tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def viewer(lab: Any) -> Iterator[page_viewer.Viewer]:
    viewer = page_viewer.look(lab, "receipts", 16)  # of 16 pages: the first again
    yield viewer
    viewer.link.close()


def test_the_detector_and_its_settings_are_named(viewer: page_viewer.Viewer) -> None:
    view = page_viewer.about(viewer)
    assert re.match(r"receipt_000: 4\d of 4\d detections are right, hmean@0\.5 0\.9", view.text)
    assert "included detector" in view.html and "16 of val" in view.html


def test_the_page_has_a_live_and_a_static_side(viewer: page_viewer.Viewer) -> None:
    bundle = page_viewer.page(viewer)._repr_mimebundle_()
    assert set(bundle) >= {"text/html", "text/plain", "application/vnd.jupyter.widget-view+json"}
    html = bundle["text/html"]
    assert html.count("<image ") == 3 and "Save the polygons" not in html
    assert not re.search(r'(src|href)="(?!data:|#)', html)
    assert len(html) < 500_000


def test_only_a_page_with_text_is_judged(lab: Any, viewer: page_viewer.Viewer) -> None:
    page_viewer.judge(lab, viewer, 0.8)
    [(metric, value, limit)] = lab.outcomes
    assert metric.startswith("hmean@0.5") and value > 0.9 and limit == 0.8 and lab.next
    lab.outcomes.clear()
    ignored = viewer.page.ignored | True
    empty_page = SimpleNamespace(**{**vars(viewer.page), "ignored": ignored})
    page_viewer.judge(lab, SimpleNamespace(**{**vars(viewer), "page": empty_page}), 0.8)  # type: ignore[arg-type]
    assert lab.outcomes == []


@pytest.mark.slow  # with a child that needs no torch: test_inspect_link.py
def test_a_killed_detector_is_named_and_starts_again(viewer: page_viewer.Viewer) -> None:
    [pid] = child_runner.jupyter_kernel.marked(child_runner.MARK, viewer.link.child.mark)[-1:]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(child_runner.ChildFailed, match="SIGKILL"):
        viewer.link.ask("judge", viewer.source, viewer.opened.post)
    again = viewer.link.ask("judge", viewer.source, viewer.opened.post)
    assert again.scores.tolist() == viewer.judged.scores.tolist()
