"""What does a set of a million pages cost in shards: to open, to read a page at random, in memory, in two workers?

A few thousand real pages lie in a tar; the index names each of them many times, under a name of its own, until it has
a million entries. Every figure is of a process of its own. The folder of files beside it is the same few thousand.

python benchmarks/shards.py --save
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import table
from torch.utils.data import DataLoader, Dataset

from ocrlab.data.formats import reader, writers
from ocrlab.data.image_io import read_header
from ocrlab.data.shards import dataset, shard_index, writer

ROOT = Path(__file__).parents[1]
READ, GROWN = 6_000, 32.0  # pages read at random; MiB that a process may grow by while it reads them


def build_shards(folder: Path, copies: int) -> int:
    """Write the pages of data_samples `copies` times into shards; return how many there are."""

    def records() -> Iterator[writers.Record]:
        readers, _, _ = reader.open_pages(ROOT / "data_samples", "train")
        pages = [read() for read in readers]
        for copy in range(copies):
            for page in pages:
                header = read_header(page.image)
                record = writers.record(page, page.image.name, (header.width, header.height), False, Counter())
                yield replace(record, name=f"{page.name}-{copy}")

    writer.to_shards(records(), folder, "train", Counter())
    readers, _, _ = reader.open_pages(ROOT / "data_samples", "train")
    return copies * len(readers)


def repeated(folder: Path, pages: int) -> Path:
    """Write an index of `pages` entries over the tars of `folder`; return its file."""
    file = folder / "train" / dataset.INDEX
    index = shard_index.load(file, folder / "train")
    rows = np.resize(index.rows, pages)
    names = [b"page%07d" % number for number in range(pages)]
    rows["key_at"], rows["key_size"] = np.arange(pages) * len(names[0]), len(names[0])
    about = index.about | {"pages": pages, "keys": pages * len(names[0]), "usable": [pages, pages]}
    content = json.dumps(about).encode() + b"\n" + rows.tobytes() + b"".join(names)
    file.unlink()
    file.write_bytes(content)
    return file


def memory() -> dict[str, float]:
    """Return MiB of this process: its own (anonymous and written to) and those mapped from files."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    sizes = {name: int(rest.split()[0]) / 1024 for name, _, rest in (line.partition(":") for line in lines)}
    return {"own": sizes["Private_Dirty"], "mapped": sizes["Rss"] - sizes["Anonymous"]}


def opening(folder: Path) -> dict[str, float]:
    """Open a split in this process, read pages at random, and say what it took."""
    reader.load(ROOT / "data_samples", "val")  # imports and first uses
    before, start = memory(), time.perf_counter()
    samples = reader.load(folder, "train").samples
    opened, after = time.perf_counter() - start, memory()
    chosen = np.random.default_rng(0).integers(0, len(samples), READ)
    for place in chosen[:1000]:
        samples[int(place)]
    warm, start = memory(), time.perf_counter()
    boxes = sum(len(samples[int(place)].polygons) for place in chosen[1000:])
    took, end = time.perf_counter() - start, memory()
    return {
        "pages": len(samples),
        "open": opened,
        "opened": after["own"] - before["own"],
        "read": took / (READ - 1000),
        "grown": end["own"] - warm["own"],
        "mapped": end["mapped"] - before["mapped"],
        "boxes": boxes / (READ - 1000),
    }


