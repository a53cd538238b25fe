"""Other implementations of DBNet's target maps and post-processing, each built from a checkout outside this tree.

`official` is MhLiao/DB, the code of the paper; `mmocr`, `PaddleOCR` and `docTR` are what is used most. Only the files
that do the work are loaded, by name, with stand-ins for the frameworks around them, so that nothing need be installed.
For docTR, PATH is the folder that holds `doctr` (site-packages of any environment, or the checkout).
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

RATIO, RANGE, SMALLEST = 0.4, (0.3, 0.7), 3.0  # shrink ratio and threshold range as published
THRESHOLD, BOX_THRESHOLD = 0.3, 0.5

Map = NDArray[np.float32]
Maps = tuple[NDArray[Any], ...]  # shrink map, shrink mask, threshold map, threshold mask
Decoder = Callable[[Map], Sequence[Any]]


@dataclass
class Boxes:
    """The boxes of one page in a square: polygons (P, 2), which are ignored, and the size (h, w) in pixels."""

    polygons: list[NDArray[np.float64]]
    ignored: NDArray[np.bool_]
    size: tuple[int, int]


Draw = Callable[[Boxes], Maps]


class Anything:
    """What stands for all of a framework: any attribute of it is itself, and as a decorator it changes nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **_: Any) -> Any:
        return args[0] if len(args) == 1 and isinstance(args[0], type) else self


def package(name: str, folder: Path | None = None, **members: Any) -> types.ModuleType:
    """Register a module whose own code does not run: files of `folder` can be imported from it, the rest is nothing."""
    module = sys.modules[name] = types.ModuleType(name)
    nothing = Anything()
    module.__getattr__ = lambda key: getattr(nothing, key)  # type: ignore[method-assign]
    module.__path__ = [str(folder)] if folder else []
    module.__dict__.update(members)
    return module


def needed(file: Path, what: str) -> None:
    """Raise FileNotFoundError where a checkout lacks the file that would be loaded."""
    if not file.is_file():
        raise FileNotFoundError(f"what --peer names is not a checkout of {what}: it has no {file.name}")


def official_targets(path: Path) -> Draw:
    """Return the target maps of MhLiao/DB (Liao et al. 2020)."""
    folder = path / "data" / "processes"
    needed(folder / "make_border_map.py", "MhLiao/DB")
    configurable = type("Configurable", (), {"load_all": lambda self, **_: None})
    package("concern")
    package("concern.config", State=lambda default=None, **_: default, Configurable=configurable)
    package("data", folder.parent)
    package("data.processes", folder)
    shrink = importlib.import_module("data.processes.make_seg_detection_data").MakeSegDetectionData()
    border = importlib.import_module("data.processes.make_border_map").MakeBorderMap()
    shrink.min_text_size, shrink.shrink_ratio, border.shrink_ratio = SMALLEST, RATIO, RATIO
    border.thresh_min, border.thresh_max = RANGE

    def draw(boxes: Boxes) -> Maps:
        image = np.empty((*boxes.size, 3), np.uint8)  # only its shape is read
        page: dict[str, Any] = {"image": image, "polygons": boxes.polygons, "ignore_tags": boxes.ignored.copy()}
        page |= {"filename": "", "is_training": False}
        with np.errstate(all="ignore"):
            shrink.process(page)
            border.process(page)
        return page["gt"][0], page["mask"], page["thresh_map"], page["thresh_mask"]

    return draw


def paddle_targets(path: Path) -> Draw:
    """Return the target maps of PaddleOCR."""
    folder = path / "ppocr" / "data" / "imaug"
    needed(folder / "make_border_map.py", "PaddleOCR")
    package("ppocr_imaug", folder)
    shrink = importlib.import_module("ppocr_imaug.make_shrink_map").MakeShrinkMap(SMALLEST, RATIO)
    border = importlib.import_module("ppocr_imaug.make_border_map").MakeBorderMap(RATIO, *RANGE)

    def draw(boxes: Boxes) -> Maps:
        page: dict[str, Any] = {"image": np.empty((*boxes.size, 3), np.uint8), "ignore_tags": boxes.ignored.copy()}
        page["polys"] = [polygon.copy() for polygon in boxes.polygons]  # it writes into them
        shrink(page)
        border(page)
        return page["shrink_map"], page["shrink_mask"], page["threshold_map"], page["threshold_mask"]

    return draw


