"""`ocrlab bisect`: which setting, settings together, or page makes a training fail, by short watched runs."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ocrlab import run_folder, safe_read
from ocrlab.cli import consent
from ocrlab.cli.parser import Answer, Parser, table
from ocrlab.errors import ConfigError, OcrlabError, RunError, escape_control
from ocrlab.records import Verdict
from ocrlab.redaction import clean, clean_record

if TYPE_CHECKING:
    from ocrlab.debug.bisect.bisect_job import BisectJob, Limits
    from ocrlab.debug.bisect.sample_search import SampleCulprits
    from ocrlab.debug.bisect.search import Answer as SearchAnswer
    from ocrlab.debug.bisect.search import Search

TAKES_PROGRAM = True  # the words after -- are a command of the user
FOLDER, RECORD = "bisect", "bisect.json"
EXAMPLES = (
    """
  ocrlab bisect runs/20250101-120000-receipts         what made this run fail? tries all that can be changed
  ocrlab bisect config.yaml batch_size=16 --steps 30  a config with one override; 30 steps for each run
  ocrlab bisect runs/bad --against runtime.workers=0 optim.lr=1e-4
  ocrlab bisect --factor workers=8:0 --factor amp=1:0 -- python train.py --workers {workers} --amp {amp}
  ocrlab bisect --factor OMP_NUM_THREADS=8:1 -- python train.py             an environment variable
  ocrlab bisect --factor config=bad.yaml:good.yaml -- python train.py {config}    keys that differ between two files
  ocrlab bisect --samples list=train.txt -- python train.py --list {list}   one line of a list, one file of a folder
"""
    + consent.HELP
    + """
