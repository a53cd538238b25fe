"""How much does a detector lose on pages that are blurred, noisy, compressed, dark, turned or small?

    python benchmarks/robustness.py --checkpoint CKPT --data ../shared/data/sroie
    python benchmarks/robustness.py --checkpoint CKPT --data ../shared/data/sroie --pages 6

Every page is changed by seed, goes through the path of `ocrlab predict`, and is scored against its own boxes, which
turn and shrink with it. A drop of hmean@0.5 above 0.10 is a miss.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from table import figure, judged, markdown, page, parser, publish

from ocrlab.config import schema as configs
from ocrlab.data import image_io, transforms
from ocrlab.data.formats import reader
from ocrlab.evaluation.metrics import iou

LIMIT = 0.10  # of hmean@0.5
SEED = 0
BLUR, NOISE, JPEG, DEGREES = 1.5, 15.0, 20, 5.0  # pixels, grey levels, quality, clockwise
GAIN, GAMMA, GRAIN = 0.35, 1.2, 3.0  # of low light: 0.35 of the light, darker shadows, noise of a sensor

Image = NDArray[np.uint8]  # (H, W, 3) RGB
Polygons = Sequence[NDArray[np.floating]]  # (P, 2) each
Change = Callable[[np.random.Generator, Image, Polygons], tuple[Image, Polygons]]


def main() -> int:
    """Score the pages clean and changed, and print the table; 1 if a drop is above the limit."""
    args = arguments()
    from ocrlab.inference.detector import Detector, threads

    threads(args.threads)
    detector = Detector.load(args.checkpoint)
    detector.config = configs.apply(detector.config, args.settings)
    samples = reader.load(args.data, args.split, exif=detector.config.exif).samples[: args.pages]
    start, figures = time.perf_counter(), {}
    for name, change in CHANGES.items():
        matches = []
        for number, sample in enumerate(samples):
            image = image_io.read_image(sample.image, exif=detector.config.exif)
            changed, polygons = change(np.random.default_rng([SEED, number]), image, sample.polygons)
            matches.append(iou.match(polygons, sample.ignored, detector.regions(changed).polygons))
        figures[name] = iou.summary(matches)
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    met, body = report(figures)
    with_settings = f", with {' '.join(args.settings)}" if args.settings else ""
    spent = f"{time.perf_counter() - start:.0f} s in all"
    about = f"{len(samples)} pages of {args.split}, seed {SEED}{with_settings}, {spent}."
    publish("robustness", page("Robustness", f"{body}\n\n{about}"), args)
    return 0 if met else 1


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    command = parser(__doc__)
    command.add_argument("--checkpoint", type=Path, required=True, metavar="CKPT", help="a .ckpt file of ocrlab train")
    command.add_argument("--data", type=Path, required=True, metavar="DIR", help="the folder with SPLIT/images")
    command.add_argument("--split", default="val", help="of the data (default val)")
    command.add_argument("--pages", type=int, help="only the first ones")
    command.add_argument("--threads", type=int, help="of the network (default: one a core)")
    command.add_argument("settings", nargs="*", metavar="key=value", help="under post. and evaluate.")
    return command.parse_intermixed_args()


def report(figures: dict[str, dict[str, float]]) -> tuple[bool, str]:
    """Return whether every drop is within the limit, and the table; `figures` are summaries, the first one is clean."""
    clean, *others = figures
    rows, drops = [], {}
    for name, values in figures.items():
        cells = [f"{values[f'hmean@{at}']:.4f}" for at in (0.5, 0.7)]
        if name == clean:
            rows.append((name, *cells, "", "", ""))
            continue
        drop = {at: figures[clean][f"hmean@{at}"] - values[f"hmean@{at}"] for at in (0.5, 0.7)}
        drops[name] = drop[0.5]
        figure(f"drop of hmean@0.5: {name}", drop[0.5], "hmean", limit=f"<= {LIMIT}")
        rows.append((name, *cells, f"{drop[0.5]:+.4f}", f"{drop[0.7]:+.4f}", judged(drop[0.5] <= LIMIT)))
    worst = max(others, key=lambda name: drops[name])
    header = ("page", "hmean@0.5", "hmean@0.7", "drop @0.5", "drop @0.7", f"at most {LIMIT:.2f} @0.5")
    met = drops[worst] <= LIMIT
    return met, f"{markdown(header, rows)}\n\nWorst: {worst}, {drops[worst]:+.4f} hmean@0.5, {judged(met)}."


def clean(_rng: np.random.Generator, image: Image, polygons: Polygons) -> tuple[Image, Polygons]:
    """Return the page as it is."""
    return image, polygons


def blur(_rng: np.random.Generator, image: Image, polygons: Polygons) -> tuple[Image, Polygons]:
    """Return the page out of focus."""
    return np.asarray(cv2.GaussianBlur(image, (0, 0), BLUR), np.uint8), polygons


def noise(rng: np.random.Generator, image: Image, polygons: Polygons) -> tuple[Image, Polygons]:
    """Return the page with normal noise, of each channel on its own."""
    return noisy(rng, image.astype(np.float32), NOISE), polygons


def jpeg(_rng: np.random.Generator, image: Image, polygons: Polygons) -> tuple[Image, Polygons]:
    """Return the page after strong compression."""
    _, data = cv2.imencode(".jpg", image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, JPEG])
    return np.ascontiguousarray(cv2.imdecode(data, cv2.IMREAD_COLOR)[..., ::-1]), polygons


def dark(rng: np.random.Generator, image: Image, polygons: Polygons) -> tuple[Image, Polygons]:
    """Return the page in little light: a third of it, a bent curve, and noise."""
    return noisy(rng, 255 * GAIN * (image.astype(np.float32) / 255) ** GAMMA, GRAIN), polygons


def turned(_rng: np.random.Generator, image: Image, polygons: Polygons) -> tuple[Image, Polygons]:
    """Return the page turned about its middle on a canvas that holds all of it; boxes turn with it."""
    height, width = image.shape[:2]
    cos, sin = math.cos(math.radians(DEGREES)), math.sin(math.radians(DEGREES))
    canvas = (math.ceil(width * cos + height * sin), math.ceil(width * sin + height * cos))
    linear = np.array([[cos, -sin], [sin, cos]])
    middle, new_middle = (np.array([w - 1, h - 1]) / 2 for w, h in ((width, height), canvas))
    warp = np.column_stack((linear, new_middle - linear @ middle))
    grey = [int(value) for value in np.median(image.reshape(-1, 3)[::101], axis=0)]  # the paper, or the scene
    after = cv2.warpAffine(
        image, warp, canvas, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT, borderValue=grey
    )
    return np.asarray(after, np.uint8), [transforms.warp_points(p, warp) for p in polygons]


def half(_rng: np.random.Generator, image: Image, polygons: Polygons) -> tuple[Image, Polygons]:
    """Return the page at half its size; boxes shrink with it."""
    height, width = image.shape[:2]
    small = (max(1, width // 2), max(1, height // 2))
    scale = np.array(small) / (width, height)
    return np.asarray(cv2.resize(image, small, interpolation=cv2.INTER_AREA), np.uint8), [p * scale for p in polygons]


def noisy(rng: np.random.Generator, image: NDArray[np.float32], sigma: float) -> Image:
    """Return an image (H, W, 3) of grey levels with normal noise, as whole levels."""
    grain = rng.standard_normal(image.shape, dtype=np.float32) * np.float32(sigma)
    return np.clip(np.rint(image + grain), 0, 255).astype(np.uint8)


CHANGES: dict[str, Change] = {
    "clean": clean,
    f"blur, sigma {BLUR} px": blur,
    f"noise, sigma {NOISE:g}": noise,
    f"JPEG {JPEG}": jpeg,
    f"low light, gain {GAIN}": dark,
    f"turned by {DEGREES:g} degrees": turned,
    "half size": half,
}

if __name__ == "__main__":
    sys.exit(main())
