"""A detector that needs no training, and pages that it can read."""

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ocrlab.config.schema import Config
from ocrlab.inference import Detector, checkpoint, page_inference
from ocrlab.model.dbnet import Detector as Network


class Dark(nn.Module):
    """Stands for a network: what is dark is text."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(1))

    def probability(self, images: Tensor) -> Tensor:
        return (images.float().mean(1, keepdim=True) < 100).float()


@pytest.fixture
def detector(monkeypatch: pytest.MonkeyPatch) -> Detector:
    monkeypatch.setattr(page_inference, "cached_fused", lambda model, **_: model)
    return Detector(Dark(), Config(), bf16=False, origin="dark is text")  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a small network with random weights, from a run with private settings."""
    path = tmp_path_factory.mktemp("run") / "best-tiny.ckpt"
    torch.manual_seed(0)
    config = Config(encoder="resnet18_slim", width=16, data="secret/place", runs="secret/runs", name="secret")
    config.tracking.user = "secret"
    network = Network("resnet18_slim", "fpn", 16)
    checkpoint.save_detector(network, path, config, 7, {"hmean@0.5": 0.25, "pages": 3.0, "secret_seconds": 1.0})
    return path


def page(bars: int, width: int = 120) -> NDArray[np.uint8]:
    """Return a grey page (160, width, 3) with some black bars on it."""
    image = np.full((160, width, 3), 200, np.uint8)
    for i in range(bars):
        cv2.rectangle(image, (20, 12 + 24 * i), (90, 24 + 24 * i), (10, 10, 10), -1)
    return image


@pytest.fixture
def sheets() -> list[NDArray[np.uint8]]:
    """Return 23 pages of three sizes with 0, 1, 2, 3, 4, 0 ... bars."""
    return [page(n % 5, 100 + 40 * (n % 3)) for n in range(23)]


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    """A folder of three pages with one, two and three bars."""
    folder = tmp_path / "scans"
    folder.mkdir()
    for i in (1, 2, 3):
        cv2.imwrite(str(folder / f"p{i}.png"), page(i))
    return folder
