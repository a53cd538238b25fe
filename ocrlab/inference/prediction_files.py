"""From image files to prediction files: which pages there are, and results that are never written over a file."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ocrlab import safe_read
from ocrlab.data.annotations import Problem
from ocrlab.data.folder_layouts import LEAVES, SUFFIXES
from ocrlab.data.formats import reader
from ocrlab.errors import DataError
from ocrlab.evaluation import postprocess
from ocrlab.inference.detector import Detector
from ocrlab.inference.page_stream import Page, stream_pages
from ocrlab.records import SCHEMA, Prediction, to_json

ENDINGS = {"json": ".json", "icdar": ".txt", "overlay": ".overlay.jpg"}
FORMATS = tuple(ENDINGS)
OF_ONE_FILE = (errno.EFBIG, errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL)  # others are of the disk or the folder
LONGEST_SIDE = 65_500  # pixels of a JPEG: libjpeg writes no more; a longer page has a smaller overlay
LONGEST = 220  # bytes of a name that leave room for a number and the longest ending, of the 255 that disks allow
# What a person takes for a page, too: GIF can be read; for the others the result says why not.
ALSO = frozenset({".gif", ".pdf", ".heic", ".heif", ".avif", ".jp2", ".jxl", ".djvu"})
GREEN = (60, 190, 60)  # RGB of the polygons in overlays
Write = Callable[[Path], object]  # makes one file


@dataclass(frozen=True)
class PageResult:
    """What became of one file: its prediction or what is wrong with it, and the files that were written."""

    file: Path
    page: Prediction | Problem
    written: tuple[Path, ...] = ()

    def record(self) -> dict[str, Any]:
        """Return it as one JSON object: a prediction, or `{"schema", "image", "error"}`, and the path of the file."""
        if isinstance(self.page, Prediction):
            return to_json(self.page, file=str(self.file))
        return {"schema": SCHEMA, "image": self.file.name, "error": self.page.message, "file": str(self.file)}


def collect(paths: Sequence[Path]) -> list[Path | Problem]:
    """Return the image files that `paths` (files and folders) name, each once, folders in order of name.

    A PDF or a photograph of a telephone (HEIC) in a folder is one too: who reads it says that it cannot be.
    Hidden files and overlays are left out; a folder that cannot be read is in the list, to be reported. Raises
    DataError for a path that is not there, or if none is found.
    """
    files: list[Path | Problem] = []
    for path in paths:
        if path.is_dir():
            files += walk(path)
        elif path.exists():
            files.append(path)
        else:
            need = "images or folders of images"
            raise DataError("No such file or folder", got=str(path), need=need, missing=True)
    if not files:
        need = f"files {' '.join(sorted(SUFFIXES))}"
        raise DataError("No image was found", got=", ".join(map(str, paths)), need=need)
    return list(dict.fromkeys(files))


def walk(top: Path) -> list[Path | Problem]:
    """Return the image files below a folder in order of name; links to folders are not followed.

    What cannot be read is in the list too, folders and links that lead nowhere among it: who reads it reports that. A
    link out of the folder is a Problem: others may have filled the folder, and its pages may go to others.
    """
    files: list[Path] = []
    closed: list[Path] = []
    for folder, folders, names in os.walk(top, onerror=lambda error: closed.append(Path(error.filename))):
        folders[:] = [name for name in folders if name[0] != "."]
        for name in names:
            path = Path(folder, name)
            overlay = name.lower().endswith(ENDINGS["overlay"])
            device = path.exists() and not path.is_file()  # or a pipe, from which one could read for ever
            if path.suffix.lower() in SUFFIXES | ALSO and name[0] != "." and not overlay and not device:
                files.append(path)

    def checked(path: Path) -> Path | Problem:
        out = path.is_symlink() and safe_read.leads_out(path, top)
        return Problem(path, None, f"{LEAVES}. Copy the file there, or name it on the command line.") if out else path

    return [checked(path) for path in sorted(files + closed)]


def predict_files(
    detector: Detector,
    files: Iterable[Path | Problem],
    out: Path | None = None,
    wanted: Sequence[str] = ("json",),
    *,
    ahead: int | None = None,
    batch: int | None = None,
) -> Generator[PageResult, None, None]:
    """Detect text in image files and yield what became of each, in order; a page that cannot be read is a Problem.

    With `out`, NAME.json, NAME.txt (ICDAR) or NAME.overlay.jpg is written there: whole, and never over a file. Raises
    DataError if there can be no such folder.
    """
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(
                f"{out} cannot be made", got=error.strerror, need="a folder that you may write to"
            ) from error
    formed = tuple(wanted) if out is not None else ()

    def finish(page: Page, regions: postprocess.Regions) -> tuple[Path, Prediction, dict[str, Write]]:
        assert not isinstance(page.source, np.ndarray), "only files come in"
        file, prediction = Path(page.source), page.prediction(regions)
        return file, prediction, {ENDINGS[form]: writer(form, file, page, prediction, regions) for form in formed}

    done = stream_pages(detector, files, finish, keep_images="overlay" in formed, ahead=ahead, batch=batch)
    with contextlib.closing(done):
        for result in done:
            if isinstance(result, Problem):
                assert result.file is not None, "only files come in"
                yield PageResult(result.file, result)
            else:
                file, prediction, writes = result
                try:
                    written = place(writes, out, file.stem) if out and writes else ()
                except OSError as error:
                    if error.errno not in OF_ONE_FILE:
                        raise
                    why = f"what was found on it cannot be written. Given: {error.strerror}."
                    yield PageResult(file, Problem(file, None, why))
                else:
                    yield PageResult(file, prediction, written)


def writer(form: str, file: Path, page: Page, prediction: Prediction, regions: postprocess.Regions) -> Write:
    """Return what writes a page as JSON, as ICDAR text, or as a JPEG with its regions drawn on it."""
    if form == "icdar":
        return lambda path: reader.write_icdar(path, regions.polygons, [""] * len(regions))
    if form == "json":
        text = json.dumps(PageResult(file, prediction).record(), indent=2, allow_nan=False, ensure_ascii=False) + "\n"
        data = text.encode(errors="backslashreplace")
    else:
        assert page.image is not None, "stored for this"
        picture = overlay(page.image, regions.polygons)
        picture = np.asarray(cv2.cvtColor(picture, cv2.COLOR_RGB2BGR, dst=picture), np.uint8)
        scale = LONGEST_SIDE / max(picture.shape[:2])
        if scale < 1:
            size = (max(1, int(picture.shape[1] * scale)), max(1, int(picture.shape[0] * scale)))
            picture = np.asarray(cv2.resize(picture, size, interpolation=cv2.INTER_AREA), np.uint8)
        ok, encoded = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 90])
        if not ok:
            got = f"{picture.shape[1]} x {picture.shape[0]} pixels"
            raise DataError("The overlay cannot be written as JPEG", got=got, do="Leave it out: --format json icdar")
        data = encoded.tobytes()
    return lambda path: path.write_bytes(data)


def overlay(image: NDArray[np.uint8], polygons: Sequence[NDArray[np.float32]]) -> NDArray[np.uint8]:
    """Return a copy of an image (H, W, 3) RGB with the polygons drawn on it."""
    picture = image.copy()
    thickness = max(1, round(max(image.shape[:2]) / 800))
    points = [np.rint(p).astype(np.int32) for p in polygons]
    return cv2.polylines(picture, points, isClosed=True, color=GREEN, thickness=thickness, lineType=cv2.LINE_AA)


def place(writes: Mapping[str, Write], out: Path, stem: str) -> tuple[Path, ...]:
    """Make the files `out/stem` + ending, or `out/stem-2` … where one of them already exists; return their paths.

    Each is whole or not there, and another process that writes into the same folder loses nothing either.
    """
    if len(os.fsencode(stem)) > LONGEST:
        stem = os.fsencode(stem)[:LONGEST].decode(errors="ignore")
    for number in itertools.count(1):
        base = f"{stem}-{number}" if number > 1 else stem
        paths = [out / f"{base}{ending}" for ending in writes]
        if any(os.path.lexists(path) for path in paths):
            continue
        placed: list[Path] = []
        try:
            for path, write in zip(paths, writes.values(), strict=True):
                create(path, write)
                placed.append(path)
            return tuple(placed)
        except FileExistsError:  # somebody was faster
            for path in placed:
                path.unlink()
    raise AssertionError("numbers do not end")


def create(path: Path, write: Write) -> None:
    """Let `write` make a new file, whole or not at all; raises FileExistsError where there is one, else OSError.

    It is not synced: what a power cut takes can be computed again.
    """
    temporary = path.with_name(f".{os.getpid()}-{threading.get_ident()}{path.suffix}.tmp")
    try:
        write(temporary)
        try:
            os.link(temporary, path)  # unlike a rename it refuses a name that is taken
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            with path.open("xb") as file:
                file.write(temporary.read_bytes())
    finally:
        temporary.unlink(missing_ok=True)
