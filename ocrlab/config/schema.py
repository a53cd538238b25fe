"""One typed, validated config for a run: defaults < hardware preset < YAML file < dotted overrides.

Read top to bottom, this file is the list of everything that can be set; `ocrlab train --keys` prints the same list.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from ocrlab.config.aliases import SAMPLES, resolve
from ocrlab.config.fields import Key, accepts, assign, explain, flat, table
from ocrlab.config.overrides import Setting, from_lines, from_yaml, is_nothing
from ocrlab.config.presets import choose
from ocrlab.errors import ConfigError

SCHEMA = 1
EVERY_RUN = ("schema", "data", "encoder", "batch_size", "optim.lr", "trainer.max_steps")  # from top to bottom of a file
log = logging.getLogger(__name__)


def knob(default: Any, text: str, **bounds: Any) -> Any:
    """Return a pydantic field: its default, one line of help, and its bounds (gt, ge, lt, le, multiple_of)."""
    return Field(default, description=text, **bounds)


def rising(pair: tuple[float, float]) -> tuple[float, float]:
    """Return `pair` if low <= high; raises ValueError."""
    if pair[0] > pair[1]:
        raise ValueError(f"[low, high] with low <= high, so [{pair[1]:g}, {pair[0]:g}]")
    return pair


Encoder = Literal["resnet18_slim", "resnet18", "resnet34", "resnet50", "mobilenet_v3_large"]
Decoder = Literal["fpn", "unet"]
Unit = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
UnitRange = Annotated[tuple[Unit, Unit], AfterValidator(rising)]
PositiveRange = Annotated[tuple[Positive, Positive], AfterValidator(rising)]
Word = Annotated[str, Field(min_length=1)]
CheckpointFile = Annotated[str, Field(pattern=r"\.ckpt$")]


class Section(BaseModel):
    """A group of settings; unknown keys are refused, values are checked on assignment."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, validate_default=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool) and not accepts(cls.model_fields[str(info.field_name)].annotation, bool):
            raise ValueError("true and false are not numbers")
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            super().__setattr__(name, value)
        except ValidationError as error:
            raise explain(error, type(self)) from None


class Targets(Section):
    """How polygons become target maps (Liao et al. 2020)."""

    shrink_ratio: float = knob(0.7, "published value 0.4", gt=0, lt=1)
    threshold_range: UnitRange = knob((0.3, 0.7), "threshold map at the far edge and at the text border")
    min_text_size: float = knob(3, "pixels; smaller boxes are ignored, not learned", ge=0)


class Augment(Section):
    """The one geometric warp and the photometric changes of a training page."""

    scale: PositiveRange = knob((0.45, 1.4), "random scale of a page")
    rotate: float = knob(7, "random rotation, up to so many degrees", ge=0, le=180)
    flip: Unit = knob(0, "probability of a mirror image; 0 for documents")
    brightness: Unit = knob(0.3, "largest relative change of brightness and contrast")
    noise: float = knob(4, "standard deviation of added noise, in grey levels", ge=0, le=64)
    blur: Unit = knob(0.1, "probability of a blur")
    degrade: Unit = knob(0.3, "probability of a bad copy: strong blur or noise, JPEG quality 10 to 60, or darkness")
    around_text: Unit = knob(0.9, "probability that a crop contains a text box that counts")


class Optim(Section):
    """Optimizer, schedule and weight averaging."""

    lr: float = knob(2e-3, "learning rate at the end of the warm-up", gt=0)
    weight_decay: float = knob(1e-2, "weight decay of AdamW", ge=0)
    warmup_steps: int = knob(100, "optimizer steps of linear warm-up, before the cosine", ge=0)
    grad_clip: float = knob(5.0, "largest norm of the gradient; 0 switches it off", ge=0)
    freeze_batchnorm: bool = knob(False, "keep the encoder's BatchNorm as in `weights`; less memory, faster steps")
    ema: float = knob(0.998, "decay of the averaged weights; 0 switches it off", ge=0, lt=1)


class Loss(Section):
    """Weights of the three terms and the hard-negative ratio (Liao et al. 2020)."""

    bce: float = knob(5.0, "weight of the probability map's balanced cross-entropy", ge=0)
    dice: float = knob(1.0, "weight of the approximate binary map's dice loss", ge=0)
    l1: float = knob(10.0, "weight of the threshold map's masked L1", ge=0)
    negative_ratio: float = knob(3.0, "hard negative pixels for each positive pixel", gt=0)


class Post(Section):
    """Maps to polygons."""

    threshold: Unit = knob(0.4, "probability from which a pixel is text")
    box_threshold: Unit = knob(0.6, "least mean probability inside a detection")
    unclip: Literal["exact"] | Positive = knob(
        "exact", "exact: the inverse of the shrinking; or a ratio (published: 1.5, polygons 2)"
    )
    shape: Literal["quad", "polygon"] = knob("quad", "a detection is its smallest rectangle, or its outline")
    max_candidates: int = knob(1000, "most regions of one page", ge=1)
    min_size: float = knob(3, "least short side in map pixels, before unclipping", ge=0)


