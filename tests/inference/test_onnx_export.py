"""ONNX: the same maps and polygons as torch, for any batch and size, with what a stranger has to know in the file."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from ocrlab.data import image_io, transforms
from ocrlab.data.formats import reader
from ocrlab.data.synthetic import generate
from ocrlab.errors import ConfigError, OcrlabError
from ocrlab.evaluation import postprocess
from ocrlab.inference import Detector, onnx_export, page_inference, pretrained


@pytest.fixture(scope="module")
def exported(tiny, tmp_path_factory) -> Path:
    """The tiny detector as ONNX; its threshold is the middle of its own map, so that it finds a lot."""
    for name in onnx_export.NEEDED:
        pytest.importorskip(name, reason=f"{name} is not installed; ocrlab[onnx] brings it")
    path = tmp_path_factory.mktemp("onnx") / "tiny.onnx"
    assert onnx_export.to_onnx(Detector.load(tiny), path) <= onnx_export.TOLERANCE
    return path


def heat_of(session, canvas: np.ndarray) -> np.ndarray:
    return session.run(None, {"images": canvas.transpose(2, 0, 1)[None]})[0][0, 0]


def test_any_batch_and_size(exported, tiny):
    session, network = onnx_export.session(exported), Detector.load(tiny).model
    for shape in ((1, 3, 32, 32), (1, 3, 224, 32), (5, 3, 32, 64), (2, 3, 160, 96)):
        pixels = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
        with torch.inference_mode():
            expected = network.probability(torch.from_numpy(pixels)).numpy()
        (maps,) = session.run(None, {"images": pixels})
        assert (maps.shape, maps.dtype) == (expected.shape, np.float32)
        assert np.abs(maps - expected).max() < onnx_export.TOLERANCE


def test_a_stranger_gets_the_polygons_with_what_the_file_says(exported, tiny):
    """On a page that needs reducing and padding; only the file's metadata are used."""
    session = onnx_export.session(exported)
    about = json.loads(session.get_modelmeta().custom_metadata_map["ocrlab"])
    assert about["checkpoint_sha256"] == pretrained.sha256(tiny)
    assert (about["schema"], about["images"]) == (1, "(B, 3, H, W) uint8 RGB, as decoded")
    page = generate.page(3).image
    detector = Detector.load(tiny)
    detector.config.evaluate.long_side = about["canvas"]["long_side"] = 512
    scale = 512 / max(page.shape[:2])
    size = (page.shape[1], page.shape[0])
    new = [round(n * scale) for n in size]
    canvas = [-(-n // about["canvas"]["multiple"]) * about["canvas"]["multiple"] for n in new]
    warp = np.array(
        [[new[0] / size[0], 0, (new[0] / size[0] - 1) / 2], [0, new[1] / size[1], (new[1] / size[1] - 1) / 2]]
    )
    heat = heat_of(session, transforms.warp_image(page, warp, (canvas[0], canvas[1])))
    middle = float(np.median(heat))
    detector.config.post.threshold = about["post"]["threshold"] = middle
    detector.config.post.box_threshold = about["post"]["box_threshold"] = 0.0
    inverse = np.linalg.inv(np.vstack([warp, [0, 0, 1]]))[:2]
    regions = postprocess.decode(heat, shrink_ratio=about["shrink_ratio"], to_page=inverse, size=size, **about["post"])
    expected = detector.regions(page)
    assert len(regions) == len(expected) > 10


def test_nothing_of_this_machine_is_inside(exported):
    data = exported.read_bytes()
    for text in (os.sep.encode() + b"ocrlab", b".py", b"secret", str(Path.home()).encode() + b"/", b"stack_trace"):
        assert text not in data


def test_a_difference_is_an_error_and_no_file(exported, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_export, "onnx_bytes", lambda *_: exported.read_bytes())
    detector = Detector.load(tiny)
    detector.model.mean += 20
    with pytest.raises(OcrlabError, match="nothing was written"):
        onnx_export.to_onnx(detector, tmp_path / "wrong.onnx")
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_installed_is_named(tiny, tmp_path, monkeypatch):
    there = onnx_export.importlib.util.find_spec
    monkeypatch.setattr(
        onnx_export.importlib.util, "find_spec", lambda name: None if name == "onnxscript" else there(name)
    )
    with pytest.raises(ConfigError, match=r"no .*onnxscript.*ocrlab\[onnx\]"):
        onnx_export.to_onnx(Detector.load(tiny), tmp_path / "m.onnx")


@pytest.mark.slow
def test_the_shipped_detector_gives_the_same_polygons_on_receipts(shared, tmp_path):
    """All 63 pages: as many polygons on each, and one corner in a thousand may move by a pixel."""
    for name in onnx_export.NEEDED:
        pytest.importorskip(name, reason=f"{name} is not installed; ocrlab[onnx] brings it")
    detector = Detector.load("receipts")
    detector.bf16 = False
    onnx_export.to_onnx(detector, tmp_path / "receipts.onnx")
    session = onnx_export.session(tmp_path / "receipts.onnx", torch.get_num_threads())
    config, corners, far = detector.config, 0, 0
    for sample in reader.load(str(shared / "data" / "sroie"), "val").samples:
        image = image_io.read_image(sample.image)
        size = (image.shape[1], image.shape[0])
        warp, canvas = transforms.letterbox(size, config.evaluate)
        heat = heat_of(session, transforms.warp_image(image, warp, canvas))
        regions = page_inference.regions(heat, warp, size, config.post, config.targets.shrink_ratio)
        expected = detector.regions(image)
        assert len(regions) == len(expected), sample.name
        for polygon, other in zip(regions.polygons, expected.polygons, strict=True):
            far += int((np.abs(polygon - other).max(axis=1) >= 1).sum())
            corners += len(polygon)
    assert corners > 10_000 and far <= 0.001 * corners
