"""`ocrlab train`: train a detector in a watched child process, which alone imports torch."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ocrlab import redaction
from ocrlab.cli import output_paths
from ocrlab.cli.parser import COUNT, Answer, Parser, table
from ocrlab.config.aliases import SAMPLES
from ocrlab.config.overrides import Setting, from_lines, from_yaml, is_nothing, is_override
from ocrlab.config.presets import PRESETS
from ocrlab.data import folder_layouts
from ocrlab.debug.watch import cuda_debug_env
from ocrlab.errors import ConfigError, DataError, OcrlabError, RunError
from ocrlab.hardware import host
from ocrlab.inference import pretrained
from ocrlab.records import SCHEMA, to_json
from ocrlab.run_folder import launcher as run_folder_launcher
from ocrlab.run_folder import watcher_link
from ocrlab.run_folder.folder import resumable

if TYPE_CHECKING:
    from ocrlab.config.schema import Config

# Where a new run finds and puts things.
DEFAULTS = {"data": SAMPLES, "train_split": "train", "val_split": "val", "weights": "", "runs": "runs"}
FEW_PAGES = 200  # fewer than these profit from a detector that was trained on others
EXAMPLES = """
  ocrlab train                                            in a checkout: the synthetic receipts in data_samples/
  ocrlab train data=receipts trainer.max_minutes=30       your pages in receipts/train and receipts/val, in 30 minutes
  ocrlab train data=receipts weights=receipts             start from the included detector: best for few pages
  ocrlab train +hardware=rtx3060_12gb_i5_16core batch_size=4
  ocrlab train trainer.accumulate_grad_batches=4          an effective batch of 16 in the memory of 4
  ocrlab train experiment.yaml optim.lr=1e-3 tracking=offline
  ocrlab train runtime.debug_cuda=true                    raise CUDA errors where they happen (also DEBUG_CUDA=1)
  ocrlab train --resume runs/20250101-120000-receipts     continue where that run stopped
  ocrlab train --nproc 2                                  two ranks on this machine, each with batch_size crops
  torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 -m ocrlab train
  srun --ntasks-per-node 8 ocrlab train                   SLURM; `ocrlab watch -- torchrun ...` names a rank that fails
  ocrlab train --keys                                     list all settings

