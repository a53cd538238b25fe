"""Names of settings: those of other programs and guides, refused ones with the reason, and the nearest right one."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import SequenceMatcher

from ocrlab.config.overrides import Setting
from ocrlab.errors import ConfigError

SAMPLES = "data_samples"  # folder of the synthetic receipts, in a checkout

# Names from other programs and guides, and the settings that mean exactly the same.
ALIASES = {
    "tracking": "tracking.mode",
    "lr": "optim.lr",
    "learning_rate": "optim.lr",
    "optimizer.lr": "optim.lr",
    "optimizer.weight_decay": "optim.weight_decay",
    "weight_decay": "optim.weight_decay",
    "max_epochs": "trainer.max_epochs",
    "max_steps": "trainer.max_steps",
    "accelerator": "trainer.accelerator",
    "precision": "trainer.precision",
    "debug_cuda": "runtime.debug_cuda",
    "num_workers": "runtime.workers",
    "gradient_checkpointing": "runtime.activation_checkpointing",
    "dataloaders.train_dataloader.batch_size": "batch_size",
    "dataloaders.train_dataloader.num_workers": "runtime.workers",
    "model.encoder": "encoder",
    "model.encoder.model_name": "encoder",
    "model.decoder": "decoder",
    "trainer.gradient_clip_val": "optim.grad_clip",
    "trainer.log_every_n_steps": "trainer.log_every",
    "trainer.default_root_dir": "runs",
    "early_stopping.patience": "trainer.patience",
}

_DEVICES = "The number of ranks on this machine is trainer.devices=N, or --nproc N; nothing is guessed"
_NODES = "It follows the launcher: torchrun --nnodes N --nproc-per-node M ... -m ocrlab train, or srun ocrlab train"
_VAL_LOADER = "Validation feeds one page at a time, as large as evaluate.long_side says"
_WANDB = "Write tracking=offline|online|tensorboard|disabled, tracking.user=NAME, tracking.project=NAME"

# Names with another meaning or without a use here; a name also stands for everything below it.
REFUSED = {
    "hardware": "It is a preset below the settings; write +hardware=NAME or config.load(hardware=NAME)",
    "runtime.ddp_strategy": "Write trainer.devices=N for how many ranks; they train with DDP",
    "runtime.auto_gpu_devices": _DEVICES,
    "runtime.min_auto_devices": _DEVICES,
    "trainer.gpus": _DEVICES,
    "trainer.num_nodes": _NODES,
    "trainer.limit_val_batches": "Write trainer.val_pages=N; all pages are measured at the end",
    "trainer.limit_train_batches": "Write trainer.max_steps=N, or point data= to a smaller folder",
    "trainer.val_check_interval": "It counts batches; write trainer.val_every=N, which counts optimizer steps",
    "trainer.check_val_every_n_epoch": "It counts epochs; write trainer.val_every=N, which counts optimizer steps",
    "trainer.max_time": "Write trainer.max_minutes=N",
    "trainer.benchmark": "It is decided by the trainer",
    "trainer.deterministic": "A run on the CPU is always repeatable from its seed",
    "dataloaders.val_dataloader": _VAL_LOADER,
    "dataloaders.test_dataloader": _VAL_LOADER,
    "dataloaders.predict_dataloader": _VAL_LOADER,
    "dataset": "Write data=DIR, train_split=NAME, val_split=NAME",
    "datasets": "Write data=DIR, train_split=NAME, val_split=NAME",
    "logger": _WANDB,
    "wandb": _WANDB,
    "checkpoint_path": "Write --resume RUN to continue a run, --checkpoint FILE to evaluate or predict",
    "resume": "Write --resume RUN",
}


def find(name: str, names: Collection[str], where: str) -> str:
    """Return the key that `name` stands for; raises ConfigError with the new name, the reason, or the nearest name."""
    if name in names:
        return name
    if name in ALIASES:
        return ALIASES[name]
    members = [key for key in names if key.startswith(f"{name}.")]
    if members:
        raise ConfigError(f"{name} is a group of settings ({where})", need=f"one of {', '.join(members)}")
    for old, why in REFUSED.items():
        if name == old or name.startswith(f"{old}."):
            raise ConfigError(f"{name} is not a setting of ocrlab ({where})", do=why)
    near = nearest(name, [*names, *ALIASES, "hardware"])
    hint = f"The nearest is {ALIASES.get(near, near)}. " if near else ""
    raise ConfigError(f"{name} is not a setting ({where})", do=f"{hint}`ocrlab train --keys` lists all settings")


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the dotted key most like `name`, by its last part or as a whole, or None where nothing is alike."""
    name = name.lower()

    def likeness(key: str) -> tuple[float, float]:
        whole = SequenceMatcher(None, name, key).ratio()
        leaf = SequenceMatcher(None, name.rpartition(".")[2], key.rpartition(".")[2]).ratio()
        if len(name) >= 4 and name in key:
            leaf = max(leaf, 0.8)
        if len(name) >= 4 and key.startswith(f"{name}_"):  # batch is batch_size, rather than recorder.batches
            leaf = max(leaf, 0.95)
        return (leaf if "." in name else max(leaf, whole)), whole  # a shared "trainer." does not count

    best = max(names, key=likeness, default=None)
    return best if best is not None and likeness(best)[0] >= 0.6 else None


def resolve(settings: Iterable[Setting], names: Collection[str]) -> dict[str, Setting]:
    """Return settings under their names here; the last of two wins. Raises ConfigError with all that cannot be used.

    `hardware` passes unchanged; a group without a value, `trainer:` with every line below commented out, is empty.
    """
    groups = {key.rpartition(".")[0] for key in names}
    resolved: dict[str, Setting] = {}
    problems: list[ConfigError] = []
    for setting in settings:
        if setting.key in groups and setting.empty:
            continue
        try:
            resolved["hardware" if setting.key == "hardware" else find(setting.key, names, setting.where)] = setting
        except ConfigError as error:
            problems.append(error)
    if problems:
        raise gather(problems)
    return resolved


def gather(problems: list[ConfigError]) -> ConfigError:
    """Return one error that says everything that the given ones say."""
    if len(problems) == 1:
        return problems[0]
    return ConfigError(f"{len(problems)} settings cannot be used", parts=problems)
