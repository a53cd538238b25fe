"""What the layers notebook computes, in its watched child: maps of a page, values over a training, planted faults.

All of it in one child, as most of a short one's time goes into importing torch; reading the records needs no torch.
Shapes: B batch, C channels, h w map pixels, H W canvas pixels, V values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ocrlab.config import schema as configs
from ocrlab.config.schema import Config
from ocrlab.errors import ConfigError
from ocrlab.notebook.dataloader_job import plain_rows, training_step

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ocrlab.debug.instruments.layers.module_selection import NamedModule
    from ocrlab.training.auto_settings import Machine

MOST = 20_000  # values of a tensor for its histogram: every n-th of them

Progress = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class PageMaps:
    """One page, and what one module gives on it: `maps` (C, h, w) uint8, each from its own lowest to highest value."""

    name: str
    origin: str  # of the weights
    module: str
    canvas: NDArray[np.uint8]  # (H, W, 3)
    maps: NDArray[np.uint8]
    figures: list[dict[str, Any]]  # of each channel: min, max, mean, std, zeros, count

    @property
    def strongest(self) -> list[int]:
        """The channels by their standard deviation, the largest first."""
        return sorted(range(len(self.figures)), key=lambda channel: -self.figures[channel]["std"])


@dataclass
class ShortTraining:
    """A short training: samples of a module's values (V,) by step, the table of all modules, and the plot of them."""

    module: str
    losses: list[float] = field(default_factory=list)
    outputs: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    gradients: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    table: list[dict[str, Any]] = field(default_factory=list)
    plot: tuple[Any, str] = (None, "")  # figure and alternative text
    note: str = ""


@dataclass(frozen=True)
class PlantedFault:
    """A planted fault, what was reported, and whether that is its place."""

    planted: str
    reported: str
    right: bool


@dataclass(frozen=True)
class LayersReport:
    """All that the notebook shows: maps of a page, a short training, and planted faults."""

    looked: PageMaps
    learned: ShortTraining
    faults: list[PlantedFault]


def inspect_layers(
    config: Config, module: str, page: int, checkpoint: str, every: int, progress: Progress
) -> LayersReport:
    """Return maps of a page, a short training, and planted faults; raises CheckpointError, ConfigError, DataError."""
    import cv2
    import torch

    torch.set_num_threads(1)  # it is little work, and where other programs use the cores a pool of threads only waits
    cv2.setNumThreads(1)
    maps = look(config, module, page, checkpoint)
    training = learn(config, module, every, progress)
    return LayersReport(maps, training, plant(config, checkpoint, progress))


def look(config: Config, module: str, page: int, checkpoint: str = "") -> PageMaps:
    """Return what a module of a trained detector gives on a validation page; raises CheckpointError, DataError, and
    ConfigError for an unknown page or module.
    """
    import torch

    from ocrlab.data import transforms
    from ocrlab.data.formats import reader
    from ocrlab.data.image_io import read_image
    from ocrlab.debug.instruments import tensor_facts
    from ocrlab.inference import Detector

    detector = Detector.load(checkpoint or "receipts")
    samples = reader.load(config.data, config.val_split, exif=config.exif).samples
    if not 0 <= page < len(samples):
        raise ConfigError(f"There is no page {page}", need=f"0 to {len(samples) - 1}, of {config.val_split}")
    sample = samples[page]
    warp, size = transforms.letterbox((sample.width, sample.height), detector.config.evaluate)
    canvas = transforms.warp_image(read_image(sample.image, exif=config.exif), warp, size)
    named = find_module(detector.model, module)
    outputs: list[Tensor] = []
    handle = named.module.register_forward_hook(lambda _m, _a, output: outputs.append(first_tensor(output).detach()))
    try:
        with torch.inference_mode():
            detector.model.eval()(torch.from_numpy(canvas)[None].permute(0, 3, 1, 2))
    finally:
        handle.remove()
    if not outputs or outputs[0].dim() != 4:
        need = "a module whose output has the shape (B, C, h, w)"
        raise ConfigError(f"The output of {named.name} is not a set of maps", need=need)
    maps = outputs[0][0].float()  # (C, h, w)
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    levels = ((maps - low) / (high - low).clamp_min(1e-12) * 255).round().to(torch.uint8).numpy()
    figures = [asdict(tensor_facts.figures_of(channel)) for channel in maps]
    return PageMaps(sample.name, detector.origin, named.name, canvas, levels, figures)


def find_module(model: nn.Module, module: str) -> NamedModule:
    """Return the one module that a name means; raises ConfigError where it means several."""
    from ocrlab.debug.instruments.layers.module_selection import select_modules

    matches = select_modules(model, module)
    if len(matches) > 1:
        got = f"{module}, which is {len(matches)} modules"
        raise ConfigError("One module can be inspected", got=got, need="one name")
    return matches[0]


def first_tensor(output: Any) -> Tensor:
    """Return the first tensor in a module's output."""
    from ocrlab.debug.instruments.tensor_tree import tensors

    return next(tensor for _, tensor in tensors(output))