class Boxes(Dataset[Any]):
    """How many boxes a page has, and what the worker that read it holds."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, place: int) -> tuple[int, int, float]:
        return len(self.samples[place].polygons), os.getpid(), memory()["own"] if place % 50 == 0 else 0.0


def workers(folder: Path, method: str) -> dict[str, float]:
    """Read pages at random in two workers, and say by how much each of them grew."""
    samples = reader.load(folder, "train").samples
    chosen = np.random.default_rng(0).integers(0, len(samples), READ).tolist()
    loader = DataLoader(
        Boxes(samples), 50, sampler=chosen, num_workers=2, multiprocessing_context=method, collate_fn=list
    )
    usage: dict[int, list[float]] = {}
    start = time.perf_counter()
    for batch in loader:
        for _, worker, own in batch:
            usage.setdefault(worker, []).extend([own] if own else [])
    took = time.perf_counter() - start
    return {
        "read": took / READ,
        "grown": max(max(series[5:]) - series[5] for series in usage.values()),
        "workers": len(usage),
    }


def child(*words: str) -> dict[str, float]:
    """Run a part of this file in a process of its own."""
    done = subprocess.run([sys.executable, __file__, "--part", *words], check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = table.parser(__doc__)
    parser.add_argument("--pages", type=int, default=1_000_000, help="entries of the index (1,000,000)")
    parser.add_argument("--part", nargs="+", help="for its own children")
    args = parser.parse_args()
    if args.part:
        what, folder, *more = args.part
        print(json.dumps(opening(Path(folder)) if what == "open" else workers(Path(folder), *more)))
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        start = time.perf_counter()
        real = build_shards(folder, 10)
        written, start = (time.perf_counter() - start) / real, time.perf_counter()
        reader.open_pages(folder, "train")
        indexed = (time.perf_counter() - start) / real
        few = child("open", place)
        file = repeated(folder, args.pages)
        many = child("open", place)
        forked, spawned = child("workers", place, "fork"), child("workers", place, "spawn")
        size = file.stat().st_size
    rows = [
        (f"write a page, {real:,} pages", f"{1e3 * written:.2f} ms", "", ""),
        ("index it, once", f"{1e3 * indexed:.2f} ms", f"{indexed * args.pages / 60:.0f} min for {args.pages:,}", ""),
        ("size of the index", f"{size / args.pages:.0f} B a page", f"{size / 2**20:.0f} MiB", ""),
        (f"open {few['pages']:,} pages", f"{1e3 * few['open']:.1f} ms", f"{few['opened']:.1f} MiB", ""),
        (f"open {args.pages:,} pages", f"{1e3 * many['open']:.1f} ms", f"{many['opened']:.1f} MiB", "1 s, 32 MiB"),
        (f"read and judge an annotation of {many['boxes']:.0f} boxes", f"{1e3 * many['read']:.2f} ms", "", ""),
        (
            "the same, two workers, fork",
            f"{1e3 * forked['read']:.2f} ms",
            f"{forked['grown']:+.1f} MiB the larger",
            "32 MiB",
        ),
        ("the same, two workers, spawn", f"{1e3 * spawned['read']:.2f} ms", f"{spawned['grown']:+.1f} MiB", "32 MiB"),
        (f"growth over {READ - 1000:,} pages at random", "", f"{many['grown']:+.1f} MiB", "32 MiB"),
        ("mapped from the index and libraries, shared", "", f"{many['mapped']:.0f} MiB", ""),
    ]
    for what, value, unit, must in (
        (f"open {args.pages:,} pages", many["open"], "s", "<= 1"),
        (f"open {args.pages:,} pages", many["opened"], "MiB", f"<= {GROWN}"),
        (f"growth over {READ - 1000:,} pages at random", many["grown"], "MiB", f"<= {GROWN}"),
        ("growth of two workers, fork, the larger", forked["grown"], "MiB", f"<= {GROWN}"),
        ("growth of two workers, spawn, the larger", spawned["grown"], "MiB", f"<= {GROWN}"),
    ):
        table.figure(what, value, unit, limit=must)
    good = many["open"] < 1 and max(many["opened"], many["grown"], forked["grown"], spawned["grown"]) < GROWN
    body = table.markdown(["what", "time", "memory", "must"], rows)
    notes = "Boxes are judged at each read; the index tells where a page lies and how large it is. All limits: "
    notes += f"{table.judged(good)}."
    table.publish("shards", table.page("Shards", f"{body}\n\n{notes}"), args)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
