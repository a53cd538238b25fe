"""A detector as ONNX: one file that takes RGB pixels and gives the probability map, for any batch and size.

Input `images` (B, 3, H, W) uint8 RGB as decoded, H and W multiples of 32; the normalisation is inside the graph.
Output `probability` (B, 1, H, W) float32 in 0..1. The metadata `ocrlab` (JSON, schema 1) says how pages are put on a
canvas and how a map becomes polygons: what `data.transforms.letterbox` and `postprocess.decode` are given.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ocrlab._version import __version__
from ocrlab.data.transforms import GREY
from ocrlab.errors import ConfigError, OcrlabError
from ocrlab.inference.detector import Detector
from ocrlab.inference.prediction_files import create
from ocrlab.inference.pretrained import sha256
from ocrlab.model.dbnet import MULTIPLE
from ocrlab.model.dbnet import Detector as Network
from ocrlab.records import SCHEMA

if TYPE_CHECKING:
    import onnx
    import onnxruntime

OPSET = 18  # the first of the exporter; runtimes since 2023 know it
NEEDED = ("onnx", "onnxscript", "onnxruntime")
TOLERANCE = 1e-3  # of a probability, float32 in another order; 3e-5 was seen
CHECKED = ((1, 32, 32), (2, 64, 160), (1, 320, 96))  # batch, height, width


def to_onnx(detector: Detector, out: Path) -> float:
    """Write a detector to a new file `out` and return the largest difference to the map of torch, both in float32.

    Raises ConfigError where packages are missing or `out` exists, and OcrlabError where the two maps are not the same.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        do = "pip install 'ocrlab[onnx]'"
        raise ConfigError("Export needs packages that are not installed", got=f"no {', '.join(missing)}", do=do)
    if os.path.lexists(out):
        raise ConfigError("Nothing is overwritten", got=f"{out}, which exists", need="a new file")
    network = copy.deepcopy(detector.model).cpu().float().eval()
    data = onnx_bytes(network, metadata(detector))
    apart = difference(session(data), network)
    if not apart <= TOLERANCE:
        raise OcrlabError(
            "The exported network differs from torch; nothing was written",
            got=f"probabilities that differ by up to {apart:g}",
            need=f"at most {TOLERANCE:g}",
            do="Install other versions of torch and onnxscript, and report which ones these are",
        )
    create(out, lambda path: path.write_bytes(data))
    return apart


class Probability(nn.Module):
    """What is exported: `probability` of a detector as `forward`."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        return self.network.probability(images)


def onnx_bytes(network: Network, about: dict[str, Any]) -> bytes:
    """Return a network as the bytes of an ONNX file with `about` in its metadata."""
    import onnx

    dim = torch.export.Dim
    # The exporter on top of torch.export: the older one, which traces, is deprecated and bakes the sizes of its example
    # into what it cannot follow; this one proves that any batch and any multiples of 32 do. The example's batch and
    # sizes are above one and differ: torch takes a dimension of one for a constant.
    sizes = {0: dim("batch"), 2: MULTIPLE * dim("rows"), 3: MULTIPLE * dim("columns")}
    example = torch.zeros(2, 3, 3 * MULTIPLE, 4 * MULTIPLE, dtype=torch.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about its own insides
        program = torch.onnx.export(
            Probability(network).eval(),
            (example,),
            input_names=["images"],
            output_names=["probability"],
            opset_version=OPSET,
            dynamo=True,
            dynamic_shapes=(sizes,),
            verbose=False,
        )
    assert program is not None, "given with dynamo=True"
    model: onnx.ModelProto = program.model_proto
    graph = model.graph  # the exporter noted lines of source for its own developers, and where on this disk they are
    for part in (graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    model.metadata_props.add(key="ocrlab", value=json.dumps(about))
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString()


def metadata(detector: Detector) -> dict[str, Any]:
    """Return what somebody without ocrlab has to know in order to get the same polygons."""
    config = detector.config
    return {
        "schema": SCHEMA,
        "ocrlab": __version__,
        "network": f"{config.encoder} {config.decoder} {config.width}",
        "checkpoint_sha256": sha256(detector.checkpoint) if detector.checkpoint else None,
        "images": "(B, 3, H, W) uint8 RGB, as decoded",
        "canvas": config.evaluate.model_dump()
        | {"multiple": MULTIPLE, "padding": "right, below", "colour": list(GREY)},
        "exif": config.exif,
        "probability": "(B, 1, H, W) float32, of a pixel in shrunk text",
        "shrink_ratio": config.targets.shrink_ratio,
        "post": config.post.model_dump(),
    }


def session(model: bytes | Path, threads: int = 1) -> onnxruntime.InferenceSession:
    """Return a model ready to be run on the CPU by onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    source = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def difference(exported: onnxruntime.InferenceSession, network: Network) -> float:
    """Return the largest difference of any probability on random pages of several sizes; NaN counts as one."""
    rng = np.random.default_rng(0)
    largest = 0.0
    for batch, height, width in CHECKED:
        images: NDArray[np.uint8] = rng.integers(0, 256, (batch, 3, height, width), np.uint8)
        exported_map = exported.run(None, {"images": images})[0]
        with torch.inference_mode():
            expected = network.probability(torch.from_numpy(images)).numpy()
        same = exported_map.shape == expected.shape and exported_map.dtype == expected.dtype
        largest = max(largest, float(np.nan_to_num(np.abs(exported_map - expected), nan=1.0).max()) if same else 1.0)
    return largest