exit status: 0 = an answer; 1 = no answer; 2 = usage error
"""
)


def arguments(parser: Parser) -> None:
    """Add the words of this command."""
    parser.usage = "ocrlab bisect RUN|CONFIG.yaml [key=value ...] [options] [-- COMMAND...]"
    consent.add_option(parser)
    parser.add_argument(
        "what",
        nargs="*",
        metavar="RUN|CONFIG.yaml|key=value",
        help="the failing run or config, and settings that override it",
    )
    parser.add_argument(
        "--against",
        nargs="+",
        action="extend",
        default=[],
        metavar="key=value",
        help="values to try instead of the failing ones (default: everything that can be changed)",
    )
    parser.add_argument(
        "--factor",
        action="append",
        default=[],
        metavar="NAME=BAD:GOOD",
        help="a setting of COMMAND with its failing and its working value: replaces {NAME} in COMMAND, else sets the "
        "environment variable NAME. Write BAD::GOOD if a value contains a colon. Two JSON, YAML or TOML files are "
        "compared key by key",
    )
    parser.add_argument(
        "--samples",
        metavar="NAME=PATH",
        help="find the failing sample in a folder, a list of lines, CSV or JSON, which COMMAND gets as {NAME}",
    )
    parser.add_argument("--runs", type=int, default=60, metavar="N", help="maximum number of runs (default: 60)")
    parser.add_argument(
        "--error", type=float, default=0.05, metavar="P", help="accepted probability of a wrong answer (default: 0.05)"
    )
    parser.add_argument(
        "--rate",
        type=float,
        metavar="P",
        help="how often it fails, if you know: 0.3 = 3 of 10 runs (default: estimated)",
    )
    parser.add_argument(
        "--again",
        type=int,
        default=3,
        metavar="N",
        help="repeat the decisive runs N times if there are several factors or a run takes under 20 s (default: 3)",
    )
    parser.add_argument(
        "--steps", type=int, metavar="N", help="optimizer steps of each run (default: up to the step that failed)"
    )
    parser.add_argument(
        "--timeout", type=float, default=300.0, metavar="S", help="maximum seconds for each run (default: 300)"
    )
    parser.add_argument("--minutes", type=float, metavar="M", help="maximum minutes for all runs (default: no limit)")


def run(args: argparse.Namespace) -> Answer:
    """Bisect and answer with the culprit, its evidence, and the table of what failed and what passed."""
    limits = _limits(args)
    folder, rest = _split_arguments(args)
    if args.program:
        return _search(_program_job(args, folder, rest, limits), folder, Path("runs"))
    if args.factor or args.samples:
        what = "--factor" if args.factor else "--samples"
        raise ConfigError(f"{what} needs a command to run", need="-- COMMAND at the end, or --against key=value")
    return _bisect_training(args, folder, rest, limits)


def _bisect_training(args: argparse.Namespace, folder: Path | None, rest: list[str], limits: Limits) -> Answer:
    from ocrlab.config import schema as configs
    from ocrlab.debug.bisect import training_trials
    from ocrlab.debug.bisect.bisect_job import BisectJob, digest, file_stamps

    file = folder / "config.yaml" if folder else next((Path(word) for word in rest if "=" not in word), None)
    if folder and not (folder / "config.yaml").is_file():
        need = "a run of ocrlab train; for any other program --factor NAME=BAD:GOOD ... -- COMMAND"
        raise ConfigError(f"{folder} has no config.yaml", need=need)
    if not (folder or rest):
        raise ConfigError("Nothing to bisect", need="a run folder, a config, or settings", do="See --help")
    if folder:
        _require_consent(args, folder, rest)
    config = configs.load(file, [word for word in rest if "=" in word])
    if not (folder or args.against or configs.differences(configs.load(), config)):
        need = "a training that fails: its run folder, its config, or settings"
        raise ConfigError(f"{' '.join(rest)} sets nothing beside the defaults", need=need)
    if args.against:
        flips = training_trials.factors_against(config, args.against)
    else:
        flips = training_trials.config_factors(config)
    at = training_trials.find_failed_step(folder) if folder else None
    steps = args.steps or (at[0] + 1 + training_trials.MARGIN if at else training_trials.STEPS)
    steps = min(steps, config.trainer.max_steps)
    with _open_home(folder, Path(config.runs)) as home:
        place = home / "flight" / FOLDER
        data = file_stamps([Path(config.data)])
        mark = digest(configs.dump(config), steps, [(flip.name, flip.good) for flip in flips], data)
        job = BisectJob(flips, [], training_trials.starter(config, flips, place, steps), place, limits, mark)
        job.earlier_folders = [] if folder else _unfinished_folders(Path(config.runs))
        plan = f"{steps} optimiser step{'' if steps == 1 else 's'} a run"
        plan += f"; it failed in step {at[0]}" if at else ""
        return _run_job(job, folder, home, plan, at[1] if at else ())


def _require_consent(args: argparse.Namespace, folder: Path, rest: list[str]) -> None:
    """Ask before the training of a run folder is started that somebody else may have recorded; raises NotTrusted."""
    from ocrlab.debug.trials.consent import RecordedProgram, require_consent

    file = folder / "config.yaml"
    program = RecordedProgram(folder, [file], ["ocrlab", "train", "--config", str(file), *rest])
    consent.with_consent(lambda trust: require_consent(program, trust, _report), args.trust)


def _program_job(args: argparse.Namespace, folder: Path | None, rest: list[str], limits: Limits) -> BisectJob:
    from ocrlab.debug.bisect import factors, program_trials
    from ocrlab.debug.bisect import sample_lists as lists
    from ocrlab.debug.bisect.bisect_job import BisectJob, digest, file_stamps

    if rest or args.against or args.steps:
        raise ConfigError(
            "Settings are only for ocrlab train", got=" ".join(rest) or None, need="--factor NAME=BAD:GOOD"
        )
    if not (args.factor or args.samples):
        raise ConfigError("No factors to bisect", need="--factor NAME=BAD:GOOD or --samples NAME=PATH, then --")
    flips, first = program_trials.split_config_files(factors.parse_factors(args.factor)), args.program[0]
    if "{" not in first and shutil.which(first) is None:
        raise ConfigError(f"{first} cannot be started", got="no program of that name", need="a program on PATH")
    samples = lists.read_samples(args.samples) if args.samples else None
    start = program_trials.starter(args.program, flips, samples)
    files = [Path(word) for word in [*args.program, *(str(flip.job["path"]) for flip in flips if "path" in flip.job)]]
    files = [*(file for file in files if not file.is_dir()), *([samples.path] if samples else [])]
    mark = digest(args.program, args.samples, [(flip.name, flip.bad, flip.good) for flip in flips], file_stamps(files))
    job = BisectJob(flips, [], start, Path(), limits, mark)
    if samples is not None:
        job.unit, job.names = samples.unit, samples.names
    return job


def _search(job: BisectJob, folder: Path | None, runs: Path) -> Answer:
    with _open_home(folder, runs) as home:
        job.folder = home / "flight" / FOLDER
        job.earlier_folders = [] if folder else _unfinished_folders(runs)
        return _run_job(job, folder, home, "", ())


def _run_job(job: BisectJob, folder: Path | None, home: Path, plan: str, samples: Sequence[str]) -> Answer:
    """Report the plan, search the factors and then the samples where the data is to blame, and write the record."""
    from ocrlab.debug.bisect import bisect_summary, factors
    from ocrlab.debug.bisect.bisect_job import run_bisect
    from ocrlab.debug.trials import trial

    verdict = None
    if folder:
        job.wanted, job.failure = trial.recorded_failure(folder) or (None, "")
        verdict = _verdict(folder)
    job.suspicion, job.is_ordered = factors.suspicion_weights(job.factors, verdict), bool(verdict and verdict.causes)
    _report(bisect_summary.plan(job.factors, job.limits, len(job.names), job.unit))
    _report(plan)
    answer, search = run_bisect(job, lambda row: _row(job, row))
    names = job.names or _page_names(job.folder)
    culprits = _samples(job, answer, search, names, samples)
    record = clean_record(bisect_summary.record(job, answer, search, culprits, names))
    file = _next_record_path(home / "incident")
    file.parent.mkdir(parents=True, exist_ok=True)
    run_folder.write_json(file, record)
    rows = "\n".join(filter(None, [bisect_summary.legend(job), table(bisect_summary.table(job))]))
    text = f"{clean(rows)}\n\n{record['sentence']}\n{file}"
    return Answer({**record, "file": str(file)}, text, 0 if answer.status in ("found", "none") else 1)


def _row(job: BisectJob, row: dict[str, Any]) -> None:
    """Report how a run ended, and after the first one how long all of them will take."""
    from ocrlab.debug.bisect import bisect_summary

    _report(bisect_summary.line(len(job.rows), row, job.unit))
    if len(job.rows) == 1 and row["ended"] == "failed":
        _report(bisect_summary.first_run(job))


def _samples(
    job: BisectJob, answer: SearchAnswer, search: Search, names: Sequence[str], hinted: Sequence[str]
) -> SampleCulprits | None:
    """Look for the samples that fail, where the data is to blame or where a program's samples were named."""
    from ocrlab.debug.bisect import bisect_summary, factors, sample_search

    asked = bool(job.names) and answer.status in ("found", "none")
    if not asked and (len(names) < 2 or factors.DATA not in [job.factors[index].name for index in answer.items]):
        return None
    runs = bisect_summary.halvings(len(names)) * search.tries
    _report(f"{len(names)} {job.unit}s are halved until those remain that fail, in {runs} runs at most if it is one")
    hint = [index for index, name in enumerate(names) if name in hinted]
    rate = search.failure_rate if search.is_flaky else 1.0
    return sample_search.find_culprits(job, len(names), rate, lambda row: _row(job, row), hint)


