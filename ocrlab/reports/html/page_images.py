"""Pages and maps as pictures: a small WebP or PNG with the polygons drawn over it as vectors, crisp at any size."""

from __future__ import annotations

import base64
import functools
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ocrlab.reports.view import BAD, GOOD, IGNORED, MISSED, View, heading

LONGEST = 640  # pixels on the long side; more only makes the notebook heavy
LEVELS = 64  # colours of a map
EXACT: dict[str, Any] = {"compress_level": 4}
SMALL: dict[str, Any] = {"quality": 80, "method": 4}  # as near to the page as a JPEG of quality 70, a third smaller
COLOURED = 4.0  # mean difference of the channels, grey levels; below it a page is stored grey, a quarter smaller

Polygons = Sequence[NDArray[np.floating]]


@dataclass(frozen=True)
class Layer:
    """Polygons (P, 2) in pixels of the image, all drawn in one way; `name` stands in the legend with their number."""

    name: str
    polygons: Polygons
    colour: str
    dash: str = ""  # as in SVG, in pixels of the screen
    fill: float = 0.0  # opacity

    def style(self, width: float) -> str:
        """Return the attributes of an SVG shape in the style of this layer; `width` in pixels of the screen."""
        dash = f' stroke-dasharray="{self.dash}"' if self.dash else ""
        fill = f'fill="{self.colour}" fill-opacity="{self.fill:g}"' if self.fill else 'fill="none"'
        return f'{fill} stroke="{self.colour}" stroke-width="{width:g}" vector-effect="non-scaling-stroke"{dash}'


def truth_layers(polygons: Polygons, ignored: NDArray[np.bool_]) -> list[Layer]:
    """Return the layers of a page's ground truth."""
    counting = [polygon for polygon, skip in zip(polygons, ignored, strict=True) if not skip]
    skipped = [polygon for polygon, skip in zip(polygons, ignored, strict=True) if skip]
    return [Layer("text", counting, GOOD, fill=0.12), Layer("ignored", skipped, IGNORED, dash="2 3", fill=0.2)]


def match_layers(
    polygons: Polygons,
    ignored: NDArray[np.bool_],
    detections: Polygons,
    pairs: Iterable[tuple[int, int]],
    counts: NDArray[np.bool_],
) -> list[Layer]:
    """Return ground truth and detections as right, wrong and missed; `pairs` are (ground truth, detection) positions.

    `counts` (M,) is False for detections on ignored text, which are neither right nor wrong.
    """
    met = list(pairs)
    hit_truth, hit_detections = {t for t, _ in met}, {d for _, d in met}
    missed = [p for i, p in enumerate(polygons) if i not in hit_truth and not ignored[i]]
    wrong = [p for i, p in enumerate(detections) if i not in hit_detections and counts[i]]
    return [
        Layer("ignored", [p for i, p in enumerate(polygons) if ignored[i]], IGNORED, dash="2 3", fill=0.15),
        Layer("missed", missed, MISSED, dash="6 3", fill=0.15),
        Layer("wrong", wrong, BAD, fill=0.12),
        Layer("found", [detections[d] for _, d in met], GOOD),
    ]


def picture(
    image: NDArray[np.generic], alt: str, layers: Sequence[Layer] = (), caption: str = "", width: int = 300
) -> str:
    """Return a figure of an image (H, W, 3) RGB uint8, or of a map (H, W) in 0..1, with layers of polygons over it.

    `width` is its width on the screen in pixels.
    """
    height, across = image.shape[:2]
    return figure(encoded(image), (across, height), alt, layers, caption, width)


def figure(
    uri: str, size: tuple[int, int], alt: str, layers: Sequence[Layer] = (), caption: str = "", width: int = 300
) -> str:
    """Return a figure of an encoded picture as `picture` does; the polygons are in pixels of `size` (width, height)."""
    paths = (f'<path d="{path_data(layer.polygons)}" {layer.style(1.5)}/>' for layer in layers if len(layer.polygons))
    body = f"<figcaption>{caption}</figcaption>" if caption else ""
    return (
        f'<figure style="width:{width}px"><svg class="sheet day" viewBox="0 0 {size[0]} {size[1]}" role="img" '
        f'aria-label="{escape(alt)}"><title>{escape(alt)}</title>'
        f'<image href="{uri}" width="{size[0]}" height="{size[1]}"/>{"".join(paths)}</svg>{body}</figure>'
    )


