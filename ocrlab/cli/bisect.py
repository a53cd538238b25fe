"""`ocrlab bisect`: which setting, settings together, or page makes a training fail, by short watched runs."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ocrlab import run_folder, safe_read
from ocrlab.cli import consent, output_paths
from ocrlab.cli.parser import COUNT, NATURAL, POSITIVE, Answer, Parser, number, reporter, table
from ocrlab.errors import ConfigError, OcrlabError, RunError
from ocrlab.redaction import clean, clean_record

if TYPE_CHECKING:
    from ocrlab.debug.bisect.bisect_job import BisectJob, Limits

TAKES_PROGRAM = True  # the words after -- are a command of the user
FOLDER, RECORD = "bisect", "bisect.json"
_report = reporter("bisect")
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
    add = parser.add_argument
    add(
        "what",
        nargs="*",
        metavar="RUN|CONFIG.yaml|key=value",
        help="the failing run or config, and settings that override it",
    )
    add(
        "--against",
        nargs="+",
        action="extend",
        default=[],
        metavar="key=value",
        help="values to try instead of the failing ones (default: everything that can be changed)",
    )
    add(
        "--factor",
        action="append",
        default=[],
        metavar="NAME=BAD:GOOD",
        help="a setting of COMMAND with its failing and its working value: replaces {NAME} in COMMAND, else sets the "
        "environment variable NAME. Write BAD::GOOD if a value contains a colon. Two JSON, YAML or TOML files are "
        "compared key by key",
    )
    add(
        "--samples",
        metavar="NAME=PATH",
        help="find the failing sample in a folder, a list of lines, CSV or JSON, which COMMAND gets as {NAME}",
    )
    add("--runs", type=COUNT, default=60, metavar="N", help="maximum number of runs (default: 60)")
    add(
        "--error",
        type=number(float, "a probability between 0 and 0.5", lambda value: 0 < value < 0.5),
        default=0.05,
        metavar="P",
        help="accepted probability of a wrong answer (default: 0.05)",
    )
    add(
        "--rate",
        type=number(float, "a probability above 0, at most 1", lambda value: 0 < value <= 1),
        metavar="P",
        help="how often it fails, if you know: 0.3 = 3 of 10 runs (default: estimated)",
    )
    add(
        "--again",
        type=NATURAL,
        default=3,
        metavar="N",
        help="repeat the decisive runs N times if there are several factors or a run takes under 20 s (default: 3)",
    )
    add("--steps", type=COUNT, metavar="N", help="optimizer steps of each run (default: up to the step that failed)")
    add("--timeout", type=POSITIVE, default=300.0, metavar="S", help="maximum seconds for each run (default: 300)")
    add("--minutes", type=POSITIVE, metavar="M", help="maximum minutes for all runs (default: no limit)")


def run(args: argparse.Namespace) -> Answer:
    """Bisect and answer with the culprit, its evidence, and the table of what failed and what passed."""
    from ocrlab.debug.bisect.bisect_job import Limits

    seconds = 60 * args.minutes if args.minutes else None
    limits = Limits(args.runs, args.error, args.timeout, seconds, args.rate, args.again)
    words = [*args.what, *(word for word in args.against if "=" not in word)]
    args.against = [word for word in args.against if "=" in word]
    folders = [Path(word) for word in words if Path(word).is_dir()]
    rest = [word for word in words if not Path(word).is_dir()]  # a config file and settings
    places = [*folders, *(Path(word) for word in rest if "=" not in word)]
    if len(places) > 1:
        got = " and ".join(map(str, places))
        raise ConfigError("Only one run or config can be bisected at a time", got=got, need="one")
    if places and not places[0].exists():
        raise ConfigError(f"{places[0]} does not exist", need="a run folder, a YAML file, or key=value")
    folder = folders[0] if folders else None
    if args.program:
        return _bisect_program(args, folder, rest, limits)
    if args.factor or args.samples:
        what = "--factor" if args.factor else "--samples"
        raise ConfigError(f"{what} needs a command to run", need="-- COMMAND at the end, or --against key=value")
    if not words:
        raise ConfigError("Nothing to bisect", need="a run folder, a config, or settings", do="See --help")
    return _bisect_training(args, folder, rest, limits)


def _bisect_training(args: argparse.Namespace, folder: Path | None, rest: list[str], limits: Limits) -> Answer:
    from ocrlab.config import schema as configs
    from ocrlab.debug.bisect import training_trials
    from ocrlab.debug.bisect.bisect_job import BisectJob, digest, file_stamps
    from ocrlab.debug.trials.consent import RecordedProgram, require_consent

    file = folder / "config.yaml" if folder else next((Path(word) for word in rest if "=" not in word), None)
    if folder and file:
        if not file.is_file():
            need = "a run of ocrlab train; for any other program --factor NAME=BAD:GOOD ... -- COMMAND"
            raise ConfigError(f"{folder} has no config.yaml", need=need)
        program = RecordedProgram(folder, [file], ["ocrlab", "train", "--config", str(file), *rest])
        consent.with_consent(lambda trust: require_consent(program, trust, _report), args.trust)
    config = configs.load(file, [word for word in rest if "=" in word])
    if not (folder or args.against or configs.differences(configs.load(), config)):
        need = "a training that fails: its run folder, its config, or settings"
        raise ConfigError(f"{' '.join(rest)} sets nothing beside the defaults", need=need)
    if args.against:
        flips = training_trials.factors_against(config, args.against)
    else:
        flips = training_trials.config_factors(config)
    step, samples = (training_trials.find_failed_step(folder) if folder else None) or (None, [])
    steps = args.steps or (training_trials.STEPS if step is None else step + 1 + training_trials.MARGIN)
    steps = min(steps, config.trainer.max_steps)
    plan = f"{steps} optimizer step{'' if steps == 1 else 's'} a run"
    plan += "" if step is None else f"; it failed in step {step}"
    with _open_home(folder, Path(config.runs)) as home:
        place = home / "flight" / FOLDER
        data = file_stamps([Path(config.data)])
        mark = digest(configs.dump(config), steps, [(flip.name, flip.good) for flip in flips], data)
        job = BisectJob(flips, [], training_trials.starter(config, flips, place, steps), place, limits, mark)
        return _search(job, folder, home, plan, samples)


def _bisect_program(args: argparse.Namespace, folder: Path | None, rest: list[str], limits: Limits) -> Answer:
    from ocrlab.debug.bisect import factors, program_trials
    from ocrlab.debug.bisect import sample_lists as lists
    from ocrlab.debug.bisect.bisect_job import BisectJob, digest, file_stamps

    if rest or args.against or args.steps:
        got = " ".join(rest) or None
        raise ConfigError("Settings are only for ocrlab train", got=got, need="--factor NAME=BAD:GOOD")
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
    with _open_home(folder, Path("runs")) as home:
        job = BisectJob(flips, [], start, home / "flight" / FOLDER, limits, mark)
        if samples is not None:
            job.unit, job.names = samples.unit, samples.names
        return _search(job, folder, home)


def _search(
    job: BisectJob, folder: Path | None, home: Path, plan: str = "", hinted_samples: Sequence[str] = ()
) -> Answer:
    """Report the plan, search the factors and then the samples where the data is to blame, and write the record."""
    from ocrlab.debug.bisect import bisect_summary, factors, sample_search
    from ocrlab.debug.bisect.bisect_job import run_bisect
    from ocrlab.debug.diagnosis import classify, load_input
    from ocrlab.debug.trials import trial

    verdict = None
    if folder:
        job.wanted, job.failure = trial.recorded_failure(folder) or (None, "")
        with contextlib.suppress(OcrlabError):
            verdict = classify.classify(load_input.read_incident(str(folder)))
    else:
        job.earlier_folders = _unfinished_folders(home.parent)
    job.suspicion, job.is_ordered = factors.suspicion_weights(job.factors, verdict), bool(verdict and verdict.causes)
    _report(bisect_summary.plan(job.factors, job.limits, len(job.names), job.unit))
    _report(plan)

    def report_run(row: dict[str, Any]) -> None:
        _report(bisect_summary.line(len(job.rows), row, job.unit))

    answer, search = run_bisect(job, report_run)
    names = job.names
    if not names and (job.folder / "pages.json").is_file():  # written by a training
        from ocrlab.debug.bisect import training_trials

        names = training_trials.read_page_names(job.folder)
    culprits, count = None, len(names)
    to_blame = count > 1 and factors.DATA in [job.factors[index].name for index in answer.items]
    if (job.names and answer.status in ("found", "none")) or to_blame:
        runs = bisect_summary.halvings(count) * search.tries
        _report(f"{count} {job.unit}s are halved until those remain that fail, in {runs} runs at most if it is one")
        hint = [index for index, name in enumerate(names) if name in hinted_samples]
        rate = search.failure_rate if search.is_flaky else 1.0
        culprits = sample_search.find_culprits(job, count, rate, report_run, hint)
    record = clean_record(bisect_summary.record(job, answer, search, culprits, names))
    file = output_paths.unused(home / "incident" / RECORD)
    file.parent.mkdir(parents=True, exist_ok=True)
    run_folder.write_json(file, record)
    rows = "\n".join(filter(None, [bisect_summary.legend(job), table(bisect_summary.table(job))]))
    text = f"{clean(rows)}\n\n{record['sentence']}\n{file}"
    return Answer({**record, "file": str(file)}, text, 0 if answer.status in ("found", "none") else 1)


@contextlib.contextmanager
def _open_home(folder: Path | None, runs: Path) -> Iterator[Path]:
    """Yield the run folder that everything is written into: that of the run, or a new one, closed at the end."""
    if folder is None:
        with run_folder.run(runs, FOLDER) as run:
            yield run.path
            run.succeed({})
    elif run_folder.status(folder).status == "running":
        raise RunError(f"{folder} is still running", need="a run that has ended")
    else:
        yield folder.absolute()


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