class Evaluate(Section):
    """How whole pages are fed to the detector, for validation and prediction alike."""

    long_side: int = knob(1280, "pixels; larger pages are reduced to this long side", ge=64, le=8192)
    enlarge: bool = knob(False, "also enlarge smaller pages to long_side")


class Trainer(Section):
    """What is handed to lightning.Trainer, under its names."""

    accelerator: Literal["auto", "cpu", "cuda"] = knob("auto", "auto: the GPU if it passes a smoke test, else the CPU")
    devices: int = knob(1, "ranks on this machine, one for each GPU; same as --nproc", ge=1, le=1024)
    strategy: Literal["ddp"] = knob("ddp", "for several ranks: each has all weights, gradients and moments")
    sync_batchnorm: bool = knob(False, "batch statistics of all ranks together, on GPUs; else each rank has its own")
    max_steps: int = knob(7000, "optimizer steps", ge=1, le=10**9)
    max_epochs: int | None = knob(None, "epochs; overrides max_steps", ge=1, le=10**9)
    max_minutes: float | None = knob(None, "minutes of training; ocrlab plans as many of the steps as fit", gt=0)
    accumulate_grad_batches: int = knob(1, "batches for each optimizer step", ge=1, le=65536)
    precision: Literal["auto", "bf16", "fp32"] = knob(
        "auto", "auto: bf16 if a short measurement shows that it is faster"
    )
    val_every: int = knob(700, "optimizer steps between validations", ge=1)
    val_pages: int | None = knob(None, "pages per validation during training; all at the end", ge=1)
    patience: int | None = knob(None, "stop after so many validations without improvement", ge=1)
    log_every: int = knob(10, "optimizer steps between rows of metrics.csv", ge=1)


class Runtime(Section):
    """The machine: threads, workers, compile, debugging."""

    threads: int | None = knob(
        None, "CPU threads; none: OMP_NUM_THREADS, or as many as this machine has cores", ge=1, le=1024
    )
    workers: int | None = knob(None, "loader processes; none: chosen for this machine", ge=0, le=1024)
    compile: bool = knob(False, "torch.compile of the detector")
    activation_checkpointing: bool = knob(False, "encoder computed again in backward: less memory, same numbers")
    channels_last: Literal["auto"] | bool = knob("auto", "auto: if a short measurement shows that it is faster")
    cache: Literal["none", "memory"] = knob(
        "memory", "where decoded images are cached; disk, in older configs, now means memory"
    )
    cache_gb: float = knob(4.0, "GB, limit of the cache", gt=0)
    debug_cuda: bool = knob(False, "CUDA_LAUNCH_BLOCKING=1 and [CUDA Info] lines; same as DEBUG_CUDA=1")
    strict: bool = knob(False, "a bad page ends the run")

    @field_validator("cache", mode="before")
    @classmethod
    def _memory_in_place_of_disk(cls, value: Any) -> Any:
        if value != "disk":
            return value
        what = "runtime.cache=disk no longer exists: images are cached in memory, up to runtime.cache_gb"
        log.warning("%s. The folder .cache in the folder of the runs is no longer used; remove it to free space", what)
        return "memory"


class Recorder(Section):
    """The flight recorder: what the last steps were is on disk also after SIGKILL; `ocrlab replay` runs them again."""

    on: bool = knob(True, "record the training in flight/")
    steps: int = knob(512, "micro-batches that the record keeps, the last ones", ge=8, le=65536)
    batches: Literal["ids", "raw"] = knob(
        "ids", "ids: a replay rebuilds batches from data and seed; raw: the last batches are stored"
    )
    snapshot_every: int | None = knob(None, "optimizer steps between snapshots; none: about 1 % of the time", ge=1)


class Tracking(Section):
    """Experiment tracker: wandb offline or online, or TensorBoard; imported only when mode is not disabled."""

    mode: Literal["disabled", "offline", "online", "tensorboard"] = knob(
        "disabled", "offline and online use wandb; short form: tracking=offline"
    )
    user: Word = knob("ocrlab", "first word of the run's name")
    project: Word = knob("ocrlab", "the tracker's project")
    deadline: float = knob(30.0, "seconds for its start, and again for its end", gt=0)


