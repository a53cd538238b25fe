"""The page with its sliders, without a browser: what each of them changes, uploads, and the message when it fails."""

from __future__ import annotations

import io
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ocrlab.errors import RunError
from ocrlab.notebook.page_viewer import widgets
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


def test_the_ratio_counts_only_where_it_is_chosen(panel: Panel) -> None:
    assert panel.at["ratio"].disabled and panel.post().unclip == "exact"
    panel.at["unclip"].value = "ratio"
    assert not panel.at["ratio"].disabled
    panel.at["ratio"].value = 2.5
    assert panel.post().unclip == 2.5


def test_what_lies_under_the_polygons_can_be_chosen(panel: Panel) -> None:
    pictures = set()
    for what in (widgets.PAGE, widgets.HEAT, widgets.BORDER, widgets.MASK):
        panel.at["base"].value = what
        pictures.add(panel.at["picture"].value)
        assert what in panel.at["picture"].value
    assert len(pictures) == 4
    panel.at["threshold"].value = 0.8
    assert panel.at["picture"].value not in pictures  # the mask follows the threshold


def test_numbers_annotation_and_zoom(panel: Panel) -> None:
    assert "<text" not in panel.at["overlay"].value
    panel.at["numbers"].value = True
    assert panel.at["overlay"].value.count("<text") == len(panel.judged.polygons)
    panel.at["annotation"].value = True
    assert 'class="annotation"' in panel.at["overlay"].value
    panel.at["zoom"].value = 2.0
    assert panel.at["stack"].layout.width.startswith("calc(2 * min(100%, ")


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
    upload(panel, "empty.png", png())
    assert "0 text regions" in panel.at["facts"].value
    panel.at["page"].value = panel.at["page"].options[1][1]
    assert panel.page.name == "mine.jpg"
    panel.at["next"].click()
    assert panel.source == Source("val", 0)


def test_a_broken_file_gets_a_sentence_and_the_page_stays(panel: Panel) -> None:
    before = shown(panel)
    upload(panel, "broken.png", png()[:60])
    assert "broken.png" in panel.at["message"].value and "ocrlab-uploads" not in panel.at["message"].value
    assert shown(panel) == before and panel.uploads == {}
    panel.at["threshold"].value = 0.5
    assert panel.at["message"].value == ""


def test_old_uploads_are_dropped(panel: Panel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(widgets, "UPLOADS", 2)
    for value in (10, 20, 30):
        upload(panel, f"{value}.png", png(value, (64, 64)))
    assert [path.name for path in panel.uploads.values()] == ["20.png", "30.png"]
    assert len(list(Path(panel.folder.name).rglob("*.png"))) == 2


def test_a_dead_detector_is_reported_and_the_widgets_live(panel: Panel) -> None:
    link: Any = panel.link
    link.broken = "The child died of SIGSEGV: <memory>"
    before = shown(panel)
    panel.at["threshold"].value = 0.66
    assert "The child died of SIGSEGV: &lt;memory&gt;" in panel.at["message"].value and shown(panel) == before
    link.broken = ""
    panel.at["threshold"].value = 0.67
    assert panel.at["message"].value == "" and shown(panel) != before


def test_a_long_list_offers_the_pages_around_the_page_that_is_shown(
    panel: Panel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(widgets, "LISTED", 4)
    panel.source = Source("val", 9)
    assert [source.place for _, source in panel._choices()] == [7, 8, 9, 10]
