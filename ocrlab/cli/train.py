"""`ocrlab train`: train a detector, in a child under watch; what learns is imported only there."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ocrlab import redaction
from ocrlab.cli.output_paths import folder
from ocrlab.cli.parser import Answer, Parser, add_json, table
from ocrlab.config.presets import PRESETS
from ocrlab.debug.watch import cuda_debug_env
from ocrlab.errors import ConfigError, OcrlabError, RunError
from ocrlab.hardware import host
from ocrlab.records import SCHEMA, to_json
from ocrlab.run_folder import launcher as run_folder_launcher
from ocrlab.run_folder import watcher_link

if TYPE_CHECKING:
    from ocrlab.config.schema import Config
    from ocrlab.debug.watch.supervisor import Ended

EXAMPLES = """
  ocrlab train                                            in a checkout: the synthetic receipts in data_samples/
  ocrlab train data=receipts trainer.max_steps=800        a folder with train/images, train/gts, val/...
  ocrlab train +hardware=rtx3060_12gb_i5_16core batch_size=4
  ocrlab train trainer.accumulate_grad_batches=4          the effect of a batch of 16 with the memory of 4
  ocrlab train experiment.yaml optim.lr=1e-3 tracking=offline
  ocrlab train runtime.debug_cuda=true                    CUDA errors where they were made (DEBUG_CUDA=1 does it too)
  ocrlab train --resume runs/20250101-120000-receipts     go on where that run stopped
  ocrlab train --nproc 2                                  two ranks on this machine, each with batch_size crops
  torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 -m ocrlab train
  srun --ntasks-per-node 8 ocrlab train                   SLURM; `ocrlab watch -- torchrun ...` names a rank that fails
  ocrlab train --keys                                     every setting: default, what it takes, what it does
"""


def arguments(parser: Parser) -> None:
    """Add the words of this command."""
    presets = "\n".join(f"  {name}\n      {preset.why}" for name, preset in PRESETS.items())
    parser.epilog = (
        f"{parser.epilog}\n\npresets, as +hardware=NAME; a YAML file and key=value win over them:\n{presets}"
    )
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="CONFIG.yaml|key=value",
        help="a config file, and settings that win over it; the last one of two wins",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="the config file, where its name has a = in it")
    parser.add_argument("--resume", type=Path, metavar="RUN", help="run folder to go on with; its config is used")
    parser.add_argument("--nproc", metavar="N", help="train in N processes, one for each GPU (or on CPUs): see below")
    parser.add_argument("--keys", action="store_true", help="list every setting and end")
    parser.add_argument("--in-process", action="store_true", help="train in this process, without a watcher around it")
    add_json(parser)


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
        enable_cuda_debugging(Path(config.runs).absolute())
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
    rows: list[tuple[str, object]] = [(name, f"{value:.4g}") for name, value in result.metrics.items()]
    wrong = result.metrics.get("not_finite", 0)
    status = f"{result.status}, but the loss of {wrong:.0f} micro-batches was not finite" if wrong else result.status
    rows += [("status", status), ("run", result.folder), ("checkpoint", record["checkpoint"])]
    return Answer(record, table(rows), 0 if result.status == "success" else 1)


def check_first(args: argparse.Namespace) -> Path:
    """Return where the run folder will be; raises what is wrong that can be seen without torch."""
    from ocrlab.cli import train_preflight

    if args.resume:
        train_preflight.check_resume(args.resume, load_resumed_config(args))
        return Path(args.resume).absolute().parent
    from ocrlab.config.overrides import is_override

    places = train_preflight.read_places(config_file(args), list(filter(is_override, args.settings)))
    try:
        train_preflight.check_places(places)
        folder(Path(places["runs"]), "runs")
    except OcrlabError:
        load_config(args)  # a wrong setting comes first: with a wrong path it would show only after that is fixed
        raise
    return Path(places["runs"]).absolute()


def count_processes(args: argparse.Namespace, mine: run_folder_launcher.Ranks) -> int:
    """Return how many ranks this command is to start, 1 for none but itself; raises ConfigError."""
    count = 1
    if args.nproc is not None:
        if not args.nproc.isdecimal() or int(args.nproc) < 1:
            raise ConfigError("--nproc is no number of processes", got=repr(args.nproc), need="1, 2, 3, ...")
        count = int(args.nproc)
    elif not mine.launcher and may_set_devices(args):
        with contextlib.suppress(OcrlabError):  # what is wrong with the config is said where it is used
            count = (load_resumed_config(args) if args.resume else load_config(args)).trainer.devices
    if mine.launcher:  # which has started all there are
        if args.nproc is not None:
            what = f"--nproc inside of {mine.launcher}, which has started the ranks already"
            raise ConfigError(what, got=f"--nproc {count}", do=f"Leave it out; {mine.launcher} says how many there are")
        return 1
    if args.in_process and count > 1:
        option = f"--nproc {count}" if args.nproc is not None else f"trainer.devices={count}"
        raise ConfigError("--in-process trains in this one process", got=option, do="Leave one of the two out")
    if count > (cores := host.cores()):
        warning = (
            f"ocrlab: {count} ranks share {cores} cores of this machine; more ranks than cores make training slower"
        )
        print(warning, file=sys.stderr, flush=True)
    return count


def may_set_devices(args: argparse.Namespace) -> bool:
    """Tell whether the config could ask for several ranks: to read it takes a third of a second, and the child does."""
    from ocrlab.config.overrides import is_override

    files = args.resume or args.config or not all(map(is_override, args.settings))
    return bool(files) or any("devices" in word for word in args.settings)


def train_watched(args: argparse.Namespace, count: int, runs: Path) -> Answer:
    """Train in a child under watch, or in `count` of them: whatever kills one leaves a verdict in its run folder."""
    from ocrlab.debug.watch.supervisor import Options, watch

    words = [*args.settings, *(["--config", str(args.config)] if args.config else [])]
    words += [*(["--resume", str(args.resume)] if args.resume else []), *(["--json"] if args.json else [])]
    words += ["--nproc", "1"] if args.nproc is not None and count == 1 else []  # whatever the config says
    child_output = bytearray()

    def keep(stream: int, data: bytes) -> None:  # the child's one JSON object is the answer, the rest goes through
        if stream == 1:
            child_output.extend(data)
        else:
            os.write(2, data)

    with tempfile.TemporaryDirectory(prefix="ocrlab-ranks-", ignore_cleanup_errors=True) as logs:
        launcher = (
            ["-m", "ocrlab.training.distributed.launch", str(count), logs] if count > 1 else ["-m", "ocrlab", "train"]
        )
        command = [sys.executable, *launcher, *words]
        ended = watch(command, Options(own_folder=True, runs=runs), output=keep if args.json else None)
    return Answer(child_record(bytes(child_output), ended) if args.json else {}, "", ended.exit_status)


def child_record(child_output: bytes, ended: Ended) -> dict[str, Any]:
    """Return the record of a child: its own words, or in their place how it died."""
    try:
        record = json.loads(child_output)
    except ValueError:
        error = {"type": ended.status.capitalize(), "message": ended.signal or f"exit status {ended.exit_status}"}
        record = {"schema": SCHEMA, "status": "failure", "exit_status": ended.exit_status, "error": error}
    if ended.folder:
        record["run"] = str(ended.folder)
    if ended.verdict:
        record["verdict"] = redaction.clean(to_json(ended.verdict))
    return dict(record)


def enable_cuda_debugging(folder: Path) -> None:
    """Switch on what makes CUDA errors speak, and say on stderr what it costs; dumps go into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.update(cuda_debug_env.environment(folder, os.environ))
    print(cuda_debug_env.words(folder), file=sys.stderr, flush=True)


