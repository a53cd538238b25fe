"""Pages for the data doctor: lines of print on paper with a little noise, boxed a pixel or two around the ink."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from ocrlab.data.formats.icdar import write_icdar

WORDS = "TOTAL CASH CHANGE INVOICE DATE TABLE PRICE ROUNDING AMOUNT ITEM QTY TAX SALES MEMBER POINTS THANK YOU".split()


@dataclass
class SyntheticPage:
    """One page: image (H, W, 3) RGB, quads (4, 2) clockwise from the top left, texts."""

    image: NDArray[np.uint8]
    quads: list[NDArray[np.float32]]
    texts: list[str]

    def write(self, folder: Path, name: str, split: str = "train", suffix: str = ".png") -> None:
        """Write the page into a data folder."""
        for below in ("images", "gts"):
            (folder / split / below).mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / split / "images" / f"{name}{suffix}"), self.image[..., ::-1])
        write_icdar(folder / split / "gts" / f"gt_{name}.txt", self.quads, self.texts)


def draw_page(seed: int = 0, lines: int = 14) -> SyntheticPage:
    """Draw a page; the same seed gives the same page."""
    rng = np.random.default_rng(seed)
    image = np.full((lines * 40 + 60, 520, 3), 235, np.uint8)
    quads, texts = [], []
    for row in range(lines):
        for x, count in ((30, int(rng.integers(1, 4))), (400, 0)):
            text = " ".join(rng.choice(WORDS, count)) if count else f"{rng.integers(10, 99)}.{rng.integers(10, 99)}"
            base = 50 + row * 40
            cv2.putText(image, text, (x, base), cv2.FONT_HERSHEY_SIMPLEX, 0.6, (30, 30, 30), 2, cv2.LINE_AA)
            (wide, high), _ = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, 0.6, 2)
            left, top, right, bottom = x - 2, base - high - 3, x + wide + 2, base + 4
            quads.append(np.array([[left, top], [right, top], [right, bottom], [left, bottom]], np.float32))
            texts.append(text)
    noise = rng.normal(0, 2, image.shape)
    return SyntheticPage(np.clip(image + noise, 0, 255).astype(np.uint8), quads, texts)


@pytest.fixture
def draw() -> Callable[..., SyntheticPage]:
    """Return the function that draws pages."""
    return draw_page
