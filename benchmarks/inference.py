"""How long does a page take from pixels to regions, batch 1 on the CPU? Ours against other implementations of DBNet.

    python benchmarks/inference.py --peer official=../DB --peer mmocr=../mmocr   checkouts of both
    python benchmarks/inference.py --smoke                                      the same path in seconds, tiny

Ours is `train.pages`, the path of validation and prediction: the page is put on its canvas, the network makes the map,
post-processing makes regions. Weights are random numbers, which changes no time; so that post-processing has its usual
work, it gets a map with as many lines as a receipt has. Peers are their network alone, in float32, as they run it;
their normalisation and post-processing are not timed. All sides run in one process, in turn. mmocr's neck and head come
from its checkout; its backbone is torchvision's ResNet-18, the same layers as mmdet's, which is not needed then.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
import torchvision
from loss import PAUSE, Registry, stand_in
from numpy.typing import NDArray
from table import figure, judged, markdown, page, parser, publish
from torch import nn

from ocrlab.config.schema import Evaluate, Post
from ocrlab.data import target_maps, transforms
from ocrlab.hardware import host
from ocrlab.inference import page_inference
from ocrlab.model.dbnet import Detector
from ocrlab.model.encoder import ResNetEncoder
from ocrlab.model.inference_graph import fused

LIMIT = 55.0  # milliseconds with post-processing, where the CPU has bf16
OURS = (("resnet18", 128, True), ("resnet18", 128, False), ("resnet18_slim", 64, True), ("resnet18_slim", 64, False))
CHANNELS = [64, 128, 256, 512]
Run = Callable[[], tuple[float, float]]  # milliseconds of the network, and of all


def main() -> None:
    """Measure, print the tables, and end with 1 where the limit is not met."""
    args = arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    named = dict(word.partition("=")[::2] for word in args.peer)
    heat = perfect_map(args.size)
    image = np.random.default_rng(0).integers(0, 256, (args.size, args.size, 3), dtype=np.uint8)
    sides: dict[str, Run] = {}
    for encoder, width, bf16 in OURS:
        name = f"ours, {encoder}, width {width}, {'bf16' if bf16 else 'fp32'}"
        sides[name] = ours(Detector(encoder, "fpn", width).eval(), image, heat, bf16=bf16)
    sides["ours, resnet18, width 128, bf16, not fused"] = autocast(Detector().eval(), image)
    faults = {name: f"no --peer {name}=PATH given" for name in PEERS if name not in named}
    faults |= {name: f"this file knows {' and '.join(PEERS)}" for name in named if name not in PEERS}
    for name in PEERS.keys() & named.keys():
        try:
            sides[f"{name}, ResNet-18, fp32"] = peer(PEERS[name](Path(named[name])).eval(), args.size)
        except Exception as error:  # a peer may fail in any way; the table then says how
            faults[name] = f"{type(error).__name__}: {error}"
    with torch.inference_mode():
        times = measure(sides, args.rounds)
    met, lines = report(times, faults, args)
    lines += ["", "## Once for the weights, and once for a new size of page", "", *once_for(args)]
    publish("inference", page("From a page to its regions, on the CPU", "\n".join(lines)), args)
    sys.exit(1 if met is False else 0)


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    command = parser(__doc__)
    words = f"another implementation and its checkout; NAME is {' or '.join(PEERS)}"
    command.add_argument("--peer", action="append", default=[], metavar="NAME=PATH", help=words)
    command.add_argument("--rounds", type=int, default=11, help="measured rounds (default 11)")
    command.add_argument("--size", type=int, default=640, help="pixels, side of the page (default 640)")
    command.add_argument("--threads", type=int, default=2, help="of torch (default 2)")
    command.add_argument("--smoke", action="store_true", help="two rounds at 96 px, one thread: does it run at all")
    args = command.parse_args()
    if args.smoke:
        args.rounds, args.size, args.threads = 2, 96, 1
    return args


def perfect_map(size: int) -> NDArray[np.float32]:
    """Return the probability map (H, W) of two columns of text lines, soft at their edges as a network makes it."""
    boxes = []
    for top in range(4, size - 24, 24):
        for left in (0.03 * size, 0.53 * size):
            right = left + 0.42 * size
            boxes.append(np.array([[left, top], [right, top], [right, top + 18], [left, top + 18]], dtype=np.float32))
    flags = np.zeros(len(boxes), dtype=bool)
    maps = target_maps.make(boxes, flags, (size, size), shrink_ratio=0.4, threshold_range=(0.3, 0.7))
    return np.asarray(cv2.GaussianBlur(maps.shrink_map, (0, 0), 1.0), dtype=np.float32).clip(0, 1)


def ours(model: Detector, image: NDArray[np.uint8], heat: NDArray[np.float32], *, bf16: bool) -> Run:
    """Return what takes a page through `train.pages`."""
    post, evaluate, size = Post(), Evaluate(), (image.shape[1], image.shape[0])

    def run() -> tuple[float, float]:
        start = time.perf_counter()
        warp, canvas = transforms.letterbox(size, evaluate)
        pixels = transforms.warp_image(image, warp, canvas)
        before = time.perf_counter()
        page_inference.probability(model, pixels, bf16=bf16)
        after = time.perf_counter()
        regions = page_inference.regions(heat, warp, size, post, 0.4)
        end = time.perf_counter()
        assert len(regions), "post-processing had its work"
        return 1000 * (after - before), 1000 * (end - start)

    return run


def autocast(model: Detector, image: NDArray[np.uint8]) -> Run:
    """Return what runs the detector as it is trained, under autocast."""
    images = torch.from_numpy(image).permute(2, 0, 1)[None]  # (1, 3, H, W), channels last
    model = model.to(memory_format=torch.channels_last)

    def run() -> tuple[float, float]:
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16):
            model.probability(images)
        spent = 1000 * (time.perf_counter() - start)
        return spent, float("nan")

    return run


def peer(model: nn.Module, size: int) -> Run:
    """Return what runs a peer's network on a normalised image."""
    images = torch.randn(1, 3, size, size)

    def run() -> tuple[float, float]:
        start = time.perf_counter()
        model(images)
        return 1000 * (time.perf_counter() - start), float("nan")

    return run


