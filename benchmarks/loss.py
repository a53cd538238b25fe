"""How long does the DB loss take on the CPU, forward and backward? Ours against other implementations.

    python benchmarks/loss.py --peer official=../DB --peer mmocr=../mmocr   checkouts of both
    python benchmarks/loss.py --smoke                                       the same path in seconds, tiny maps

Every side starts from the two logit maps of a head and the four target maps of a batch, and ends with the gradients by
the logits; sigmoids and the approximate binary map are part of it. They run in one process, in turn, the order changes
every round. mmocr's loss modules are imported from its checkout as they are; small stand-ins take the place of mmengine
and mmdet, which they use for registering and logging only, and its targets are given, not drawn.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
import time
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from table import figure, judged, markdown, page, parser, publish
from torch import Tensor, nn

from ocrlab.data import target_maps
from ocrlab.losses import db_loss
from ocrlab.losses.db_loss import TargetMaps
from ocrlab.model.dbnet import Detector

LIMIT, RATIO = 45.0, 1.9  # milliseconds at 2 threads, and at least so many times mmocr
WEIGHTS = (5.0, 1.0, 10.0)  # of BCE, dice and L1, as published
LINE = 28  # pixels from one line of text to the next
PAUSE = 0.02  # seconds; torch's pool spins for a moment after its last loop
Side = Callable[[Tensor, Tensor, TargetMaps], Tensor]  # logits and targets -> total


def main() -> None:
    """Measure, print the tables, and end with 1 where a limit is not met."""
    args = arguments()
    named = dict(word.partition("=")[::2] for word in args.peer)
    logits, maps = batch(args.size)
    sides, faults = build(named)  # after numba was imported: it looks at scipy, for which there may be a stand-in then
    times = {count: measure(sides, logits, maps, count, args.rounds) for count in (args.threads, 1)}
    met, lines = report(times, faults, distances(sides, logits, maps), args)
    torch.set_num_threads(args.threads)
    rows = [step_share(name, width, args) for name, width in (("resnet18_slim", 64), ("resnet18", 128))]
    header = ("network, 4 x 3 x 512 x 512, bf16", "whole step", "loss", "share", "the same with the device path")
    note = "A step is forward, loss, backward, clipping and AdamW; the loss computes its gradient on the way forward."
    body = "\n".join([*lines, "", "## Share of a training step", "", markdown(header, rows), "", note])
    publish("loss", page("DB loss on the CPU", body), args)
    sys.exit(1 if met is False else 0)


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    options = parser(__doc__)
    peer = f"another implementation and its checkout; NAME is {' or '.join(PEERS)}"
    options.add_argument("--peer", action="append", default=[], metavar="NAME=PATH", help=peer)
    options.add_argument("--rounds", type=int, default=15, help="measured rounds (default 15)")
    options.add_argument("--size", type=int, default=640, help="pixels, side of the maps (default 640)")
    options.add_argument("--threads", type=int, default=2, help="of torch; 1 is measured as well (default 2)")
    options.add_argument("--smoke", action="store_true", help="two rounds at 64 px, one thread: does it run at all")
    args = options.parse_args()
    args.crop = 512
    if args.smoke:
        args.rounds, args.size, args.threads, args.crop = 2, 64, 1, 64
    return args


def build(named: Mapping[str, str]) -> tuple[dict[str, Side], dict[str, str]]:
    """Return the sides that can be measured, and why others cannot."""
    sides: dict[str, Side] = {"ours": ours, "ours, without numba": plain}
    faults = {name: f"no --peer {name}=PATH given" for name in PEERS if name not in named}
    faults |= {name: f"this file knows {' and '.join(PEERS)}" for name in named if name not in PEERS}
    for name in PEERS.keys() & named.keys():
        try:
            sides[name] = PEERS[name](Path(named[name]))
        except Exception as error:  # a peer may fail in any way; the table then says how
            faults[name] = f"{type(error).__name__}: {error}"
    return sides, faults


def batch(size: int) -> tuple[tuple[Tensor, Tensor], TargetMaps]:
    """Return logits (4, 1, H, W) of a network that has learned something, and the targets of lines as on receipts."""
    rng = np.random.default_rng(0)
    batches = []
    for _ in range(4):
        lines = []
        for top in range(4, size - LINE, LINE):
            left, right = size * rng.uniform(0.02, 0.4), size * rng.uniform(0.5, 0.98)
            lines.append(np.array([[left, top], [right, top], [right, top + 20], [left, top + 20]], dtype=np.float32))
        flags = rng.random(len(lines)) < 0.05
        batches.append(target_maps.make(lines, flags, (size, size), shrink_ratio=0.4, threshold_range=(0.3, 0.7)).maps)
    maps = TargetMaps(*(torch.from_numpy(np.stack(each))[:, None] for each in zip(*batches, strict=True)))
    noise = [torch.from_numpy(rng.normal(0, 2, maps.shrink_map.shape).astype(np.float32)) for _ in range(2)]
    return (noise[0] + 6 * maps.shrink_map - 4, noise[1] / 2 + 4 * maps.threshold_map - 2), maps


def ours(x: Tensor, y: Tensor, maps: TargetMaps) -> Tensor:
    """Return the total of `db_loss`."""
    return db_loss.db_loss(x, y, maps, weights=WEIGHTS).total


def plain(x: Tensor, y: Tensor, maps: TargetMaps) -> Tensor:
    """Return the total of the path that needs no numba, which is that of other devices."""
    return db_loss.on_device(x, y, maps, WEIGHTS, 3.0).total


def official(path: Path) -> Side:
    """Return the loss of a checkout of MhLiao/DB (Liao et al. 2020), with the sigmoids that its head ends in."""
    stand_in("scipy.ndimage")  # imported by the checkout, not used by this loss
    sys.path.insert(0, str(path))
    criterion = importlib.import_module("decoders.seg_detector_loss").L1BalanceCELoss()

    def total(x: Tensor, y: Tensor, maps: TargetMaps) -> Tensor:
        p, t = x.sigmoid(), y.sigmoid()
        outputs = {"binary": p, "thresh": t, "thresh_binary": torch.reciprocal(1 + torch.exp(-50 * (p - t)))}
        truth = {"gt": maps.shrink_map, "mask": maps.shrink_mask[:, 0]}
        truth |= {"thresh_map": maps.threshold_map[:, 0], "thresh_mask": maps.threshold_mask[:, 0]}
        loss: Tensor = criterion(outputs, truth)[0]
        return loss

    return total


def mmocr(path: Path) -> Side:
    """Return DBModuleLoss of a checkout of open-mmlab/mmocr, with the sigmoids that its DBHead ends in."""
    if not (path / "mmocr" / "models" / "textdet").is_dir():
        raise FileNotFoundError("what --peer mmocr names is not a checkout of mmocr")
    room = "mmocr.models.textdet"
    for name in ("mmocr", "mmocr.models", "mmocr.models.common", room, f"{room}.module_losses"):
        stand_in(name, __path__=[str(path.joinpath(*name.split(".")))])
    registry = Registry()
    stand_in("mmocr.registry", MODELS=registry)
    stand_in("mmocr.structures", TextDetDataSample=object)
    stand_in("mmocr.utils", offset_polygon=None)
    stand_in("mmocr.utils.polygon_utils", offset_polygon=None)
    stand_in("mmocr.utils.typing_utils", ArrayLike=object, DetSampleList=list)
    stand_in("mmdet.models.utils", multi_apply=None)
    stand_in("mmengine.logging", MMLogger=object)
    sys.modules["mmocr"].digit_version = version  # type: ignore[attr-defined]
    importlib.import_module("mmocr.models.common.losses")
    criterion = importlib.import_module(f"{room}.module_losses.db_module_loss").DBModuleLoss()
    criterion.get_targets = lambda maps: tuple(m[:, 0] for m in maps)

    def total(x: Tensor, y: Tensor, maps: TargetMaps) -> Tensor:
        p, t = x[:, 0].sigmoid(), y[:, 0].sigmoid()
        binary = torch.reciprocal(1 + torch.exp(-50 * (p - t)))
        parts: dict[str, Tensor] = criterion((x[:, 0], t, binary), maps)
        return parts["loss_prob"] + parts["loss_thr"] + parts["loss_db"]

    return total


class Registry:
    """What mmengine's registry does for these modules: a name finds a class."""

    def __init__(self) -> None:
        self.classes: dict[str, type[nn.Module]] = {}

    def register_module(self) -> Callable[[type[nn.Module]], type[nn.Module]]:
        """Return a decorator that remembers a class by its name."""
        return lambda kind: self.classes.setdefault(kind.__name__, kind)

    def build(self, settings: Mapping[str, Any]) -> nn.Module:
        """Return a module as its settings say."""
        rest = dict(settings)
        return self.classes[rest.pop("type")](**rest)


