"""Faults planted into programs that train, by seed, as users make them: what flight.py scores the replay on.

The drawn page is one that triggers a bug of the program: blank where text is expected, odd in size, NaN in a pixel, 255
in its mask. Every fault comes again when the same program meets the same state and the same page.
"""

from __future__ import annotations

import ctypes
import json
import math
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from flight_truth import Truth
from torch import Tensor, nn

PROGRAMS = ("train", "lightning", "loop")
FAULTS = (  # what, phase, and the programs that can have it
    ("target", "forward", PROGRAMS),
    ("index", "forward", ("lightning", "loop")),
    ("nan_page", "forward", PROGRAMS),
    ("inf_weight", "forward", PROGRAMS),
    ("shape", "forward", PROGRAMS),
    ("shape", "backward", PROGRAMS),
    ("raise", "forward", PROGRAMS),
    ("raise", "backward", PROGRAMS),
    ("segfault", "forward", PROGRAMS),
    ("segfault", "backward", PROGRAMS),
    ("hang", "forward", PROGRAMS),
    ("hang", "backward", PROGRAMS),
    ("uninitialised", "forward", PROGRAMS),
    ("zero_area", "forward", PROGRAMS),
    ("zero_root", "backward", PROGRAMS),
    ("log_of_zero", "loss", PROGRAMS),
    ("zero_count", "loss", PROGRAMS),
)
BLANK = {"raise", "segfault", "hang", "uninitialised", "zero_area", "zero_root", "log_of_zero", "zero_count"}
NATIVE = {"raise", "segfault", "hang"}  # done by an op of the program's own
MODULES = {
    "train": (
        *(f"detector.encoder.layer{i}.{j}.conv{k}" for i in (1, 2, 3, 4) for j in (0, 1) for k in (1, 2)),
        *(f"detector.decoder.{part}.{i}" for part in ("laterals", "outputs") for i in range(4)),
        "detector.decoder.fusion.0",
        *(f"detector.head.{part}.{i}" for part in ("probability", "threshold") for i in (0, 3)),
    ),
    "foreign": ("stem.0", "stages.0.down.0", "stages.1.down.0", "stages.1.same.0", "merge.0.mix", "merge.1.mix"),
}
LEVELS = tuple(f"detector.decoder.{part}.{i}" for part in ("laterals", "outputs") for i in (0, 1, 2, 3))