def load_config(args: argparse.Namespace) -> Config:
    """Return the config that the words describe; raises ConfigError."""
    from ocrlab.config import schema as configs
    from ocrlab.config.overrides import is_override

    return configs.load(config_file(args), list(filter(is_override, args.settings)))


def load_resumed_config(args: argparse.Namespace) -> Config:
    """Return the config of the run to go on with; raises ConfigError for settings beside it, RunError for no run."""
    from ocrlab.config import schema as configs

    if args.settings or args.config:
        words = " ".join([*args.settings, *filter(None, [args.config and f"--config {args.config}"])])
        raise ConfigError("--resume goes on with the config of its run", got=f"{words} as well", do="Leave that out")
    path = args.resume / "config.yaml"
    if not path.is_file():
        there = args.resume.is_dir()
        got = "no config.yaml in it" if there else "no folder of that name"
        need = "a run folder, as runs/NAME"
        raise RunError(f"{args.resume} cannot be resumed", got=got, need=need, missing=not there)
    return configs.of_run(args.resume)


def config_file(args: argparse.Namespace) -> Path | None:
    """Return the one config file that the words name, None for none; raises ConfigError for two and for other words."""
    from ocrlab.config.overrides import is_override

    files = [Path(word) for word in args.settings if not is_override(word)]
    files += [args.config] if args.config else []
    if len(files) > 1:
        names = " and ".join(map(str, files))
        raise ConfigError("More than one config file", got=names, need="one, and settings of the form key=value")
    if files and not files[0].exists() and files[0].suffix not in (".yaml", ".yml"):
        what = f"{str(files[0])!r} is no setting and no file"
        raise ConfigError(
            what, need="key=value, or the path of a YAML file", do=f"Write {files[0]}=VALUE for a setting"
        )
    return files[0] if files else None


def list_keys() -> Answer:
    """Answer with every setting: default, what it takes, and one line of help."""
    from ocrlab.config import schema as configs

    keys = configs.keys()
    rows: list[tuple[Any, ...]] = [("setting", "default", "takes", "what it is")]
    rows += [(name, default_text(key.default), key.need, key.help) for name, key in keys.items()]
    listing = {name: {"default": key.default, "takes": key.need, "help": key.help} for name, key in keys.items()}
    return Answer({"schema": SCHEMA, "keys": listing}, table(rows))


def default_text(value: Any) -> str:
    """Return a default as it would be written on the command line."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