def legend(pages: Iterable[Sequence[Layer]]) -> list[Layer]:
    """Return one layer of each kind that is drawn on any of the pages, in the order of the first page."""
    every = [layer for layers in pages for layer in layers]
    names = {layer.name for layer in every if len(layer.polygons)}
    return list({layer.name: layer for layer in every if layer.name in names}.values())


def row(finding: str, pictures: Iterable[str], keys: Sequence[Layer] = (), note: str = "") -> View:
    """Return pictures side by side under a title that states the finding."""
    named = "".join(
        '<span style="margin-right:18px;white-space:nowrap">'
        '<span style="display:inline-block;width:22px;height:0;'
        f'border-top:2.5px {"dashed" if layer.dash else "solid"} {layer.colour};margin:0 6px 3px 0"></span>'
        f"{escape(layer.name)}</span>"
        for layer in keys
    )
    ends = f'<p class="note">{named}{escape(note)}</p>' if named or note else ""
    return View(f'{heading(finding)}<div class="row">{"".join(pictures)}</div>{ends}', finding)


def encoded(image: NDArray[np.generic], longest: int = LONGEST) -> str:
    """Return a data URI of a page (WebP) or of a map (PNG of 64 colours), at most `longest` pixels on the long side."""
    from PIL import Image as Pillow

    data, size = io.BytesIO(), (longest, longest)
    if image.ndim == 2:
        values = Pillow.fromarray(np.clip(np.nan_to_num(np.asarray(image, dtype=np.float32)), 0, 1))
        values.thumbnail(size, Pillow.Resampling.LANCZOS)
        levels = np.rint(np.clip(np.asarray(values), 0, 1) * (LEVELS - 1)).astype(np.uint8)
        picture, kind, options = Pillow.fromarray(levels).convert("P"), "png", EXACT
        picture.putpalette(viridis().tobytes())
    else:
        picture, kind, options = Pillow.fromarray(np.ascontiguousarray(image, dtype=np.uint8)), "webp", SMALL
        spread = np.ptp(image[::8, ::8].astype(np.int16), axis=2).mean()
        picture = picture.convert("L") if spread < COLOURED else picture
        picture.thumbnail(size, Pillow.Resampling.LANCZOS)
    picture.save(data, kind, **options)
    return f"data:image/{kind};base64,{base64.b64encode(data.getvalue()).decode('ascii')}"


@functools.cache
def viridis() -> NDArray[np.uint8]:
    """Return the colours (64, 3) of a map from 0 to 1: matplotlib's viridis, which also reads in grey."""
    from matplotlib import colormaps

    return np.asarray(colormaps["viridis"](np.linspace(0, 1, LEVELS), bytes=True)[:, :3], dtype=np.uint8)


def scale(low: float, high: float) -> str:
    """Return the legend of a tinted map: its colours from 0 to 1, labelled with the values that they stand for."""
    stops = ",".join("#" + bytes(colour).hex() for colour in viridis()[np.linspace(0, LEVELS - 1, 6).astype(int)])
    return (
        f'<span style="white-space:nowrap">{low:g} <span style="display:inline-block;width:70px;height:9px;'
        f'border-radius:2px;background:linear-gradient(90deg,{stops})"></span> {high:g}</span>'
    )


def target_pictures(
    name: str, crop: NDArray[np.generic], maps: Mapping[str, NDArray[np.floating]], low: float, high: float, width: int
) -> list[str]:
    """Return a training crop and the maps that are learned from it; the threshold map goes from `low` to `high`."""
    pictures = [picture(crop, f"crop of {name}", (), f"<b>Crop</b> of {escape(name)}", width)]
    for title, values in maps.items():
        begin, end = (low, high) if title == "Threshold map" else (0.0, 1.0)
        caption = f"<b>{title}</b> {scale(begin, end)}"
        pictures.append(picture((values - begin) / ((end - begin) or 1), title.lower(), (), caption, width))
    return pictures


def path_data(polygons: Iterable[NDArray[np.floating]]) -> str:
    """Return polygons as the data of an SVG path, in whole pixels."""
    points = (np.asarray(polygon).reshape(-1, 2) for polygon in polygons)
    return "".join("M" + "L".join(f"{x:.0f} {y:.0f}" for x, y in polygon) + "Z" for polygon in points)