def _limits(args: argparse.Namespace) -> Limits:
    from ocrlab.debug.bisect.bisect_job import Limits

    rules: list[tuple[str, float | None, bool, str]] = [
        ("--runs", args.runs, args.runs >= 1, "at least 1"),
        ("--error", args.error, 0 < args.error < 0.5, "a probability between 0 and 0.5"),
        ("--rate", args.rate, args.rate is None or 0 < args.rate <= 1, "a probability above 0, at most 1"),
        ("--timeout", args.timeout, args.timeout > 0, "seconds, more than 0"),
        ("--minutes", args.minutes, args.minutes is None or args.minutes > 0, "minutes, more than 0"),
        ("--again", args.again, args.again >= 0, "at least 0"),
        ("--steps", args.steps, args.steps is None or args.steps >= 1, "at least 1"),
    ]
    for name, value, right, need in rules:
        if not right:
            raise ConfigError(f"{name} cannot be used", got=value, need=need)
    seconds = 60 * args.minutes if args.minutes else None
    return Limits(args.runs, args.error, args.timeout, seconds, args.rate, args.again)


def _split_arguments(args: argparse.Namespace) -> tuple[Path | None, list[str]]:
    """Return the run folder, if one is named, and the other words: a config file and settings."""
    misplaced = [word for word in args.against if "=" not in word]
    args.against = [word for word in args.against if "=" in word]
    words = [*args.what, *misplaced]
    folders = [Path(word) for word in words if Path(word).is_dir()]
    rest = [word for word in words if not Path(word).is_dir()]
    files = [word for word in rest if "=" not in word]
    if len(folders) + len(files) > 1:
        raise ConfigError(
            "Only one run or config can be bisected at a time",
            got=" and ".join(map(str, [*folders, *files])),
            need="one",
        )
    if files and not Path(files[0]).exists():
        raise ConfigError(f"{files[0]} does not exist", need="a run folder, a YAML file, or key=value")
    return (folders[0] if folders else None), rest


