"""Synthetic receipts: seeded pages with exact polygons of lines and words, and the folder of samples made of them."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrlab.data.formats.icdar import write_icdar
from ocrlab.data.synthetic import decorations, photo_effects, typesetting
from ocrlab.data.synthetic.receipt_layout import Sheet, layout
from ocrlab.data.synthetic.stable_random import Dice
from ocrlab.errors import DataError

SPLITS = {"train": 0, "val": 2**19}  # where the page numbers of a split begin
PER_SEED = 2**20  # page numbers of one seed
SUMS = "SHA256SUMS"  # what `make` wrote, in the format of sha256sum
TITLE = "# Synthetic receipts"
GENERATED = re.compile(r"README\.md|(?:train|val)/(?:images/receipt_\d{3,}\.jpg|gts/gt_receipt_\d{3,}\.txt)")
SMALLEST = (320, 480)  # pixels; below, the letters are too small to read

README = f"""{TITLE}

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

    `lines` are the text boxes as SROIE cuts them, `words` their words: quads (4, 2) float32 of xy in pixels, clockwise
    from the top left of the text, each with its transcription in `texts` and `word_texts`.
    """

    image: NDArray[np.uint8]
    lines: list[Quad]
    texts: list[str]
    words: list[Quad]
    word_texts: list[str]
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
    return Page(image, *_annotate(sheet, matrix), coded.tobytes())


def _annotate(sheet: Sheet, matrix: photo_effects.Matrix) -> tuple[list[Quad], list[str], list[Quad], list[str]]:
    """Return lines, their texts, words and their texts, as the page shows them."""

    def on_page(box: typesetting.Box) -> Quad:
        x0, y0, x1, y1 = box
        corners = ((x0, y0), (x1, y0), (x1, y1), (x0, y1))
        return np.array([photo_effects.project(matrix, x, y) for x, y in corners], np.float32)

    words = [word for piece in sheet.pieces for word in typesetting.words(piece)]
    lines = [on_page(typesetting.box(piece)) for piece in sheet.pieces]
    return (
        lines,
        [piece.text for piece in sheet.pieces],
        [on_page(box) for _, box in words],
        [text for text, _ in words],
    )


def make(
    folder: Path,
    *,
    train: int = 48,
    val: int = 16,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Summary:
    """Write `train` and `val` receipts under `folder`, which is new, empty, or made by this function and not edited.

    `progress(done, total)` is called after each page. Raises DataError before anything would be overwritten; until the
    last page is done the folder is not touched.
    """
    wanted = {"train": train, "val": val}
    if min(wanted.values()) < 0 or max(wanted.values()) > SPLITS["val"]:
        raise DataError("Number of pages is out of range", got=wanted, need=f"0 to {SPLITS['val']} pages in each split")
    folder = Path(folder)
    old = _generated_files(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    lines = done = 0
    with TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as work:
        stage = Path(work)
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
        new = sorted(path.relative_to(stage).as_posix() for path in stage.rglob("*") if path.is_file())
        sums = "".join(f"{_digest(stage / name)}  {name}\n" for name in new)
        (stage / SUMS).write_text(sums, newline="\n")
        new.append(SUMS)
        for name in sorted(set(new) - set(old)):
            if (folder / name).exists():
                do = "Move it away, or name another folder"
                raise DataError(f"{folder / name} was not made by this command", do=do)
        for name in old:
            (folder / name).unlink(missing_ok=True)
        for name in new:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.move(stage / name, folder / name)
    return Summary(folder, train, val, lines, sum((folder / name).stat().st_size for name in new))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _generated_files(folder: Path) -> list[str]:
    """Return the files that an earlier `make` left in the folder; raises DataError where something else is there."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return []
    sums = folder / SUMS
    rows = sums.read_text(encoding="utf-8", errors="replace").splitlines() if sums.is_file() else []
    parted = [row.partition("  ")[::2] for row in rows]
    about = (folder / "README.md").read_bytes() if (folder / "README.md").is_file() else TITLE.encode()
    generated = all(GENERATED.fullmatch(name) for _, name in parted) and about.startswith(TITLE.encode())
    if not parted or not generated:  # anybody may have a file of checksums
        raise DataError(f"{folder} is not empty, and its files were not made by this command", do="Name another folder")
    names = []
    for digest, name in parted:
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()) or (path.exists() and _digest(path) != digest):
            raise DataError(f"{path} was changed after it was made", do="Move it away, or name another folder")
        names.append(name)
    return [*names, SUMS]