def learn(config: Config, module: str, every: int, progress: Progress) -> ShortTraining:
    """Train from random weights for `trainer.max_steps` and return what its modules gave; raises DataError."""
    import torch

    from ocrlab.data.formats import reader
    from ocrlab.debug.instruments.layers import layer_watch
    from ocrlab.training import loop
    from ocrlab.training.optimizer import shorten_warmup

    torch.manual_seed(config.seed)
    config.runtime.workers = 0
    config.optim.warmup_steps = shorten_warmup(config.optim.warmup_steps, config.trainer.max_steps)
    detector, _, step = training_step(config, _machine())
    named = find_module(detector, module)
    learned, total = ShortTraining(named.name), config.trainer.max_steps
    index = reader.load(config.data, config.train_split, exif=config.exif)
    progress({"kind": "start", "step": 0, "total": total})
    with layer_watch.watch(detector, "*", every=every) as report:
        handle = named.module.register_forward_hook(_sampler(learned, every))
        try:
            for number, batch in enumerate(loop.loader(index, config, None), 1):
                learned.losses.append(float(step(batch)))
                done = {"step": number, "total": total, "loss": learned.losses[-1]}
                progress({"kind": "train", "unit": "step", **done})
        finally:
            handle.remove()
    learned.table, learned.note = plain_rows(report.table().reset_index()), report.note()
    plot = report.plot()
    learned.plot = (plot.figure, plot.alt)
    return learned


def _machine() -> Machine:
    """Return one core of the CPU."""
    from ocrlab.training.auto_settings import Machine

    return Machine("cpu", 1, 0, bf16=False, channels_last=True, reasons={})


def _sampler(learned: ShortTraining, every: int) -> Callable[..., None]:
    """Return a forward hook that copies some values of the output and of its gradient, in the steps to look at."""

    def copy(tensor: Tensor) -> NDArray[np.float32]:
        flat = tensor.detach().float().reshape(-1)
        return flat[:: max(1, flat.numel() // MOST)].numpy().copy()

    def sample(_module: nn.Module, _args: Any, output: Any) -> None:
        step = len(learned.losses)
        if step % every == 0:
            tensor = first_tensor(output)
            learned.outputs[step] = copy(tensor)
            tensor.register_hook(lambda gradient: learned.gradients.update({step: copy(gradient)}))

    return sample


def plant(config: Config, checkpoint: str, progress: Progress) -> list[PlantedFault]:
    """Plant two faults in a training step of a trained detector, where the seed says, and return what is reported."""
    import torch

    from ocrlab.data.formats import reader
    from ocrlab.debug.instruments.layers import layer_watch
    from ocrlab.inference import Detector
    from ocrlab.training import loop
    from ocrlab.training.lightning_module import Training

    torch.manual_seed(config.seed)
    trained = Detector.load(checkpoint or "receipts")
    network: dict[str, Any] = {name: getattr(trained.config, name) for name in ("encoder", "decoder", "width")}
    short = {"runtime.workers": 0, "trainer.max_steps": 1, "trainer.accumulate_grad_batches": 1}
    config = configs.apply(config, network | short)
    index = reader.load(config.data, config.train_split, exif=config.exif)
    [batch] = loop.loader(index, config, None)
    draw = np.random.default_rng(config.seed)
    faults: list[PlantedFault] = []
    for number, plant_fault in enumerate((_pixel, _weight), 1):
        training = Training(config, _machine())
        training.detector.load_state_dict(trained.model.state_dict())
        images = batch.images.float()
        planted, expected = plant_fault(training.detector, images, draw)
        with layer_watch.watch(training.detector, "*") as report:
            training.training_step(replace(batch, images=images), 0).backward()
        first = report.first_nonfinite
        right = first is not None and all(getattr(first, name) == value for name, value in expected.items())
        faults.append(PlantedFault(f"one {planted}", str(first or "nothing"), right))
        progress({"kind": "measure", "unit": "fault", "step": number, "total": 2})
    progress({"kind": "end", "unit": "fault", "step": 2, "total": 2})
    return faults


def _pixel(_model: nn.Module, images: Tensor, draw: np.random.Generator) -> tuple[str, dict[str, Any]]:
    """Plant a NaN in one pixel of one page; return what was planted, and the fields of the first bad value."""
    sample, y, x = (int(draw.integers(size)) for size in (images.shape[0], *images.shape[2:]))
    images[sample, 1, y, x] = math.nan
    return f"NaN pixel in sample {sample} of the batch", {"what": "input", "sample": sample, "index": (sample, 1, y, x)}


def _weight(model: nn.Module, _images: Tensor, draw: np.random.Generator) -> tuple[str, dict[str, Any]]:
    """Plant an Inf in the weight of one convolution."""
    names = [name for name, module in model.named_modules() if type(module).__name__ == "Conv2d"]
    name = names[int(draw.integers(len(names)))]
    weight: Any = model.get_submodule(name).weight
    weight.data[tuple(int(draw.integers(size)) for size in weight.shape)] = math.inf
    return f"Inf in the weight of {name}", {"module": name, "what": "weight", "path": "weight"}
