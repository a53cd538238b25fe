"""Does prediction stay small and keep the cores busy, and does ONNX find the same? On receipts, with one detector.

    python benchmarks/predict.py --data ../shared/data/sroie                      the shipped detector
    python benchmarks/predict.py --data ../shared/data/sroie --checkpoint CKPT --pages 63

Memory: 1,000 small pages through `Detector.stream`, every second one of another size, one in a hundred broken; the
resident memory is read after every page. Speed: the same receipts one by one and as a stream, in turn. ONNX: the same
receipts through onnxruntime, both in float32.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from table import ROOT, figure, judged, markdown, page, parser, publish

from ocrlab.data import image_io, transforms
from ocrlab.data.formats import reader
from ocrlab.data.synthetic import generate
from ocrlab.errors import OcrlabError
from ocrlab.inference import Detector, page_inference
from ocrlab.inference.detector import threads

GROWTH = 16.0  # MiB between page 200 and page 1,000; one page of A4 at 300 dpi takes 26
SAME = 0.97  # of the speed one by one that a stream has at least: reading ahead must not cost anything on two cores
CORNERS = 0.001  # of the corners may be a pixel or more away; a pixel near the threshold may fall to either side
SETTLED = 200  # pages after which the allocator has what it needs

Row = tuple[str, str, str, bool | None]


def main() -> None:
    """Measure, print the table, and end with 1 where a limit is not met."""
    args = arguments()
    threads(args.threads)
    try:
        detector = Detector.load(args.checkpoint or "receipts")
        samples = reader.load(args.data, "val").samples[: args.pages]
    except OcrlabError as error:
        sys.exit(f"Nothing to measure: {error}")
    files = [sample.image for sample in samples]
    rows = [memory(detector, args.small), *speed(detector, files[: args.timed], args.rounds), same(detector, files)]
    lines = [f"Detector {detector.config.encoder}, width {detector.config.width}, {args.threads} threads,"]
    lines[0] += f" pages of at most {detector.config.evaluate.long_side} pixels."
    for what, measured, must, _ in rows:
        figure(what, measured, "as in the text", limit=must)
    cells = [[what, reached, limit, judged(met)] for what, reached, limit, met in rows]
    lines += ["", markdown(("what", "measured", "limit", ""), cells)]
    publish("predict", page("Prediction", "\n".join(lines)), args)
    sys.exit(1 if any(met is False for *_, met in rows) else 0)


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    command = parser(__doc__)
    data = ROOT.parent / "shared" / "data" / "sroie"
    command.add_argument("--data", type=Path, default=data, help="data folder; its split val is taken")
    command.add_argument("--checkpoint", type=Path, help="a .ckpt file (the shipped one)")
    command.add_argument("--pages", type=int, default=63, help="receipts through onnxruntime (default 63)")
    command.add_argument("--timed", type=int, default=8, help="receipts that are timed (default 8)")
    command.add_argument("--rounds", type=int, default=5, help="measured rounds (default 5)")
    command.add_argument("--small", type=int, default=1000, help="small pages (default 1,000)")
    command.add_argument("--threads", type=int, default=2, help="of torch and of onnxruntime (default 2)")
    return command.parse_args()


def memory(detector: Detector, count: int) -> Row:
    """Return by how much the process grows over many pages, and how many it does in a second."""
    with tempfile.TemporaryDirectory() as folder:
        sizes, bad, start = [], 0, time.perf_counter()
        for page in detector.stream(small_pages(Path(folder), count)):
            sizes.append(resident())
            bad += hasattr(page, "message")
        rate = count / (time.perf_counter() - start)
    settled = min(SETTLED, count // 2)
    growth = max(sizes[settled:]) - sizes[settled]
    summary = f"{growth:+.1f} MiB at most after page {settled}, {max(sizes):.0f} MiB in all"
    summary += f"; {rate:.0f} pages/s; {bad} bad pages reported"
    return f"memory over {count:,} small pages", summary, f"{GROWTH:g} MiB", growth <= GROWTH


def small_pages(folder: Path, count: int) -> Iterator[Path]:
    """Yield paths of small pages, each a new file, the one before the last removed."""
    images = [generate.page(seed, width=320, height=480).image for seed in range(4)]
    shapes = [image[: 160 + 32 * (i % 2), :192] for i, image in enumerate(images)]
    encoded = [encode(np.ascontiguousarray(image)) for image in shapes]
    for number in range(count):
        path = folder / f"{number}.jpg"
        data = encoded[number % len(encoded)]
        path.write_bytes(data[: len(data) // 2] if number % 100 == 99 else data)
        yield path
        (folder / f"{number - 100}.jpg").unlink(missing_ok=True)


def encode(image: NDArray[np.uint8]) -> bytes:
    """Return an image (H, W, 3) RGB as the bytes of a JPEG."""
    import cv2

    return bytes(cv2.imencode(".jpg", image[..., ::-1])[1].tobytes())


def resident() -> float:
    """Return the resident memory of this process in MiB."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def speed(detector: Detector, files: Sequence[Path], rounds: int) -> list[Row]:
    """Return pages a second one by one and as a stream, and whether both find the same."""
    sides: dict[str, Callable[[], list[object]]] = {
        "one by one": lambda: [detector.detect(file) for file in files],
        "stream": lambda: list(detector.stream(files)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    results: dict[str, list[object]] = {}
    for index in range(rounds + 1):
        for name in sorted(sides, reverse=bool(index % 2)):
            start = time.perf_counter()
            results[name] = sides[name]()
            if index:
                seconds[name].append(time.perf_counter() - start)
    plain, stream = (len(files) / statistics.median(seconds[name]) for name in sides)
    what = f"{len(files)} receipts from files to polygons"
    alike = results["stream"] == results["one by one"]
    return [
        (f"{what}, one by one", f"{plain:.2f} pages/s", "", None),
        (
            f"{what}, as a stream",
            f"{stream:.2f} pages/s, {stream / plain:.2f} times",
            f"{SAME:g} times",
            stream >= SAME * plain,
        ),
        ("both find the same", str(alike).lower(), "true", alike),
    ]


def same(detector: Detector, files: Sequence[Path]) -> Row:
    """Return whether onnxruntime finds the polygons that torch finds, both in float32."""
    from ocrlab.inference import onnx_export

    what = f"ONNX against torch on {len(files)} receipts"
    plain = Detector(detector.model, detector.config, False, detector.checkpoint)
    with tempfile.TemporaryDirectory() as folder:
        try:
            onnx_export.to_onnx(plain, Path(folder) / "model.onnx")
        except OcrlabError as error:
            return what, f"not measured: {error}", "", None
        session = onnx_export.session(Path(folder) / "model.onnx", threads=2)
    polygons = corners = far = other = 0
    for file in files:
        ours, theirs = (regions(plain, file, session=side) for side in (None, session))
        polygons += len(ours)
        if len(ours) != len(theirs):
            other += 1
            continue
        moved = [np.abs(a - b).max(axis=1) for a, b in zip(ours, theirs, strict=True)]
        corners += sum(map(len, moved))
        far += int(sum((side >= 1).sum() for side in moved))
    summary = (
        f"{polygons:,} polygons; {other} pages with another number, {far} of {corners:,} corners a pixel or more away"
    )
    met = other == 0 and far <= CORNERS * corners
    return what, summary, f"0 pages, {CORNERS:.1%} of the corners", met


def regions(detector: Detector, file: Path, session: object = None) -> list[NDArray[np.float32]]:
    """Return the polygons of a page, by torch or by an onnxruntime session."""
    image = image_io.read_image(file)
    size = (image.shape[1], image.shape[0])
    warp, shape = transforms.letterbox(size, detector.config.evaluate)
    canvas = transforms.warp_image(image, warp, shape)
    if session is None:
        heat = page_inference.probability(detector.model, canvas, bf16=False)
    else:
        heat = session.run(None, {"images": canvas.transpose(2, 0, 1)[None]})[0][0, 0]  # type: ignore[attr-defined]
    return page_inference.regions(heat, warp, size, detector.config.post, detector.config.targets.shrink_ratio).polygons


if __name__ == "__main__":
    main()
