"""The page with its sliders, without a browser: what each of them changes, uploads, and the message when it fails."""

import io
import re
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ocrlab.config.schema import load
from ocrlab.errors import RunError
from ocrlab.notebook import page_viewer
from ocrlab.notebook.page_viewer.messages import DetectorInfo, Source
from ocrlab.notebook.page_viewer.widgets import Panel
from ocrlab.notebook.page_viewer.worker import PageWorker


class Direct:
    """A link without a child: its bench is in this process."""

    def __init__(self, bench: PageWorker) -> None:
        self.bench, self.asked, self.broken = bench, list[str](), ""

    def ask(self, name: str, *args: Any) -> Any:
        self.asked.append(name)
        if self.broken:
            raise RunError(self.broken)
        return getattr(self.bench, name)(*args)


@pytest.fixture(scope="module")
def bench(root: Path) -> tuple[PageWorker, DetectorInfo]:
    worker = PageWorker()
    return worker, worker.open("receipts", "runs", str(root / "data_samples"), False)


@pytest.fixture
def panel(bench: tuple[PageWorker, DetectorInfo]) -> Panel:
    worker, opened = bench
    source = Source("val", 0)
    names = {"train": [], "val": worker.pages("val").names}
    judged = worker.judge(source, opened.post)
    link: Any = Direct(worker)
    return Panel(link, opened, names, source, worker.see(source), judged)


def shown(panel: Panel) -> tuple[str, ...]:
    return tuple(panel.at[name].value for name in ("picture", "overlay", "facts", "legend", "lists"))


@pytest.mark.parametrize(
    ("name", "value"),
    [("threshold", 0.7), ("box_threshold", 0.9), ("unclip", "ratio"), ("min_size", 12.0), ("shape", "polygon")],
)
def test_every_setting_changes_the_polygons_and_not_the_picture(panel: Panel, name: str, value: Any) -> None:
    before, link = shown(panel), panel.link
    link.asked.clear()
    panel.at[name].value = value
    after = shown(panel)
    assert after[0] == before[0] and after[1] != before[1] and after[4] != before[4]
    assert link.asked == ["judge"] and panel.at["message"].value == ""
    panel.at["reset"].click()
    assert shown(panel)[1] == before[1] and panel.post() == panel.opened.post


def test_pages_and_splits_are_walked_through(panel: Panel) -> None:
    first = panel.at["picture"].value
    panel.at["next"].click()
    assert panel.source == Source("val", 1) and panel.at["picture"].value != first
    panel.at["back"].click()
    panel.at["back"].click()  # there is none before the first
    assert panel.source == Source("val", 0) and panel.at["picture"].value == first
    panel.at["split"].value = "train"
    assert panel.source == Source("train", 0) and len(panel.at["page"].options) == 48
    assert panel.page.name in panel.at["picture"].value


def upload(panel: Panel, name: str, data: bytes) -> None:
    file = {"name": name, "type": "", "size": len(data), "last_modified": datetime.now(timezone.utc)}
    panel.at["upload"].value = ({**file, "content": memoryview(data)},)


def png(value: int = 200, size: tuple[int, int] = (320, 160)) -> bytes:
    data = io.BytesIO()
    Image.fromarray(np.full(size, value, np.uint8)).save(data, "png")
    return data.getvalue()


def test_an_uploaded_page_is_shown_and_can_be_chosen_again(panel: Panel, root: Path) -> None:
    page = next((root / "data_samples" / "val" / "images").glob("*.jpg"))
    upload(panel, "../mine.jpg", page.read_bytes())
    assert panel.page.name == "mine.jpg" and "text regions" in panel.at["facts"].value
    assert panel.at["overlay"].value.count('class="text"') == 1
    assert panel.at["page"].options[0][0] == "uploaded: mine.jpg"
    panel.at["next"].click()
    assert panel.source == Source("val", 0)
    panel.at["back"].click()
    assert panel.page.name == "mine.jpg"
    upload(panel, "empty.png", png())
    assert "0 text regions" in panel.at["facts"].value
    assert [name for name, _ in panel.at["page"].options[:2]] == ["uploaded: empty.png", "receipt_000"]


def test_a_broken_file_gets_a_sentence_and_the_page_stays(panel: Panel) -> None:
    before = shown(panel)
    upload(panel, "broken.png", png()[:60])
    assert "broken.png" in panel.at["message"].value and "ocrlab-uploads" not in panel.at["message"].value
    assert shown(panel) == before and panel.upload is None
    panel.at["threshold"].value = 0.5
    assert panel.at["message"].value == ""


def test_a_dead_detector_is_reported_and_the_widgets_live(panel: Panel) -> None:
    link: Any = panel.link
    link.broken = "The child died of SIGSEGV: <memory>"
    before = shown(panel)
    panel.at["threshold"].value = 0.66
    assert "The child died of SIGSEGV: &lt;memory&gt;" in panel.at["message"].value and shown(panel) == before
    link.broken = ""
    panel.at["threshold"].value = 0.67
    assert panel.at["message"].value == "" and shown(panel) != before


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
    assert html.count("<image ") == 3
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
