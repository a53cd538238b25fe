"""What goes to a tracker besides figures: small pictures, and a checkpoint that says nothing of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from ocrlab.config.schema import Config
from ocrlab.data.dataset import Page
from ocrlab.data.formats.reader import Sample
from ocrlab.inference import checkpoint
from ocrlab.inference.pretrained import sha256
from ocrlab.training.tracking import client

QUAD = np.array([[100, 200], [900, 200], [900, 300], [100, 300]], np.float32)


@pytest.fixture
def page() -> Page:
    sample = Sample("shop one", Path("x.jpg"), (QUAD,), np.array([False]), ("",), None, 1280, 960)
    return Page(sample, np.full((960, 1280, 3), 255, np.uint8), np.eye(2, 3))


class Taker:
    """A tracker that keeps what it gets."""

    def __init__(self, folder: Path, on: bool = True) -> None:
        self.folder, self.on, self.files, self.warnings = folder, on, [], []  # type: ignore[var-annotated]

    def artifact(self, file: Path, digest: str, about: Any) -> None:
        self.files.append((file, digest, about))

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def test_a_picture_is_small_and_shows_what_is_annotated_and_what_was_detected(tmp_path: Path, page: Page) -> None:
    [(caption, file)] = client.save_picture(tmp_path, page, [QUAD + 300], 12, 3)
    assert (caption, file.name) == ("shop one", "step000012-0003.jpg")
    picture = cv2.imread(str(file))
    assert picture.shape == (480, 640, 3)
    canvas = client.draw_boxes(page, [QUAD + 300]).astype(int)
    blue = canvas[..., 2] - canvas[..., 0] > 100
    red = canvas[..., 0] - canvas[..., 2] > 100
    assert blue[100, 100:400].all() and not blue[300, 300:600].any()
    assert red[250, 250:590].all() and not red[100, 100:400].any()


def test_what_cannot_be_written_is_no_picture_and_no_error(tmp_path: Path, page: Page) -> None:
    (tmp_path / "flight").write_text("a file where a folder should be")
    assert client.save_picture(tmp_path, page, [], 1, 0) == []


def test_a_few_pages_from_all_over_are_shown() -> None:
    assert [index for index in range(63) if client.is_shown(index, [63])] == [0, 20, 41, 62]
    assert [index for index in range(2) if client.is_shown(index, [2])] == [0, 1]


def test_the_best_checkpoint_goes_without_what_it_says_of_this_machine(tmp_path: Path) -> None:
    config = Config(data="/srv/private/receipts", runs="/srv/private/runs", weights="/srv/private/w.ckpt")
    config.tracking.user = "ana"
    best = tmp_path / "checkpoints" / "best-x.ckpt"
    card = checkpoint.card(config, 7, {"hmean@0.5": 0.5})
    checkpoint.save({"ocrlab": card, "detector": {"a": torch.ones(2)}}, best)
    tracker = Taker(tmp_path)
    client.send_best(tracker, best, {"hmean@0.5": 0.5})
    [(file, digest, about)] = tracker.files
    assert (file, digest, about) == (tmp_path / "flight" / "artifact" / "best-x.ckpt", sha256(file), {"hmean@0.5": 0.5})
    content = checkpoint.load(file)
    assert "private" not in str(content) and "ana" not in str(content["ocrlab"])
    assert (content["ocrlab"]["step"], content["detector"]["a"].tolist()) == (7, [1.0, 1.0])
    assert "private" in str(checkpoint.load(best))  # the run's own stays whole


def test_a_checkpoint_that_cannot_be_sent_is_a_warning(tmp_path: Path) -> None:
    tracker = Taker(tmp_path)
    client.send_best(tracker, tmp_path / "gone.ckpt", {})
    assert "is not sent" in tracker.warnings[0]
    off = Taker(tmp_path, on=False)
    client.send_best(off, tmp_path / "gone.ckpt", {})
    assert (off.files, off.warnings) == ([], [])