def official(path: Path) -> nn.Module:
    """Return the network of a checkout of MhLiao/DB (Liao et al. 2020), with plain convolutions as in `step_sides`."""
    if not (path / "decoders" / "seg_detector.py").is_file():
        raise FileNotFoundError("what --peer official names is not a checkout of MhLiao/DB")
    for name in ("assets.ops.dcn", "scipy.ndimage"):  # imported by the checkout, not used by this network
        stand_in(name)
    sys.path.insert(0, str(path))
    encoder = importlib.import_module("backbones").resnet18(pretrained=False)
    decoder = importlib.import_module("decoders").SegDetector(CHANNELS, 256, k=50, bias=False, adaptive=True)
    return nn.Sequential(encoder, decoder)


def mmocr(path: Path) -> nn.Module:
    """Return DBNet with ResNet-18 of a checkout of open-mmlab/mmocr: its FPNC and DBHead after a ResNet-18."""
    room = "mmocr.models.textdet"
    if not path.joinpath(*room.split(".")).is_dir():
        raise FileNotFoundError("what --peer mmocr names is not a checkout of mmocr")
    for name in ("mmocr", "mmocr.models", room, f"{room}.necks", f"{room}.heads"):
        stand_in(name, __path__=[str(path.joinpath(*name.split(".")))])
    stand_in("mmocr.registry", MODELS=Registry())
    stand_in("mmocr.structures", TextDetDataSample=object)
    stand_in("mmocr.utils.typing_utils", DetSampleList=list)
    stand_in("mmengine.model", BaseModule=Module, ModuleList=nn.ModuleList, Sequential=nn.Sequential)
    stand_in("mmcv.cnn", ConvModule=convolution)
    sys.modules[f"{room}.heads"].BaseTextDetHead = Module  # type: ignore[attr-defined]
    neck = importlib.import_module(f"{room}.necks.fpn_cat").FPNC(CHANNELS, lateral_channels=256)
    head = importlib.import_module(f"{room}.heads.db_head").DBHead(in_channels=256)
    return nn.Sequential(ResNetEncoder(torchvision.models.resnet18()), neck, head)


class Module(nn.Module):
    """What mmengine's BaseModule and mmocr's BaseTextDetHead are to these layers: their settings do not matter here."""

    def __init__(self, **_settings: object) -> None:
        super().__init__()