def mmocr_packages(path: Path) -> None:
    """Make the files of mmocr that do the work importable."""
    package("mmengine")
    for name in ("mmengine.structures", "mmengine.utils", "mmengine.logging", "mmdet", "mmdet.models"):
        package(name, InstanceData=types.SimpleNamespace)
    package("mmdet.models.utils")
    package("mmocr")
    for name in ("mmocr.registry", "mmocr.structures"):
        package(name)
    utils = package("mmocr.utils", path / "mmocr" / "utils")
    for name in ("typing_utils", "check_argument"):
        package(f"mmocr.utils.{name}")
    for name in ("models", "models/textdet", "models/textdet/module_losses", "models/textdet/postprocessors"):
        package(f"mmocr.{name.replace('/', '.')}", path / "mmocr" / name)
    utils.__dict__["offset_polygon"] = importlib.import_module("mmocr.utils.polygon_utils").offset_polygon


class Instances:
    """The polygons of one page as mmocr keeps them: what is indexed by flags is a part of them."""

    def __init__(self, polygons: list[NDArray[np.float64]], ignored: NDArray[np.bool_]) -> None:
        self.polygons, self.ignored = polygons, ignored

    def __getitem__(self, flags: NDArray[np.bool_]) -> Instances:
        return Instances([p for p, flag in zip(self.polygons, flags, strict=True) if flag], self.ignored[flags])


def mmocr_targets(path: Path) -> Draw:
    """Return the target maps of mmocr; it shrinks by a whole number of pixels."""
    needed(path / "mmocr" / "models" / "textdet" / "module_losses" / "db_module_loss.py", "mmocr")
    mmocr_packages(path)
    kind = importlib.import_module("mmocr.models.textdet.module_losses.db_module_loss").DBModuleLoss
    maker = kind.__new__(kind)
    torch.nn.Module.__init__(maker)
    maker.shrink_ratio, maker.min_sidelength = RATIO, SMALLEST
    maker.thr_min, maker.thr_max = RANGE

    def draw(boxes: Boxes) -> Maps:
        instances = Instances([p.reshape(-1).astype(np.float32) for p in boxes.polygons], boxes.ignored.copy())
        page = types.SimpleNamespace(gt_instances=instances, img_shape=boxes.size)
        return tuple(target[0].numpy() for target in maker._get_target_single(page))

    return draw


def doctr_module(path: Path) -> types.ModuleType:
    """Return docTR's module of both."""
    folder = path / "doctr"
    needed(folder / "models" / "detection" / "differentiable_binarization" / "base.py", "docTR")
    for name in ("", "/models", "/models/detection", "/models/detection/differentiable_binarization", "/utils"):
        package(f"doctr{name.replace('/', '.')}", folder / name.lstrip("/"))
    sys.modules["doctr.utils"].__dict__["order_points"] = importlib.import_module("doctr.utils.geometry").order_points
    return importlib.import_module("doctr.models.detection.differentiable_binarization.base")


def doctr_targets(path: Path) -> Draw:
    """Return the target maps of docTR, which knows no boxes that do not count."""
    maker = doctr_module(path)._DBNet()

    def draw(boxes: Boxes) -> Maps:
        scale = np.array(boxes.size[::-1], np.float32)
        quads = np.array([p for p in boxes.polygons if len(p) == 4], np.float32).reshape(-1, 4, 2)
        target = [{"words": np.clip(quads / scale, 0, 1)}]
        return tuple(plane[0, 0] for plane in maker.build_target(target, (1, *boxes.size)))

    return draw


TARGETS: dict[str, Callable[[Path], Draw]] = {
    "mmocr": mmocr_targets,
    "official": official_targets,
    "docTR": doctr_targets,
    "PaddleOCR": paddle_targets,
}


