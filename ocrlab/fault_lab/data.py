"""Samples that cannot be read, labels that do not fit, batches that cannot be stacked."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ocrlab.fault_lab.fault import Fault
from ocrlab.fault_lab.setup import drop_root, folder, torch


def jpeg(path: Path, size: tuple[int, int] = (320, 480)) -> Path:
    """Write a picture that cannot be compressed much, so that a cut goes through its pixels."""
    from PIL import Image

    Image.frombytes("RGB", size, random.Random(0).randbytes(size[0] * size[1] * 3)).save(path, quality=90)
    return path


def open_pages(paths: list[Path]) -> list[Any]:
    from PIL import Image

    return [Image.open(path).convert("RGB") for path in paths]


def read_html_as_page() -> None:
    place = folder()
    pages = [jpeg(place / "0001.jpg"), place / "0002.jpg"]
    pages[1].write_text("<html><head><title>503 Service Unavailable</title></head></html>")
    open_pages(pages)


def read_half_a_page() -> None:
    page = jpeg(folder() / "0001.jpg")
    page.write_bytes(page.read_bytes()[:9000])
    open_pages([page])


def to_grey() -> None:
    import cv2

    page = folder() / "0001.png"
    page.write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 600)
    cv2.cvtColor(cv2.imread(str(page)), cv2.COLOR_BGR2GRAY)


class Pages:
    """A data set as people write it: a list of files and a list of labels."""

    def __init__(self, place: Path, count: int = 8) -> None:
        self.images = [place / f"{index:04d}.jpg" for index in range(count)]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        return self.images[index].read_bytes()


def train_on(make_dataset: Callable[[Path], Any], workers: int = 0) -> None:
    """Go through a data set in a new folder once, as an epoch does."""
    from torch.utils.data import DataLoader

    batches = DataLoader(make_dataset(folder()), batch_size=4, num_workers=workers)
    print(sum(len(batch) for batch in batches))


def elsewhere(place: Path) -> Pages:
    return Pages(place / "train")


def epoch_over_private_folder() -> None:
    import torch.utils.data  # before root is dropped: nobody may not read every place that Python is installed in

    place = folder()
    for page in Pages(place).images:
        page.write_bytes(b"page")
        page.chmod(0o000)
    place.chmod(0o755)
    drop_root()
    torch.utils.data.get_worker_info()
    train_on(lambda _: Pages(place))


def read_labels() -> None:
    label = folder() / "0001.json"
    label.write_text('{"shapes": [{"points": [[12, 40], [98, 40]], "label": "TOTAL"},\n')
    json.loads(label.read_text())


def read_label_lines() -> None:
    label = folder() / "gt_0001.txt"
    label.write_text("377,117,463,117,465,130,378,130,Genaxis Theatre\n493,115,519,115,519;131,493,131,[06]\n")
    for line in label.read_text().splitlines():
        points = [float(value) for value in line.split(",", 8)[:8]]
        assert len(points) == 8


def classify_fields() -> None:
    head = torch.nn.Linear(16, 5)
    loss = torch.nn.CrossEntropyLoss()
    for labels in ([0, 1, 4, 2], [3, 3, 5, 1]):
        loss(head(torch.randn(4, 16)), torch.tensor(labels)).backward()


class Crops(Pages):
    """Crops of text as tensors; each knows only its own size."""

    sizes = ((32, 100), (32, 100), (32, 140), (32, 100)) * 2

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(3, *self.sizes[index])


class Readable(Pages):
    """Pages of which those that cannot be read are left out, as somebody once found clever."""

    def __getitem__(self, index: int) -> Any:
        return None if index == 4 else index


class Fields(Pages):
    """Pages with their fields; one page was labelled by another department."""

    def __getitem__(self, index: int) -> Any:
        fields = {"total": 12.5, "date": 20240101} if index != 5 else {"sum": 12.5}
        return fields["total"]


class Polygons(Pages):
    """Polygons of each page as one tensor; a blank page has none."""

    def __getitem__(self, index: int) -> Any:
        return torch.stack([torch.rand(4, 2) for _ in range(3 if index else 0)])


def score_masks() -> None:
    mask = torch.zeros(2, 1, 16, 16)
    mask[:, :, 4:8] = 255.0
    probability = torch.sigmoid(torch.randn(2, 1, 16, 16))
    torch.nn.functional.binary_cross_entropy(probability, mask)


CORRUPT, SAMPLE, FIELDS = ("data.corrupt", "data.sample"), ("data.sample",), ("data.sample", "data.annotation")
FAULTS = (
    Fault("corrupt_image", "opens a page that is an error page", "failed", CORRUPT, read_html_as_page, ("PIL",)),
    Fault("truncated_image", "decodes a JPEG that was cut", "failed", CORRUPT, read_half_a_page, ("PIL",)),
    Fault("unreadable_image", "converts what imread returned", "failed", (*CORRUPT, "io.missing"), to_grey, ("cv2",)),
    Fault("missing_image", "reads a folder that is not there", "failed", ("io.missing",), partial(train_on, elsewhere)),
    Fault("private_image", "reads pages of another user", "failed", ("io.permission",), epoch_over_private_folder),
    Fault("label_json_cut", "parses a cut JSON label", "failed", ("data.annotation", "data.corrupt"), read_labels),
    Fault("label_number", "reads a number that is none", "failed", ("data.annotation",), read_label_lines),
    Fault("class_id", "a class id past the last", "failed", ("data.index_range", "data.annotation"), classify_fields),
    Fault("ragged_batch", "stacks crops of two widths", "failed", SAMPLE, partial(train_on, Crops, workers=1)),
    Fault("none_sample", "a sample that is None", "failed", SAMPLE, partial(train_on, Readable, workers=1)),
    Fault("missing_key", "a page without a total", "failed", FIELDS, partial(train_on, Fields)),
    Fault("empty_page", "stacks no polygons", "failed", FIELDS, partial(train_on, Polygons)),
    Fault("mask_255", "BCE of a mask of 255", "failed", ("data.annotation", "data.index_range"), score_masks),
)