exit status: 0 = done; 1 = failed; 2 = usage error; 124 = a hang was terminated; 128 + N = signal N
"""


def arguments(parser: Parser) -> None:
    """Add the words of this command."""
    presets = "\n".join(f"  {name}\n      {preset.why}" for name, preset in PRESETS.items())
    presets = f"presets, used as +hardware=NAME; a YAML file and key=value override them:\n{presets}"
    parser.epilog = f"{parser.epilog}\n\n{presets}"
    add = parser.add_argument
    add(
        "settings",
        nargs="*",
        metavar="CONFIG.yaml|key=value",
        help="a config file, and settings that override it; if a key occurs twice, its last value counts",
    )
    add("--config", type=Path, metavar="FILE", help="config file; needed if its name contains =")
    add("--resume", type=Path, metavar="RUN", help="continue the run in this folder, with its config")
    add(
        "--nproc",
        type=COUNT,
        metavar="N",
        help="train in N processes, one for each GPU or each share of the CPU cores (default: 1)",
    )
    add("--keys", action="store_true", help="list every setting with its default, and exit")
    add("--in-process", action="store_true", help="train in this process, without a watching parent process")


def run(args: argparse.Namespace) -> Answer:
    """Train, and answer with the run folder, the final metrics and the checkpoint."""
    if args.keys:
        return list_keys()
    mine = run_folder_launcher.detect_ranks()
    count = count_processes(args, mine)
    if not (args.in_process or mine.several) and (count > 1 or not watcher_link.watched()):
        return train_watched(args, count, check_first(args))
    config = load_resumed_config(args) if args.resume else load_config(args)
    config.trainer.devices = config.trainer.devices if args.nproc is None else count
    watcher_link.report_runs(config.runs if args.resume is None else args.resume.absolute().parent)
    from ocrlab.cli import progress
    from ocrlab.training import cuda_debug_info

    if cuda_debug_info.wanted(config):
        config.runtime.debug_cuda = True
        folder = Path(config.runs).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        os.environ.update(cuda_debug_env.environment(folder, os.environ))
        print(cuda_debug_env.words(folder), file=sys.stderr, flush=True)
        cuda_debug_info.block_launches()  # before anything else imports torch
    from ocrlab.training.loop import fit

    with progress.training_progress() as show:
        result = fit(config, resume=args.resume, progress=show)
    if not mine.first:
        return Answer({}, "")  # rank 0 answers
    record = {
        "schema": SCHEMA,
        "status": result.status,
        "run": str(result.folder),
        "checkpoint": str(result.checkpoint) if result.checkpoint else None,
        "metrics": result.metrics,
    }
    wrong = result.metrics.get("not_finite", 0)
    data = shlex.quote(f"data={config.data}")
    rows: list[tuple[str, object]] = [
        *((name, f"{value:.4g}") for name, value in result.metrics.items()),
        ("status", result.status + (f", but the loss of {wrong:.0f} micro-batches was not finite" if wrong else "")),
        ("run", _from_here(result.folder)),
        ("checkpoint", _from_here(result.checkpoint)),
        ("next", f"ocrlab evaluate {data}"),
    ]
    if result.pages < FEW_PAGES and config.weights in (None, "imagenet"):
        start = f"{result.pages} training pages are few: `ocrlab train {data} weights=receipts`"
        rows.append(("", f"{start} starts from the included detector"))
    return Answer(record, table(rows), 0 if result.status == "success" else 1)


def _from_here(path: Path | None) -> Path | None:
    """Return a path below this folder as a relative one."""
    return path.relative_to(Path.cwd()) if path and path.is_relative_to(Path.cwd()) else path


def check_first(args: argparse.Namespace) -> Path:
    """Return where the run folder will be; raises what is wrong that can be seen without torch."""
    if args.resume:
        check_resume(args.resume, load_resumed_config(args))
        return Path(args.resume).absolute().parent
    places = read_places(config_file(args), list(filter(is_override, args.settings)))
    try:
        check_places(places)
        output_paths.folder(Path(places["runs"]), "runs")
    except OcrlabError:
        load_config(args)  # a wrong setting comes first: with a wrong path it would show only after that is fixed
        raise
    return Path(places["runs"]).absolute()


def count_processes(args: argparse.Namespace, mine: run_folder_launcher.Ranks) -> int:
    """Return how many ranks this command is to start, 1 for none but itself; raises ConfigError."""
    if mine.launcher:
        if args.nproc is not None:
            what = f"--nproc inside of {mine.launcher}, which has started the ranks already"
            do = f"Leave it out; {mine.launcher} says how many there are"
            raise ConfigError(what, got=f"--nproc {args.nproc}", do=do)
        return 1
    count: int = args.nproc or 1
    if args.nproc is None:
        with contextlib.suppress(OcrlabError):  # whoever uses the config reports what is wrong with it
            file = args.resume / "config.yaml" if args.resume else config_file(args)
            count = wanted_ranks(file, list(filter(is_override, args.settings)))
    if args.in_process and count > 1:
        option = f"--nproc {count}" if args.nproc is not None else f"trainer.devices={count}"
        raise ConfigError("--in-process trains in a single process", got=option, do="Leave one of the two out")
    if count > (cores := host.cores()):
        slow = "more ranks than cores make training slower"
        print(f"ocrlab: {count} ranks share {cores} cores of this machine; {slow}", file=sys.stderr, flush=True)
    return count


def train_watched(args: argparse.Namespace, count: int, runs: Path) -> Answer:
    """Train in a child under watch, or in `count` of them: whatever kills one leaves a verdict in its run folder."""
    from ocrlab.debug.watch.supervisor import Options, watch

    words = [
        *args.settings,
        *(["--config", str(args.config)] if args.config else []),
        *(["--resume", str(args.resume)] if args.resume else []),
        *(["--json"] if args.json else []),
        *(["--nproc", "1"] if args.nproc is not None and count == 1 else []),  # whatever the config says
    ]
    child_output = bytearray()

    def keep(stream: int, data: bytes) -> None:  # the child's one JSON object is the answer, the rest goes through
        if stream == 1:
            child_output.extend(data)
        else:
            os.write(2, data)

    with tempfile.TemporaryDirectory(prefix="ocrlab-ranks-", ignore_cleanup_errors=True) as logs:
        module = ["ocrlab", "train"] if count == 1 else ["ocrlab.training.distributed.launch", str(count), logs]
        command = [sys.executable, "-m", *module, *words]
        ended = watch(command, Options(own_folder=True, runs=runs), output=keep if args.json else None)
    if not args.json:
        return Answer({}, "", ended.exit_status)
    try:
        record = dict(json.loads(bytes(child_output)))
    except ValueError:  # it died without an answer
        error = {"type": ended.status.capitalize(), "message": ended.signal or f"exit status {ended.exit_status}"}
        record = {"schema": SCHEMA, "status": "failure", "exit_status": ended.exit_status, "error": error}
    if ended.folder:
        record["run"] = str(ended.folder)
    if ended.verdict:
        record["verdict"] = redaction.clean(to_json(ended.verdict))
    return Answer(record, "", ended.exit_status)


def load_config(args: argparse.Namespace) -> Config:
    """Return the config that the words describe; raises ConfigError."""
    from ocrlab.config import schema as configs

    return configs.load(config_file(args), list(filter(is_override, args.settings)))


def load_resumed_config(args: argparse.Namespace) -> Config:
    """Return the config of the run to go on with; raises ConfigError for settings beside it, RunError for no run."""
    from ocrlab.config import schema as configs

    if args.settings or args.config:
        words = " ".join([*args.settings, *([f"--config {args.config}"] if args.config else [])])
        raise ConfigError("--resume uses the config of its run", got=f"{words} as well", do="Leave that out")
    if not (args.resume / "config.yaml").is_file():
        there = args.resume.is_dir()
        got = "no config.yaml in it" if there else "no folder of that name"
        need = "a run folder, as runs/NAME"
        raise RunError(f"{args.resume} cannot be resumed", got=got, need=need, missing=not there)
    return configs.of_run(args.resume)


def config_file(args: argparse.Namespace) -> Path | None:
    """Return the one config file that the words name, None for none; raises ConfigError for two and for other words."""
    files = [Path(word) for word in args.settings if not is_override(word)]
    files += [args.config] if args.config else []
    if len(files) > 1:
        names = " and ".join(map(str, files))
        raise ConfigError("More than one config file", got=names, need="one, and settings of the form key=value")
    if files and not files[0].exists() and files[0].suffix not in (".yaml", ".yml"):
        what = f"{str(files[0])!r} is neither a setting nor a file"
        do = f"Write {files[0]}=VALUE for a setting"
        raise ConfigError(what, need="key=value, or the path of a YAML file", do=do)
    return files[0] if files else None


def list_keys() -> Answer:
    """Answer with every setting: default, what it takes, and one line of help."""
    from ocrlab.config import schema as configs

    keys = configs.keys()
    rows: list[tuple[Any, ...]] = [("setting", "default", "takes", "what it is")]
    for name, key in keys.items():
        words = {True: "true", False: "false", None: "none"}
        listed = f"[{', '.join(map(str, key.default))}]" if isinstance(key.default, tuple) else str(key.default)
        plain = isinstance(key.default, bool | None)
        rows.append((name, words[key.default] if plain else listed, key.need, key.help))
    listing = {name: {"default": key.default, "takes": key.need, "help": key.help} for name, key in keys.items()}
    return Answer({"schema": SCHEMA, "keys": listing}, table(rows))


# What is checked before anybody waits for torch: only files and names. The child reports what is wrong inside a file.


def read_places(file: Path | None, words: list[str]) -> dict[str, str]:
    """Return where a new run finds and puts things, by file and words as by the config; raises ConfigError.

    To read the whole config takes a third of a second, and the child does.
    """
    asked = {setting.key: setting for setting in _settings(file, words) if setting.key in DEFAULTS}
    filled = {key: each.value if isinstance(each.value, str) and not each.empty else "" for key, each in asked.items()}
    return {**DEFAULTS, **filled}


def wanted_ranks(file: Path | None, words: list[str]) -> int:
    """Return how many ranks `trainer.devices` asks for, 1 where it has an unusable value."""
    asked = {setting.key: setting.value for setting in _settings(file, words)}.get("trainer.devices")
    return max(1, int(asked)) if isinstance(asked, str) and asked.isdecimal() else 1


def _settings(file: Path | None, words: list[str]) -> list[Setting]:
    return [*(from_yaml(file) if file else []), *from_lines(words)]


def check_places(places: Mapping[str, str]) -> None:
    """Raise DataError for a missing split, and CheckpointError for weights that are missing or not a checkpoint."""
    data = places["data"]
    if data == SAMPLES and not os.path.exists(SAMPLES):
        raise DataError(
            f"data= is not set, and there is no {SAMPLES} in this folder",
            need=f"data=DIR with your own pages, or a checkout of ocrlab, which contains {SAMPLES}",
            do="To begin with synthetic pages: ocrlab samples make receipts, then ocrlab train data=receipts",
            missing=True,
        )
    for split in filter(None, (places["train_split"], places["val_split"])) if data else ():
        folder = Path(data).expanduser()
        try:
            folder_layouts.find(folder, split)
        except DataError:
            from ocrlab.data.shards import dataset  # late: NumPy and OpenCV take as long as all the rest

            if not folder.exists() or not dataset.find(folder, split):
                raise
    if places["weights"].endswith(".ckpt"):  # the child checks any other word
        pretrained.check_file(Path(places["weights"]))


def check_config(config: Config, *, begun: bool = False) -> None:
    """Raise what `check_places` raises, of a config; a training that has begun needs no first weights."""
    weights = "" if begun or is_nothing(config.weights or "") else str(config.weights)
    splits = {"train_split": config.train_split, "val_split": config.val_split}
    check_places({"data": config.data, **splits, "weights": weights})


def check_resume(run: Path, config: Config) -> None:
    """Raise RunError for a run that cannot go on, DataError and CheckpointError where its data or last step is gone."""
    resumable(run)
    last = run / "checkpoints" / "last.ckpt"
    if begun := last.is_file():
        pretrained.check_file(last)
    check_config(config, begun=begun)