def official_decoder(path: Path, shape: str, ratio: float) -> Decoder:
    """Return the post-processing of MhLiao/DB."""
    folder = path / "structure" / "representers"
    needed(folder / "seg_detector_representer.py", "MhLiao/DB")
    package("concern")
    package("concern.config", Configurable=object, State=lambda default=None: default)
    package("official_representers", folder)
    setattr(np, "int", int)  # noqa: B010  # the code is older than NumPy 1.24
    kind = importlib.import_module("official_representers.seg_detector_representer").SegDetectorRepresenter
    decoder = kind.__new__(kind)
    decoder.thresh, decoder.box_thresh, decoder.max_candidates, decoder.min_size = THRESHOLD, BOX_THRESHOLD, 1000, 3
    assert ratio == {"quad": 1.5, "polygon": 2.0}[shape], "the published code knows no other"
    method = decoder.boxes_from_bitmap if shape == "quad" else decoder.polygons_from_bitmap

    def run(heat: Map) -> Sequence[Any]:
        tensor = torch.from_numpy(heat)[None]  # (1, h, w)
        boxes, sure = method(tensor, decoder.binarize(tensor), heat.shape[1], heat.shape[0])
        return [polygon for polygon, score in zip(boxes, sure, strict=True) if score > 0]

    return run


def paddle_decoder(path: Path, shape: str, ratio: float) -> Decoder:
    """Return the post-processing of PaddleOCR."""
    needed(path / "ppocr" / "postprocess" / "db_postprocess.py", "PaddleOCR")
    package("paddle", Tensor=type("Tensor", (), {}))
    package("ppocr_postprocess", path / "ppocr" / "postprocess")
    kind = importlib.import_module("ppocr_postprocess.db_postprocess").DBPostProcess
    box_type = "quad" if shape == "quad" else "poly"
    decoder = kind(thresh=THRESHOLD, box_thresh=BOX_THRESHOLD, unclip_ratio=ratio, box_type=box_type)

    def run(heat: Map) -> Sequence[Any]:
        boxes: Sequence[Any] = decoder({"maps": heat[None, None]}, [(*heat.shape, 1.0, 1.0)])[0]["points"]
        return boxes

    return run


def mmocr_decoder(path: Path, shape: str, ratio: float) -> Decoder:
    """Return the post-processing of mmocr; its polygons have fewer points, its quads are made of them."""
    needed(path / "mmocr" / "models" / "textdet" / "postprocessors" / "db_postprocessor.py", "mmocr")
    mmocr_packages(path)
    kind = importlib.import_module("mmocr.models.textdet.postprocessors.db_postprocessor").DBPostprocessor
    representation = "quad" if shape == "quad" else "poly"
    decoder = kind(representation, mask_thr=THRESHOLD, min_text_score=BOX_THRESHOLD, unclip_ratio=ratio)

    def run(heat: Map) -> Sequence[Any]:
        page = decoder.get_text_instances(torch.from_numpy(heat), types.SimpleNamespace())
        return [np.reshape(polygon, (-1, 2)) for polygon in page.pred_instances.polygons]

    return run


def doctr_decoder(path: Path, shape: str, ratio: float) -> Decoder:
    """Return the post-processing of docTR for rotated boxes; it has none for polygons."""
    if shape != "quad":
        raise LookupError("it makes no polygons")
    decoder = doctr_module(path).DBPostProcessor(BOX_THRESHOLD, THRESHOLD, assume_straight_pages=False)
    decoder.unclip_ratio = ratio

    def run(heat: Map) -> Sequence[Any]:
        boxes: Sequence[Any] = decoder._process_sample(heat[..., None])[0]
        return [box[:4] * heat.shape[::-1] for box in boxes]

    return run


DECODERS: dict[str, Callable[[Path, str, float], Decoder]] = {
    "docTR": doctr_decoder,
    "official": official_decoder,
    "mmocr": mmocr_decoder,
    "PaddleOCR": paddle_decoder,
}
