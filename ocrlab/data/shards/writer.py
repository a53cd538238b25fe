"""Pages -> shards: SPLIT/000000.tar ... of KEY.jpg + KEY.json, which WebDataset and torchdata read as well.

The same pages give the same bytes: no times, no owners. An image is put in as it is, and never decoded.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from ocrlab.data.formats.writers import Record
from ocrlab.data.image_io import read_file
from ocrlab.data.shards import tar_scan

LIMIT = 512 * 2**20  # bytes of a tar: a few thousand pages, enough to read at full speed, few enough to copy one


def to_shards(records: Iterable[Record], folder: Path, split: str, _lost: Counter[str]) -> None:
    """Write tars of at most LIMIT bytes, but for one larger page alone."""
    place, number, tar = folder / split, 0, None
    place.mkdir(parents=True, exist_ok=True)
    try:
        for page in records:
            files = _files(page)
            size = sum(tarfile.BLOCKSIZE * 3 + len(data) for _, data in files)
            if tar is None or (tar.offset and tar.offset + size > LIMIT):
                if tar is not None:
                    tar.close()
                tar = tarfile.open(place / f"{number:06d}.tar", "x", format=tarfile.PAX_FORMAT)  # noqa: SIM115
                number += 1
            for name, data in files:
                info = tarfile.TarInfo(name)
                info.size, info.mode = len(data), 0o644
                tar.addfile(info, io.BytesIO(data))
            tar.members.clear()  # type: ignore[attr-defined]  # it would keep all of them
    finally:
        if tar is not None:
            tar.close()


def _files(page: Record) -> list[tuple[str, bytes]]:
    key = tar_scan.key_of(page.name)
    data = json.dumps(page.content(), ensure_ascii=False).encode("utf-8", "backslashreplace")
    return [(key + page.image.suffix.lower(), read_file(page.image)), (f"{key}.json", data)]