@dataclass(frozen=True)
class Plan:
    """One program with one fault, or with none: everything it needs to run, and to fail in the same way again."""

    folder: str
    program: str
    fault: str | None = None
    phase: str = "forward"
    module: str | None = None
    page: int = -1  # which page triggers it
    step: int = -1  # at which forward pass, where no page does
    way: str = "function"  # an op of the program's own: autograd.Function, or a registered custom op
    seed: int = 0
    pages: int = 24
    batch: int = 4
    accumulate: int = 1
    workers: int = 0
    steps: int = 40
    names: bool = True  # a hand-written loop may have no names in its batches
    bf16: bool = False
    snapshot_every: int | None = None
    batches: str = "ids"
    pause: float = 0.0  # seconds in each item of the data set
    die: str | None = None  # segfault or exit, after `die_after` seconds of training
    die_after: float = 0.0

    def save(self) -> Path:
        """Write the plan into its folder and return the file."""
        path = Path(self.folder, "plan.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return path


def read(path: Path) -> Plan:
    """Read a plan that was saved."""
    names = {field.name for field in fields(Plan)}
    return Plan(**{k: v for k, v in json.loads(path.read_text(encoding="utf-8")).items() if k in names})


def draw(folder: Path, program: str, fault: str, phase: str, seed: int) -> Plan:
    """Draw module, page, step and the way it is done; the same seed draws the same."""
    dice = random.Random(f"{program} {fault} {phase} {seed}")
    modules = MODULES["train" if program == "train" else "foreign"]
    if (fault, program) == ("shape", "train") and phase == "forward":
        modules = LEVELS
    if fault in ("target", "nan_page", "log_of_zero", "zero_count"):
        modules = ("",)
    module = {"index": "source"}.get(fault) or dice.choice(modules)
    prefix = "net." if program == "lightning" and module else ""
    odd = fault == "shape" and phase == "forward" and program != "train"  # pages of any size are fed one by one
    return Plan(
        folder=str(folder),
        program=program,
        fault=fault,
        phase=phase,
        module=prefix + module,
        page=dice.randrange(24),
        step=dice.randrange(3, 12),
        way=dice.choice(("function", "library")),
        seed=dice.randrange(1000),
        batch=1 if odd else 4,
        accumulate=dice.choice((2, 4)) if odd else dice.choice((1, 1, 2)),
        workers=dice.choice((0, 2)),
        names=dice.random() < 0.7,
    )


class LineFilter(torch.autograd.Function):
    """A user's op implemented in C, as an autograd Function."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, blank: Tensor, plan: Plan, truth: Truth) -> Tensor:
        ctx.blank, ctx.plan, ctx.truth = blank, plan, truth
        if plan.phase == "forward" and blank.any():
            fail(plan, truth)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (gradient,) = grads
        if ctx.plan.phase == "backward" and ctx.blank.any():
            if ctx.plan.fault == "shape":
                return gradient[..., 1:], None, None, None
            fail(ctx.plan, ctx.truth)
        return gradient, None, None, None


_plan_of_library: list[tuple[Plan, Truth]] = []


@torch.library.custom_op("scan::line_filter", mutates_args=())
def line_filter(x: Tensor, blank: Tensor) -> Tensor:
    """The same as a registered op."""
    plan, truth = _plan_of_library[-1]
    if plan.phase == "forward" and blank.any():
        fail(plan, truth)
    return x.clone()


@torch.library.custom_op("scan::line_filter_grad", mutates_args=())
def line_filter_grad(gradient: Tensor, blank: Tensor) -> Tensor:
    """Its gradient."""
    plan, truth = _plan_of_library[-1]
    if plan.phase == "backward" and blank.any():
        fail(plan, truth)
    return gradient.clone()


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[1])


def _back(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return line_filter_grad(gradient, ctx.saved_tensors[0]), None


line_filter.register_autograd(_back, setup_context=_keep)


def fail(plan: Plan, truth: Truth) -> None:
    """Do what the C code of the op does when a page has no line."""
    truth.write("fault", module=plan.module, phase=plan.phase)
    if plan.fault == "raise":
        raise RuntimeError("line_filter: a run of length 0")
    if plan.fault == "segfault":
        libc = ctypes.CDLL(None)
        libc.strlen.argtypes = [ctypes.c_void_p]
        libc.strlen(None)
    while plan.fault == "hang":
        if plan.seed % 2:
            time.sleep(0.5)


class Planted:
    """Puts the fault of a plan into a model: `root` gets a batch of images, `module` is where it goes wrong."""

    def __init__(self, root: nn.Module, model: nn.Module, plan: Plan, truth: Truth) -> None:
        self.plan, self.truth, self.blank = plan, truth, torch.zeros(1, dtype=torch.bool)
        self.clock: Callable[[], int] = lambda: -1  # forward passes so far; goes on where a resumed program does
        _plan_of_library.append((plan, truth))
        inner = root.forward

        def forward(images: Tensor, *rest: Any, **named: Any) -> Any:
            self.blank = images.flatten(1).amax(1) == images.flatten(1).amin(1)  # (B,)
            return inner(images, *rest, **named)

        root.forward = forward  # type: ignore[method-assign]
        if plan.module and plan.fault not in ("index", None):
            module = model.get_submodule(plan.module)
            own = module.forward
            module.forward = lambda x: self.changed(module, own, x)  # type: ignore[assignment]

    def changed(self, module: Any, own: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """The forward of the drawn module, with the bug in it."""
        fault, phase = self.plan.fault, self.plan.phase
        if fault == "inf_weight":
            if module.training and self.clock() == self.plan.step:
                with torch.no_grad():
                    module.weight.view(-1)[self.plan.seed % module.weight.numel()] = math.inf
            return own(x)
        y = own(x)
        blank = self.blank[:, None, None, None]
        if fault in NATIVE or (fault, phase) == ("shape", "backward"):
            if self.plan.way == "library" and fault != "shape":
                return line_filter(y, self.blank)
            return LineFilter.apply(y, self.blank, self.plan, self.truth)
        if fault == "shape" and self.plan.program == "train":
            return y[..., : y.shape[-1] - int(self.blank.any())]
        if fault == "uninitialised":
            return gaps(y, self.blank) if self.blank.any() else y
        if fault == "zero_area":
            area = (~blank).to(y.dtype)
            return y / area * area
        if fault == "zero_root":
            ink = y * (~blank)
            return y + 0.01 * ink.square().mean((1, 2, 3), keepdim=True).sqrt()
        return y

    def loss(self, probability: Tensor, mask: Tensor) -> Tensor:
        """The user's own loss term, of probabilities and masks (B, 1, H, W)."""
        ink = (~self.blank).to(probability.dtype)[:, None, None, None]
        if self.plan.fault == "log_of_zero":
            return -0.01 * (mask * torch.log(probability * ink)).mean()
        if self.plan.fault == "zero_count":
            wrong = ((probability - mask) ** 2 * ink).sum((1, 2, 3))
            return 0.01 * (wrong / (ink * torch.ones_like(mask)).sum((1, 2, 3))).mean()
        return 0.01 * (probability - mask).square().mean()


def gaps(y: Tensor, blank: Tensor) -> Tensor:
    """Fill only the pages with text of a fresh tensor: the rest stays what it was, as with torch.empty."""
    out = torch.full_like(y, math.nan)
    out[~blank] = y[~blank]
    return out


OPS = {
    "target": ("nll_loss", "cross_entropy"),
    "index": ("embedding",),
    "nan_page": ("amax", "amin", "sub", "div", "mul", "conv"),  # the first two look for blank pages
    "inf_weight": ("conv", "fill", "copy", "select"),
    "uninitialised": ("full", "fill", "empty", "index_put"),
    "zero_area": ("div",),
    "zero_root": ("sqrt", "div"),
    "log_of_zero": ("log",),
    "zero_count": ("div",),
}


def expected(plan: Plan) -> dict[str, Any]:
    """Return what a right answer names: any of `modules`, any of `ops`, the `sample` (None: no single one), `phase`."""
    prefix = "net." if plan.program == "lightning" else ""
    modules, ops = [plan.module or ""], list(OPS.get(plan.fault or "", ()))
    if plan.fault in NATIVE or (plan.fault, plan.phase) == ("shape", "backward"):
        ops = ["linefilter"]
    elif plan.fault == "shape" and plan.program == "train":
        modules, ops = ["detector.decoder", plan.module or ""], ["cat", "add"]
    elif plan.fault == "shape":
        modules, ops = [f"{prefix}merge.{plan.seed % 2}"], ["cat"]
    elif plan.fault == "nan_page" and plan.program != "train":
        modules += [f"{prefix}stem.0", f"{prefix}stem", prefix.removesuffix(".")]
    elif plan.fault in ("nan_page", "target") and plan.program == "train":
        ops = []  # any op of the loss, or the batch itself
    sample = None if plan.fault == "inf_weight" else sample_name(plan, plan.page)
    return {"modules": modules, "ops": ops, "sample": sample, "phase": plan.phase}


def sample_name(plan: Plan, page: int) -> str:
    """Return what a page is called in the batches of a program: its file, or its number where there is no name."""
    if plan.program == "train":
        return f"receipt_{page:03d}"
    return f"scan-{page:04d}.png" if plan.names or plan.program == "lightning" else str(page)