def version(text: str) -> tuple[int, ...]:
    """Return the numbers of a version that can be compared."""
    return tuple(int(word) for word in text.split("+")[0].split(".")[:3] if word.isdigit())


def stand_in(name: str, **contents: object) -> None:
    """Put a module with these contents where `name` would be imported from, and empty ones for its parents."""
    parent, _, leaf = name.rpartition(".")
    if parent and parent not in sys.modules:
        stand_in(parent)
    module = types.ModuleType(name)
    module.__dict__.update(contents)
    sys.modules[name] = module
    if parent:
        setattr(sys.modules[parent], leaf, module)


PEERS: dict[str, Callable[[Path], Side]] = {"official": official, "mmocr": mmocr}


def once(side: Side, logits: tuple[Tensor, Tensor], maps: TargetMaps) -> tuple[float, Tensor, list[Tensor]]:
    """Return the milliseconds of one forward and backward, the total, and the gradients by both logits."""
    x, y = (t.detach().clone().requires_grad_() for t in logits)
    start = time.perf_counter()
    total = side(x, y, maps)
    total.backward()
    spent = 1000 * (time.perf_counter() - start)
    assert x.grad is not None and y.grad is not None, "both were asked for"
    return spent, total.detach(), [x.grad, y.grad]


def measure(
    sides: Mapping[str, Side], logits: tuple[Tensor, Tensor], maps: TargetMaps, threads: int, rounds: int
) -> dict[str, list[float]]:
    """Return the milliseconds of each side, one a round, after two rounds of warm-up."""
    torch.set_num_threads(threads)
    times: dict[str, list[float]] = {name: [] for name in sides}
    order = list(sides)
    for index in range(rounds + 2):
        turn = index % len(order)
        for name in (*order[turn:], *order[:turn]):
            time.sleep(PAUSE)
            spent, _, _ = once(sides[name], logits, maps)
            if index >= 2:
                times[name].append(spent)
    return times