def convolution(inputs: int, outputs: int, kernel: int, *, bias: bool, padding: int = 0, **rest: Any) -> nn.Module:
    """Return what mmcv's ConvModule is without norm and activation, which is all that FPNC asks for here."""
    assert rest["norm_cfg"] is None and rest["act_cfg"] is None, "the plain one"
    return nn.Conv2d(inputs, outputs, kernel, padding=padding, bias=bias)


PEERS: dict[str, Callable[[Path], nn.Module]] = {"official": official, "mmocr": mmocr}


def measure(sides: Mapping[str, Run], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return (network, all) in milliseconds of each side, one a round, after two rounds of warm-up."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    order = list(sides)
    for index in range(rounds + 2):
        turn = index % len(order)
        for name in (*order[turn:], *order[:turn]):
            time.sleep(PAUSE)
            spent = sides[name]()
            if index >= 2:
                times[name].append(spent)
    return times


def report(
    times: Mapping[str, list[tuple[float, float]]], faults: Mapping[str, str], args: argparse.Namespace
) -> tuple[bool | None, list[str]]:
    """Return whether the limit is met (None: not judged) and the lines with the table."""
    middle = {name: tuple(statistics.median(each) for each in zip(*rows, strict=True)) for name, rows in times.items()}
    ahead = {name: network for name, (network, _) in middle.items() if not name.startswith("ours")}
    rows = []
    for name, (network, whole) in middle.items():
        networks = [each for each, _ in times[name]]
        shown = "-" if np.isnan(whole) else f"{whole:.1f} ms"
        ratios = [f"{other / (network if np.isnan(whole) else whole):.1f}" for other in ahead.values()]
        theirs = None if name.startswith("ours") else name
        figure(f"network, one page of {args.size} px: {name}", network, "ms", peer=theirs)
        if theirs is None and not np.isnan(whole):
            limit = f"<= {LIMIT}" if name == next(iter(middle)) else None
            figure(f"with pre- and post-processing: {name}", whole, "ms", limit=limit)
        rows.append((name, f"{network:.1f} ms", f"{min(networks):.1f} .. {max(networks):.1f} ms", shown, *ratios))
    rows += [(name, f"not measured: {why}", "-", "-", *["-"] * len(ahead)) for name, why in sorted(faults.items())]
    header = ("side", "network", "fastest .. slowest", "with pre- and post-processing", *(f"times {n}" for n in ahead))
    intro = f"One page of {args.size} x {args.size}, {args.threads} threads, median of {args.rounds} rounds in turn. "
    intro += "The ratios compare our whole way with a peer's network alone."
    fits = args.size == 640 and args.threads == 2 and "avx512_bf16" in host.cpu_flags()
    met = next(whole for _, whole in middle.values()) <= LIMIT if fits else None
    judgement = f"ResNet-18 in bf16 with post-processing, at most {LIMIT:.0f} ms: {judged(met)}."
    return met, [intro, "", markdown(header, rows), "", judgement]


def once_for(args: argparse.Namespace) -> list[str]:
    """Return a table of what is paid once: fusing, and the first page of a size that was not seen before."""
    rows = []
    for encoder, width, bf16 in OURS:
        model = Detector(encoder, "fpn", width).eval()
        start = time.perf_counter()
        network = fused(model, bf16=bf16)
        making = 1000 * (time.perf_counter() - start)
        first: list[float] = []
        second: list[float] = []
        for step in range(5):  # odd sizes, as of no side above
            side = max(64, args.size // 32 * 32 - 32)
            images = torch.zeros(1, 3, side, max(64, side - 64 - 32 * step), dtype=torch.uint8)
            for spent in (first, second):
                with torch.inference_mode():
                    start = time.perf_counter()
                    network.probability(images)
                    spent.append(1000 * (time.perf_counter() - start))
        figures = (making, statistics.median(first), statistics.median(second))
        name = f"{encoder}, width {width}, {'bf16' if bf16 else 'fp32'}"
        rows.append((name, *(f"{value:.0f} ms" for value in figures)))
    return [markdown(("network", "fusing", "first page of a new size", "the second"), rows)]


if __name__ == "__main__":
    main()