def _page_names(folder: Path) -> list[str]:
    """Return the names of the training pages where a training has written them down; none for any other program."""
    if not (folder / "pages.json").is_file():
        return []
    from ocrlab.debug.bisect import training_trials

    return training_trials.read_page_names(folder)


def _verdict(folder: Path) -> Verdict | None:
    from ocrlab.debug.diagnosis import classify, load_input

    with contextlib.suppress(OcrlabError):
        return classify.classify(load_input.read_incident(str(folder)))
    return None


@contextlib.contextmanager
def _open_home(folder: Path | None, runs: Path) -> Iterator[Path]:
    """Yield the run folder that everything is written into: that of the run, or a new one, closed at the end."""
    if folder is not None:
        if run_folder.status(folder).status == "running":
            raise RunError(f"{folder} is still running", need="a run that has ended")
        yield folder.absolute()
        return
    with run_folder.run(runs, FOLDER) as run:
        yield run.path
        run.succeed({})


def _unfinished_folders(runs: Path) -> list[Path]:
    """Return the folders of bisects that were interrupted, or ran out of runs or time: their runs are used again."""
    folders = []
    for place in sorted(runs.glob(f"*-{FOLDER}*/flight/{FOLDER}")):
        file = place.parent.parent / "incident" / RECORD
        try:
            ended = json.loads(safe_read.read(file))["status"] if file.exists() else "interrupted"
        except (OSError, ValueError, LookupError, TypeError):
            continue
        if ended in ("interrupted", "undecided"):
            folders.append(place)
    return folders


def _next_record_path(folder: Path) -> Path:
    """Return where the record goes: bisect.json, bisect-2.json and so on, never over an old one."""
    names = [RECORD, *(f"bisect-{number}.json" for number in range(2, 10_000))]
    return next(folder / name for name in names if not (folder / name).exists())


def _report(text: str) -> None:
    if text:
        print(escape_control(f"ocrlab bisect: {text}").replace("\n", "\n  "), file=sys.stderr, flush=True)
