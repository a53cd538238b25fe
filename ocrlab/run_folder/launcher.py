"""Several processes that train one model: which of them this one is, and what each of them says of its end.

The launcher sets environment variables: torchrun (that of `ocrlab train --nproc` too) and SLURM's srun. Each rank
writes a small record, `rank-N.json`, into the folder of its watcher and the run's flight/, so that the one that failed
first is not confused with those that only lost their connection to it. Standard library only."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ocrlab.errors import ConfigError, OcrlabError
from ocrlab.records import SCHEMA
from ocrlab.run_folder import watcher_link
from ocrlab.run_folder.atomic_files import read_json, write_json
from ocrlab.run_folder.exception_record import describe

FOLDER = "ranks"
INTERACTIVE = ("bash", "interactive")  # names of SLURM jobs in which a person starts programs by hand
# What a rank prints whose neighbour has gone: gloo, NCCL, the store of torchrun.
SECONDARY = re.compile(
    r"Connection (?:closed|reset|refused)(?: by (?:remote )?peer)?|Broken pipe|ncclRemoteError"
    r"|Timed out waiting \d+ms for|NCCL communicator was aborted|recvBytes failed|sendBytes failed"
    r"|Socket (?:closed|Timeout)|failed to recv|remote process exited|connection to another rank broke"
)
ALONE = {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0"}
ALONE |= {"SLURM_NTASKS": "1", "SLURM_NTASKS_PER_NODE": "1", "SLURM_NNODES": "1"}
ALONE |= {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
HOLDS = "a replay holds one rank only"  # the error if it would need another one
TAKES = "ocrlab replay: the program takes values of another rank, which are not there, by "  # begins a line
LOSES = re.compile(r"RuntimeError|RunError|Dist\w*Error")  # types of errors that say so


@dataclass(frozen=True)
class Ranks:
    """This process among `world` that train together, `local` of `on_node` on its machine; the first one is rank 0."""

    rank: int = 0
    world: int = 1
    local: int = 0
    on_node: int = 1
    launcher: str = ""  # torchrun, srun; empty where there is none

    @property
    def first(self) -> bool:
        """Whether this is the one that writes checkpoints and speaks."""
        return self.rank == 0

    @property
    def several(self) -> bool:
        """Whether there are others."""
        return self.world > 1

    @property
    def nodes(self) -> int:
        """How many machines take part, each with as many ranks."""
        return max(1, self.world // self.on_node)


def detect_ranks(environment: Mapping[str, str] | None = None) -> Ranks:
    """Return which rank a launcher has made this process, one of one where there is none; raises ConfigError."""
    variables = os.environ if environment is None else environment
    if watcher_link.REPLAY in variables:  # one rank is replayed without the others
        return Ranks()
    by_srun = "SLURM_PROCID" in variables and variables.get("SLURM_JOB_NAME") not in INTERACTIVE
    if "TORCHELASTIC_RUN_ID" in variables and "RANK" in variables:
        launcher, names = "torchrun", ["RANK", "WORLD_SIZE", "LOCAL_RANK"]
        on_node = _number(variables, "LOCAL_WORLD_SIZE")
    elif by_srun and _number(variables, "SLURM_NTASKS", "1") > 1:
        launcher, names = "srun", ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"]
        on_node = _tasks_here(variables)
    else:
        return Ranks()
    rank, world, local = (_number(variables, name) for name in names)
    if not (0 <= rank < world and 0 <= local < on_node) or world % on_node:
        got = f"rank {rank} of {world}, {local} of {on_node} on this machine"
        need = "ranks counted from 0, and as many on each machine"
        raise ConfigError(f"What {launcher} reports about this process is inconsistent", got=got, need=need)
    return Ranks(rank, world, local, on_node, launcher)


def single(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment that are to say something else, for a process that is the only one."""
    return {name: value for name, value in ALONE.items() if name in environment}