class Config(Section):
    """All settings of a run; the same file starts the same run again."""

    data: Word = knob(SAMPLES, "folder with SPLIT/images and SPLIT/gts, or JSON beside its images")
    train_split: Word = knob("train", "split to train on")
    val_split: Word = knob("val", "split to validate on")
    exif: bool = knob(False, "apply the EXIF orientation of images")
    runs: Word = knob("runs", "folder for run folders")
    name: str | None = knob(None, "last part of the run folder's name; none: encoder-decoder")
    seed: int = knob(0, "random seed of weights, page order and augmentation", ge=0, lt=2**32)
    encoder: Encoder = knob("resnet18_slim", "network of torchvision; resnet18_slim has half the channels of resnet18")
    decoder: Decoder = knob("fpn", "network that joins the encoder's stages")
    width: int = knob(64, "channels inside the decoder", ge=16, le=1024, multiple_of=4)
    weights: Literal["imagenet", "receipts"] | CheckpointFile | None = knob(
        None, "initial weights: imagenet (encoder), receipts (the included detector), a .ckpt; none: random"
    )
    batch_size: int = knob(4, "crops in a batch", ge=1, le=65536)
    crop: int = knob(512, "pixels, side of a training crop", ge=64, le=8192, multiple_of=32)
    targets: Targets = Targets()
    augment: Augment = Augment()
    optim: Optim = Optim()
    loss: Loss = Loss()
    post: Post = Post()
    evaluate: Evaluate = Evaluate()
    trainer: Trainer = Trainer()
    runtime: Runtime = Runtime()
    recorder: Recorder = Recorder()
    tracking: Tracking = Tracking()

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise explain(error, type(self)) from None


def keys() -> dict[str, Key]:
    """Return every dotted key of the config with its default, what it takes in words, and one line of help."""
    return table(Config)


def load(
    path: Path | str | None = None,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    *,
    hardware: str | None = None,
) -> Config:
    """Return the config of a run: defaults < preset < YAML file at `path` < `overrides`, the last one wins.

    `overrides` are texts such as `trainer.max_steps=800` or `+hardware=cpu_2core`, or a mapping of dotted key to value;
    `hardware` names the preset where the overrides do not. Raises ConfigError for an unknown key (with the nearest
    right one), a wrong value, two that contradict each other, or an unreadable file.
    """
    names = keys()
    settings = resolve(from_lines(overrides), names)
    lines = from_yaml(Path(path)) if path is not None else []
    other = next((line for line in lines if line.key == "schema" and line.value != str(SCHEMA)), None)
    if other is not None:
        what, got = f"The config was written by another ocrlab ({other.where})", f"schema {other.shown}"
        raise ConfigError(what, got=got, need=f"schema {SCHEMA}", do="Update ocrlab to read it")
    written = resolve((line for line in lines if line.key != "schema"), names)
    asked = settings.pop("hardware", None) or (Setting("hardware", hardware, hardware, "given") if hardware else None)
    named = written.pop("hardware", None)
    preset = choose(asked or named)
    config = assign(Config(), {**preset, **written, **settings})
    if "trainer.max_steps" in settings and config.trainer.max_epochs is not None:
        got = f"trainer.max_epochs={config.trainer.max_epochs} as well, which wins"
        raise ConfigError("trainer.max_steps would have no effect", got=got, do="Add trainer.max_epochs=none")
    check(config)
    values = flat(config)
    stands = [key for key in preset if key in written and key not in settings and values[key] != preset[key].value]
    if asked and stands:
        log.warning("hardware=%s: %s sets %s itself, which overrides the preset", asked.value, path, ", ".join(stands))
    return config


def of_run(folder: Path | str) -> Config:
    """Return the config of a run folder; raises ConfigError where the file lacks what every run writes into it.

    Defaults in the place of what is missing would go on with another training.
    """
    path = Path(folder) / "config.yaml"
    there = {setting.key for setting in from_yaml(path)}
    missing = [key for key in EVERY_RUN if key not in there]
    if missing:
        got = f"a file without {', '.join(missing) if there else 'settings'}"
        need, do = "the file as the run has written it", "Put it back, or start a new run"
        raise ConfigError(f"{path} is not the config of a run", got=got, need=need, do=do)
    return load(path)


def apply(config: Config, overrides: Sequence[str] | Mapping[str, Any]) -> Config:
    """Return a copy of `config` with `overrides` on top; raises ConfigError."""
    resolved = resolve(from_lines(overrides), keys())
    if "hardware" in resolved:
        what = "A hardware preset cannot be applied after the config is complete"
        raise ConfigError(what, do="Give the settings themselves")
    return assign(config.model_copy(deep=True), resolved)


def check(config: Config) -> None:
    """Raise ConfigError for settings that make no sense together."""
    if config.optim.freeze_batchnorm and config.weights is None:
        what, got = "optim.freeze_batchnorm=true needs weights to begin from", "weights=none, an untrained BatchNorm"
        do = "Add weights=receipts, weights=imagenet or a .ckpt, or leave it out"
        raise ConfigError(what, got=got, do=do)


def differences(a: Config, b: Config) -> dict[str, tuple[Any, Any]]:
    """Return the dotted keys whose values differ, each with its value in `a` and in `b`."""
    left, right = flat(a), flat(b)
    return {key: (left[key], right[key]) for key in left if left[key] != right[key]}


class _Dumper(yaml.SafeDumper):
    """YAML as `load` reads it: a text that looks like no value is quoted."""


_Dumper.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, "'" if is_nothing(text) else None)
)


def dump(config: Config) -> str:
    """Return `config` as YAML text that `load` reads back equal."""
    values = {"schema": SCHEMA, **config.model_dump(mode="json")}
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