def distances(
    sides: Mapping[str, Side], logits: tuple[Tensor, Tensor], maps: TargetMaps
) -> dict[str, tuple[float, float]]:
    """Return how far each side is from the formulas in float64: the total, and the gradients, both relative."""
    wide = TargetMaps(*(m.double() for m in maps))
    _, want, exact = once(plain, (logits[0].double(), logits[1].double()), wide)
    largest = {}
    for name, side in sides.items():
        _, total, gradients = once(side, logits, maps)
        apart = max(float((g - e).norm() / e.norm()) for g, e in zip(gradients, exact, strict=True))
        largest[name] = (float(abs(total - want) / want), apart)
    return largest


def report(
    times: Mapping[int, Mapping[str, list[float]]],
    faults: Mapping[str, str],
    apart: Mapping[str, tuple[float, float]],
    args: argparse.Namespace,
) -> tuple[bool | None, list[str]]:
    """Return whether the limits are met (None: not judged) and the lines with the table."""
    many, single = times[args.threads], times[1]
    middle = {name: statistics.median(each) for name, each in many.items()}
    rows = []
    for name in middle:
        low, high = min(many[name]), max(many[name])
        speed = f"{middle['mmocr'] / middle[name]:.1f}" if "mmocr" in middle else "-"
        figures = (f"{middle[name]:.1f} ms", f"{low:.1f} .. {high:.1f} ms", f"{statistics.median(single[name]):.1f} ms")
        theirs, limit = name if name in PEERS else None, f"<= {LIMIT}" if name == "ours" else None
        figure(
            f"DB loss, 4 x {args.size} px, {args.threads} thread(s): {name}",
            middle[name],
            "ms",
            limit=limit,
            peer=theirs,
        )
        figure(f"gradient, relative distance from float64: {name}", apart[name][1], "share", peer=theirs)
        rows.append((name, *figures, speed, *(f"{value:.0e}" for value in apart[name])))
    rows += [(name, f"not measured: {why}", *["-"] * 5) for name, why in sorted(faults.items())]
    header = ("side", f"{args.threads} thread(s)", "fastest .. slowest", "1 thread", "times mmocr", "total", "gradient")
    note = f"Maps 4 x 1 x {args.size} x {args.size}, float32, median of {args.rounds} rounds in turn. "
    note += "The last two columns are relative distances from the formulas in float64."
    fits = args.size == 640 and args.threads == 2
    quick = middle["ours"] <= LIMIT if fits else None
    ahead = middle["mmocr"] / middle["ours"] >= RATIO if fits and "mmocr" in middle else None
    if "mmocr" in middle:
        figure("times mmocr", middle["mmocr"] / middle["ours"], "times", limit=f">= {RATIO}", peer="mmocr")
    judgement = f"At most {LIMIT:.0f} ms: {judged(quick)}. At least {RATIO} times mmocr: {judged(ahead)}."
    verdicts = [verdict for verdict in (quick, ahead) if verdict is not None]
    return (all(verdicts) if verdicts else None), [note, "", markdown(header, rows), "", judgement]


def step_share(encoder: str, width: int, args: argparse.Namespace) -> tuple[str, ...]:
    """Return a row: the time of a whole training step in bf16, that of the loss in it, and with the device path."""
    torch.manual_seed(0)
    model = Detector(encoder, "fpn", width).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    images = torch.randint(0, 256, (4, args.crop, args.crop, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    _, maps = batch(args.crop)
    spent: dict[Side, list[tuple[float, float]]] = {ours: [], plain: []}
    for _ in range(max(2, args.rounds // 2)):
        for side, rows in spent.items():
            start = time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16):
                outputs = model(images)
            before = time.perf_counter()
            total = side(outputs.probability_logits, outputs.threshold_logits, maps)
            after = time.perf_counter()
            total.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            optimizer.zero_grad()
            rows.append((time.perf_counter() - start, after - before))
    step, loss = (1000 * statistics.median(column) for column in zip(*spent[ours][1:], strict=True))
    other = 1000 * statistics.median(whole for whole, _ in spent[plain][1:])
    return f"{encoder}, width {width}", f"{step:.0f} ms", f"{loss:.1f} ms", f"{loss / step:.1%}", f"{other:.0f} ms"


if __name__ == "__main__":
    main()