def outside(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what a program has set in a process that it has started: which rank it is."""
    own = () if "TORCHELASTIC_RUN_ID" in environment else ("RANK", "LOCAL_RANK")
    return {name: value for name, value in environment.items() if name not in own}


def _number(variables: Mapping[str, str], name: str, otherwise: str = "") -> int:
    text = variables.get(name, otherwise)
    with suppress(ValueError):
        return int(text)
    need = "a whole number, as torchrun and srun set it"
    raise ConfigError(f"{name} has an unusable value", got=repr(text), need=need)


def _tasks_here(variables: Mapping[str, str]) -> int:
    """Return how many tasks srun has started on each node: `2(x3)` is two on each of three."""
    for name in ("SLURM_NTASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"):
        if match := re.fullmatch(r"(\d+)(?:\(x\d+\))?", variables.get(name, "")):
            return int(match[1])
    return _number(variables, "SLURM_NTASKS") // max(1, _number(variables, "SLURM_NNODES", "1"))


@dataclass
class RankRecord:
    """The record of this rank, in every folder where it is looked for; nothing in here raises."""

    ranks: Ranks
    folders: list[Path] = field(default_factory=list)
    record: dict[str, Any] = field(default_factory=dict)

    def begin(self, *, gpu: bool | None = None, watched: bool = True) -> None:
        """Say that this rank exists, to its watcher if there is one that is to know, and whether there is a GPU."""
        if not self.ranks.several:
            return
        pid, host = os.getpid(), socket.gethostname()
        self.record = {"schema": SCHEMA, **asdict(self.ranks), "pid": pid, "host": host, "gpu": gpu, "end": None}
        watcher = os.environ.get(watcher_link.FOLDER)
        if watcher and watched:
            self.keep(Path(watcher))

    def keep(self, folder: Path) -> None:
        """Write the record below `folder`, too."""
        if self.record:
            self.folders.append(folder / FOLDER)
            self.write()

    def end(self, how: str, *, step: int | None = None, error: BaseException | None = None) -> None:
        """Say how this rank has ended: success, stopped or failed; the first word is the last one."""
        if not self.record or self.record["end"] is not None:
            return
        try:
            self._write_end(how, step, error)
        except BaseException:  # a signal's: torchrun ends all ranks within milliseconds of the first one's end
            self._write_end(how, step, error)
            raise

    def _write_end(self, how: str, step: int | None, error: BaseException | None) -> None:
        about = None
        if error is not None:
            full = describe(error)
            about = {name: full[name] for name in ("type", "message", "where", "your_code")}
            about["rank"] = getattr(error, "rank", None)  # which rank it is about, where all of them raise it
        self.record["end"] = {"how": how, "time": time.time(), "step": step, "error": about}
        self.write()

    def write(self) -> None:
        """Write the record everywhere; a full disk must not hide why a rank has failed."""
        for folder in self.folders:
            with suppress(OSError):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_json(folder / f"rank-{self.ranks.rank}.json", self.record, private=True)


def member(flight: Path, rank: int, world: int) -> RankRecord:
    """Return the record of how this rank of `world` ends, in a flight/; one rank alone keeps none."""
    record = RankRecord(Ranks(rank, world))
    record.begin(watched=False)
    record.keep(flight)
    record.record.setdefault("end", None)  # of a single rank, which writes none
    return record


def read(folder: Path) -> list[dict[str, Any]]:
    """Return the records of the ranks below a watcher's folder or a run's flight/, by rank; those that can be read."""
    records = [read_json(path) for path in folder.glob(f"{FOLDER}/rank-*.json")]
    return sorted((each for each in records if isinstance(each.get("rank"), int)), key=lambda each: int(each["rank"]))


def title(record: Mapping[str, Any]) -> str:
    """Return the name of a rank: its number, of how many where that is known, and its process."""
    of = f" of {record['world']}" if int(record.get("world") or 0) > record["rank"] else ""
    return f"rank {record['rank']}{of} (process {record['pid']})"


def secondary(error: Mapping[str, Any]) -> bool:
    """Return whether an error ({"type", "message"}) only says that another rank is gone.

    torch raises a RuntimeError or a DistError for that. A download or a pipe that says the same is a cause of its own.
    """
    kind = str(error.get("type", "")).rpartition(".")[2]
    return LOSES.fullmatch(kind) is not None and SECONDARY.search(str(error.get("message", ""))) is not None


def others_word(folder: Path, rank: int) -> str | None:
    """Return what the first other rank has failed of, in a sentence; None where none has failed by itself."""
    for other in _own_failures([record for record in read(folder) if record["rank"] != rank]):
        return "rank {}: {type}: {message}".format(other["rank"], **other["end"]["error"])
    return None


def blamed(records: list[dict[str, Any]]) -> int:
    """Return the rank to look at: the first that failed by itself, else one that left no word, else rank 0."""
    if own := _own_failures(records):
        about = own[0]["end"]["error"].get("rank")
        return int(own[0]["rank"] if about is None else about)
    silent = [int(record["rank"]) for record in records if not record.get("end")]
    return silent[0] if silent and len(silent) < len(records) else 0


def _own_failures(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the records of the ranks that failed by themselves, in the order in which they failed."""
    failed = [record for record in records if (record.get("end") or {}).get("how") == "failed"]
    own = [each for each in failed if each["end"].get("error") and not secondary(each["end"]["error"])]
    return sorted(own, key=lambda record: float(record["end"]["time"]))


def brief(error: BaseException) -> str:
    """Return an error in one line."""
    return str(error) if isinstance(error, OcrlabError) else f"{type(error).__name__}: {error}"


def report_exits(ended: list[dict[str, Any]]) -> None:
    """Tell the watcher, if there is one, how ranks have ended: {"rank", "pid", "exit_code", negative for a signal}."""
    if folder := os.environ.get(watcher_link.FOLDER):
        write_exits(Path(folder), ended)


def write_exits(folder: Path, ended: list[dict[str, Any]]) -> None:
    """Write how ranks have ended beside their own records; a rank that was killed wrote nothing."""
    with suppress(OSError):
        place = folder / FOLDER
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(place / "exits.json", {"schema": SCHEMA, "ranks": ended}, private=True)


def note_launched(folder: Path, error: BaseException) -> None:
    """Write how a process ended that this one has started, as torch's launcher says it in the error that it raises
    (ProcessRaisedException); `folder` is the run's flight/. In the process itself no hook of Lightning is called.
    """
    path = folder / FOLDER / f"rank-{getattr(error, 'error_index', None)}.json"
    record, lines = read_json(path), str(error).strip().splitlines()
    if record and lines and record.get("end") is None:
        kind, _, message = lines[-1].partition(": ")
        about = {"type": kind, "message": message, "where": None, "your_code": None, "rank": None}
        record["end"] = {"how": "failed", "time": time.time(), "step": None, "error": about}
        with suppress(OSError):
            write_json(path, record, private=True)


def exits(folder: Path) -> list[dict[str, Any]]:
    """Return how ranks have ended, as written below a watcher's folder or a run's flight/."""
    rows = read_json(folder / FOLDER / "exits.json").get("ranks")
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


SUMMARY = re.compile(  # torchrun's, of each rank that failed
    r"^\s*rank\s*:\s*(?P<rank>\d+) \(local_rank: \d+\)\s*\n\s*exitcode\s*:\s*(?P<code>-?\d+) \(pid: (?P<pid>\d+)\)",
    re.MULTILINE,
)


def torchrun_failures(log: str) -> list[dict[str, Any]]:
    """Return the ranks of the last summary in a log: {"rank", "pid", "exit_code" (negative for a signal), "line"}."""
    text, ranks = re.sub(r"(?m)^\[default\d+\]:", "", log), dict[int, dict[str, Any]]()
    for hit in SUMMARY.finditer(text):
        rank, line = int(hit["rank"]), text.count("\n", 0, hit.start("code")) + 1
        ranks[rank] = {"rank": rank, "pid": int(hit["pid"]), "exit_code": int(hit["code"]), "line": line}
    return [ranks[rank] for rank in sorted(ranks)]
