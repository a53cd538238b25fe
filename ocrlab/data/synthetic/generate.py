"""Synthetic receipts: seeded pages with exact polygons of their lines, and the folder of samples made of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrlab.data.formats.convert import write_whole
from ocrlab.data.formats.icdar import write_icdar
from ocrlab.data.synthetic import decorations, photo_effects, typesetting
from ocrlab.data.synthetic.receipt_layout import Sheet, layout
from ocrlab.data.synthetic.stable_random import Dice
from ocrlab.errors import DataError

SPLITS = {"train": 0, "val": 2**19}  # where the page numbers of a split begin
PER_SEED = 2**20  # page numbers of one seed
SUMS = "SHA256SUMS"  # what `make` wrote, in the format of sha256sum
SMALLEST = (320, 480)  # pixels; below, the letters are too small to read

README = f"""# Synthetic receipts

{{train}} pages for training and {{val}} for validation, drawn by `ocrlab/data/synthetic/generate.py`; no real
shop, person or receipt is shown. `gts/gt_NAME.txt` has one line a text box, as in ICDAR 2015 and SROIE:
`x1,y1,x2,y2,x3,y3,x4,y4,transcription`, whole pixels, clockwise from the top left. A row of columns is
one box a column. Rules, barcodes, logos, stamps and pen strokes are not text and not annotated.

Made with seed {{seed}}: `ocrlab samples make DIR --train {{train}} --val {{val}} --seed {{seed}}`.
`sha256sum -c {SUMS}` says whether the files are as they were made. Licence: MIT, as the program.
"""

Quad = NDArray[np.float32]


@dataclass(frozen=True)
class Page:
    """A photographed receipt: `image` (H, W, 3) RGB uint8, which is what `jpeg` decodes to, and its exact annotation.

    `lines` are the text boxes as SROIE cuts them: quads (4, 2) float32 of xy in pixels, clockwise from the top left of
    the text, each with its transcription in `texts`.
    """

    image: NDArray[np.uint8]
    lines: list[Quad]
    texts: list[str]
    jpeg: bytes


@dataclass(frozen=True)
class Summary:
    """What `make` wrote: pages of both splits, text lines in all, and bytes in all."""

    folder: Path
    train: int
    val: int
    lines: int
    bytes: int


def page(seed: int, *, width: int | None = None, height: int | None = None) -> Page:
    """Return the receipt number `seed`, the same pixels every time; by default 544-688 x 832-992 px with 30-60 boxes.

    Raises DataError for a page too small to hold legible text.
    """
    dice = Dice(seed, 0)
    chosen = 8 * dice.whole(68, 86), 8 * dice.whole(104, 124)
    size = (chosen[0] if width is None else width, chosen[1] if height is None else height)
    if size[0] < SMALLEST[0] or size[1] < SMALLEST[1]:
        need = f"at least {SMALLEST[0]} x {SMALLEST[1]} pixels"
        raise DataError("Page is too small for a receipt", got=f"{size[0]} x {size[1]}", need=need)
    sheet = layout(Dice(seed, 1), round(size[0] * dice.between(0.8, 0.96)), round(size[1] * 0.97))
    matrix = photo_effects.place(Dice(seed, 2), (sheet.width, sheet.height), size)
    ink = decorations.printed(Dice(seed, 3), sheet)
    for piece in sheet.pieces:
        typesetting.draw(piece, ink)
    picture = photo_effects.photograph(Dice(seed, 4), ink, decorations.handmade(Dice(seed, 5), sheet), matrix, size)
    _, coded = cv2.imencode(".jpg", picture[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, dice.whole(65, 90)])
    decoded = cv2.imdecode(coded, cv2.IMREAD_COLOR)
    assert decoded is not None, "a picture that was just coded can be decoded"
    image = np.ascontiguousarray(decoded[:, :, ::-1], dtype=np.uint8)
    return Page(image, annotate(sheet, matrix), [piece.text for piece in sheet.pieces], coded.tobytes())


def annotate(sheet: Sheet, matrix: photo_effects.Matrix) -> list[Quad]:
    """Return the text boxes of a sheet as the page shows them."""
    lines = []
    for x0, y0, x1, y1 in map(typesetting.box, sheet.pieces):
        corners = ((x0, y0), (x1, y0), (x1, y1), (x0, y1))
        lines.append(np.array([photo_effects.project(matrix, x, y) for x, y in corners], np.float32))
    return lines


def make(
    folder: Path,
    *,
    train: int = 48,
    val: int = 16,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Summary:
    """Write `train` and `val` receipts to a new or empty `folder`; all of it is written or nothing.

    `progress(done, total)` is called after each page. Raises DataError for a folder with files in it.
    """
    wanted = {"train": train, "val": val}
    if min(wanted.values()) < 0 or max(wanted.values()) > SPLITS["val"]:
        raise DataError("Number of pages is out of range", got=wanted, need=f"0 to {SPLITS['val']} pages in each split")
    folder = Path(folder)
    lines = done = 0
    with write_whole(folder) as stage:
        for split, count in wanted.items():
            for kind in ("images", "gts"):
                (stage / split / kind).mkdir(parents=True)
            for place in range(count):
                sheet = page(seed * PER_SEED + SPLITS[split] + place)
                (stage / split / "images" / f"receipt_{place:03}.jpg").write_bytes(sheet.jpeg)
                write_icdar(stage / split / "gts" / f"gt_receipt_{place:03}.txt", sheet.lines, sheet.texts)
                lines, done = lines + len(sheet.lines), done + 1
                if progress is not None:
                    progress(done, train + val)
        (stage / "README.md").write_text(README.format(train=train, val=val, seed=seed), encoding="utf-8", newline="\n")
        files = sorted(path for path in stage.rglob("*") if path.is_file())
        digests = {file.relative_to(stage).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
        (stage / SUMS).write_text("".join(f"{sum}  {name}\n" for name, sum in digests.items()), newline="\n")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Summary(folder, train, val, lines, size)
