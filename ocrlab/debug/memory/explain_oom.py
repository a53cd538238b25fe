"""Why a run ran out of memory: its kind, seven questions answered, one sentence, and what to set."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ocrlab.debug.diagnosis import load_input
from ocrlab.debug.diagnosis.oom_message import LARGEST_CARD, size_text
from ocrlab.debug.memory import oom_inputs
from ocrlab.debug.memory.memory_series import Growth, Series
from ocrlab.debug.memory.oom_inputs import OomRun, SourceLine
from ocrlab.hardware.processes import exit_codes
from ocrlab.records import SCHEMA, Check, check_record, finite

KINDS = {
    "gpumem.capacity": "capacity",
    "gpumem.fragmentation": "fragmentation",
    "gpumem.foreign": "another process",
    "gpumem.leak": "leak",
    "gpumem.raw_alloc": "outside the cache",
    "gpumem.absurd_size": "absurd size",
    "wsl.limits": "WSL limit",
    "host.oom_kill": "killed by the host",
    "host.alloc_fail": "refused by the host",
    "host.shm": "shared memory",
}
PHRASES = {  # of a kind, as the sentence ends
    "capacity": "a step that is too large for the card",
    "another process": "the memory of another process",
    "leak": "a leak",
    "outside the cache": "allocations outside torch's cache",
    "pinned memory": "pinned host memory",
    "WSL limit": "a limit of WSL",
    "absurd size": "one request of an absurd size",
    "killed by the host": "the machine's memory, and the kernel killed it",
    "refused by the host": "a limit on host memory",
    "control group": "the memory limit of its control group, and the kernel killed it",
}
GROWS = ("capacity", "killed by the host", "refused by the host", "control group", "outside the cache", "fragmentation")
QUESTIONS = (
    "request and free memory",
    "memory of other processes",
    "fragmentation",
    "growth from step to step",
    "validation or the largest page",
    "outside torch's cache: pinned, shared, limits",
    "what fits instead",
)
ABSURD = 2**40  # bytes of one request
ROOM = 0.9  # of the limit that a proposal may use
FULL = 64 << 20  # bytes left in /dev/shm: less is full
PINNED = re.compile(r"pin_memory|cudaHostAlloc|CachingHostAllocator|pin memory thread")
GROUP_KILL = re.compile(r"Memory cgroup out of memory|CONSTRAINT_MEMCG|oom_memcg=")
NO_SPACE = re.compile(r"No space left on device[^\n]*|out of shared memory[^\n]*|insufficient shared memory[^\n]*")
CHECKPOINTING = "runtime.activation_checkpointing"


@dataclass(frozen=True)
class OomKind:
    """The disease: its kind, the id of the catalogue, how sure (0..1), and why in numbers; no kind where it is none."""

    kind: str = ""
    cause: str = ""
    confidence: float = 0.0
    why: str = ""


@dataclass(frozen=True)
class Remedy:
    """What to change: `settings` of `ocrlab train`, `environment` variables, and a sentence for everything else."""

    settings: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    do: str = ""

    @property
    def line(self) -> str:
        """The settings as they are typed."""
        return " ".join([*(f"{name}={value}" for name, value in self.environment.items()), *self.settings])


@dataclass
class OomAnswer:
    """The answer: the kind of failure, the seven checks, what to set, one sentence."""

    kind: OomKind
    checks: list[Check]
    remedy: Remedy
    sentence: str

    @property
    def record(self) -> dict[str, Any]:
        """The answer as JSON-ready data."""
        record: dict[str, Any] = {"schema": SCHEMA, "ran_out": bool(self.kind.kind), **asdict(self.kind)}
        record["checks"] = [check_record(check) for check in self.checks]
        record["remedy"] = {**asdict(self.remedy), "line": self.remedy.line}
        return dict(finite(record | {"sentence": self.sentence}))

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The checks as rows of a table."""
        return [(str(c.step), c.judgement.replace("fail", "FAIL"), c.name, c.observed) for c in self.checks]


def explain_oom(path: str) -> OomAnswer:
    """Return why the run of a log or a run folder ran out of memory; raises DataError where it cannot be read."""
    folder = Path(path) if path != "-" and Path(path).is_dir() else None
    run = oom_inputs.collect(load_input.read_incident(path), folder, _config(folder))
    kind = classify_oom(run)
    remedy = find_remedy(run, kind)
    return OomAnswer(kind, checks(run, kind, remedy), remedy, sentence(run, kind, remedy))


def _config(folder: Path | None) -> dict[str, Any]:
    """Return the settings of a run of `ocrlab train` under their dotted names; empty for any other."""
    settings: dict[str, Any] = {}
    if folder is not None and (folder / "config.yaml").is_file():
        with contextlib.suppress(Exception):  # of another version or program: the checks continue without it
            from ocrlab.config import schema as configs
            from ocrlab.config.fields import flat

            settings = flat(configs.load(folder / "config.yaml"))
    return settings


def sentence(run: OomRun, kind: OomKind, remedy: Remedy) -> str:
    """Return the answer in one sentence, with the remedy as a line of settings."""
    if not kind.kind:
        if not run.verdict.causes:
            return "There is no sign that memory ran out, and no other cause was found."
        first, *others = run.verdict.causes
        answer = f"Nothing here shows that memory ran out; the likely cause is {first.id} ({first.confidence:.2f})"
        also = [cause for cause in others if cause.id.startswith(oom_inputs.MEMORY)]
        return f"{answer}; {also[0].id} ({also[0].confidence:.2f}) looks the same." if also else f"{answer}."
    sure = "" if kind.confidence >= 0.8 else "most probably " if kind.confidence >= 0.6 else "perhaps "
    head = f"It ran out of memory, {sure}by {PHRASES.get(kind.kind, kind.kind)}: {kind.why}"
    return ". ".join(filter(None, [head, f"Set {remedy.line}" if remedy.line else remedy.do])) + "."


# The kind


def classify_oom(run: OomRun) -> OomKind:
    """Return which disease it is; empty where nothing says that memory ran out."""
    cause = run.cause
    if not cause or (cause == "host.oom_kill" and not killed_for_memory(run)):
        return OomKind()  # also for a bare SIGKILL whose reason nobody knows
    kind = OomKind(KINDS[cause], cause, run.verdict.causes[0].confidence, _why(run))
    if cause == "host.oom_kill" and killed_in_group(run):
        kind = replace(kind, kind="control group")
    elif cause in ("gpumem.raw_alloc", "wsl.limits") and PINNED.search(run.text):
        kind = replace(kind, kind="pinned memory", why="page-locked host memory was asked for and refused")
    elif cause == "host.alloc_fail" and run.refused and is_absurd(run):
        kind = OomKind("absurd size", "gpumem.absurd_size", 0.9, f"one request of {size_text(run.refused.request)}")
    if kind.kind not in GROWS:
        return kind
    # A leak is what certainly grew step by step, or what the leak watch named before memory ran out.
    leak = replace(kind, kind="leak", cause="gpumem.leak" if cause.startswith("gpumem.") else cause)
    if run.leak is not None:
        return replace(leak, confidence=0.95, why=run.leak.text)
    if run.steep is None:
        return kind
    series, grown = run.steep
    if grown.rise / max(series.values[-1], 1.0) < 0.2:  # it grows, but most of it was there from the start
        return kind
    return replace(leak, confidence=min(grown.confidence, 0.95), why=_growth_text(series, grown))


def is_absurd(run: OomRun) -> bool:
    """Return whether the host was asked for more than the whole machine could ever hold."""
    request = run.refused.request if run.refused else None
    return request is not None and (request >= ABSURD or request > 3 * (run.limit or LARGEST_CARD))


def killed_for_memory(run: OomRun) -> bool:
    """Return whether anything besides a SIGKILL supports a kill by the kernel."""
    if run.facts.get("oom_kills") or re.search(r"(?i)oom|out of memory|memory cgroup", run.text):
        return True
    died = "SIGKILL" in (run.incident.signal, exit_codes.signal_of_exit(run.incident.exit_code))
    return run.verdict.causes[0].confidence >= 0.6 or (died and run.steep is not None)


def killed_in_group(run: OomRun) -> bool:
    """Return whether the control group killed, and not the whole machine."""
    counted = run.facts.get("oom_kills") and "Out of memory: Killed" not in run.text
    return bool(GROUP_KILL.search(run.text) or counted)


def _why(run: OomRun) -> str:
    """Return the sum in words: of the message's judgement, else the verdict's first line of evidence."""
    for judged in run.judged:
        if judged.cause == run.cause:
            return judged.why
    if run.refused is not None and run.refused.request is not None and run.cause.startswith("host."):
        return f"{size_text(run.refused.request)} were asked for and refused"
    lines = run.verdict.causes[0].evidence
    return f"`{lines[0].text[:200].rstrip('.')}`" if lines else ""


def _growth_text(series: Series, grown: Growth) -> str:
    rate, low, high, rise = (size_text(int(size)) for size in (grown.rate, grown.low, grown.high, grown.rise))
    return f"{series.what} grew by {rate} a {series.unit} (95 %: {low} to {high}), {rise} in all"


# The remedy


def find_remedy(run: OomRun, kind: OomKind) -> Remedy:
    """Return what would let the run through; empty where memory did not run out."""
    workers = run.config.get("runtime.workers")
    fewer_workers = (f"runtime.workers={workers // 2}",) if isinstance(workers, int) and workers > 0 else ()
    match kind.kind:
        case "capacity":
            settings = _smaller_step(run, _share_that_fits(run))
            do = "A smaller batch with more accumulation, bf16, a smaller crop; `ocrlab memory fit` measures what fits"
            return Remedy(settings, do="" if settings else do)
        case "fragmentation":
            expandable = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
            return Remedy((), expandable, "Pad batches to a few sizes, so that blocks fit again")
        case "another process":
            return _other_card(run)
        case "leak" if run.leak is not None:
            return Remedy(do=run.leak.text.rpartition(". ")[2] or run.leak.text)
        case "leak":
            do = "ocrlab.debug.watch_leaks(model) around the loop names the line that keeps it"
            on_gpu = "; keep .item() or .detach(), and torch.no_grad() in validation"
            return Remedy(do=do + on_gpu if run.cause.startswith("gpumem.") else do)
        case "outside the cache":  # cuBLAS: eight workspaces of 16 KiB in place of megabytes for each stream
            return Remedy((), {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}, "Fewer NCCL communicators, streams and models")
        case "pinned memory":
            return Remedy(fewer_workers, do="DataLoader(pin_memory=False), or fewer batches ahead")
        case "WSL limit":
            return Remedy(do="Raise memory= in .wslconfig, or DataLoader(pin_memory=False)")
        case "absurd size":
            place = run.place
            where = f" at {place.file.rpartition('/')[2]}:{place.line} `{place.text}`" if place else ""
            return Remedy(do=f"Correct the shape{where}; no batch size fixes it")
        case "killed by the host" | "control group" | "refused by the host":
            if settings := fewer_workers or _smaller_step(run, 0.5):
                return Remedy(settings)
            if address := run.facts.get("address_space_bytes"):
                return Remedy(do=f"Raise ulimit -v ({size_text(address)}), or ask for less at a time")
            more = f"more than {size_text(run.limit)} for the container" if run.limit else "a larger memory limit"
            return Remedy(do=f"Fewer workers and a smaller batch or cache, or {more}")
        case "shared memory":
            settings = ("runtime.workers=0",) if run.config else ()
            return Remedy(settings, do="docker run --shm-size=8g or --ipc=host; or fewer workers")
    return Remedy()


def smaller_batch(config: dict[str, Any], share: float) -> tuple[str, ...]:
    """Return settings with at most `share` of the batch and as many steps accumulated for the same effective batch.

    Where the batch is one already, a smaller crop.
    """
    batch = int(config.get("batch_size") or 0)
    if batch < 1:
        return ()
    if batch == 1:
        crop = int(config.get("crop") or 512)
        side = max(64, int(crop * math.sqrt(min(share, 0.75))) // 32 * 32)
        return (f"crop={side}",) if side < crop else ()
    whole = batch * int(config.get("trainer.accumulate_grad_batches") or 1)
    fits = max(size for size in range(1, max(1, math.floor(batch * share)) + 1) if whole % size == 0)
    return (f"batch_size={fits}", f"trainer.accumulate_grad_batches={whole // fits}")


def _smaller_step(run: OomRun, share: float) -> tuple[str, ...]:
    """Return a smaller batch; of a batch of one what costs time, and then only what costs what is learned."""
    if run.config.get("batch_size") == 1 and run.config.get(CHECKPOINTING) is False:
        return (f"{CHECKPOINTING}=true",)
    return smaller_batch(run.config, share)


def _share_that_fits(run: OomRun) -> float:
    """Return the part of the batch that would have fitted, half of it where the message does not tell."""
    message = run.message
    if not (message and message.total and message.ours and message.request):
        return 0.5
    limit = min(message.total - max((message.foreign or 0), 0), message.allowed or message.total)
    return min(0.99, max(0.1, ROOM * limit / (message.ours + message.request)))


def _other_card(run: OomRun) -> Remedy:
    """Return the processes to end, and the card with most free memory at the failure where that is enough."""
    message = run.message
    others = (message.others if message else None) or {}
    pids = sorted(others, key=lambda pid: -others[pid])
    who = f"End process {' '.join(map(str, pids[:4]))}" if pids else "End who holds the card: `ocrlab memory watch`"
    busy, needed = (message.device, (message.ours or 0) + (message.request or 0)) if message else (None, 0)
    free = [(card.get("free") or 0, index) for index, card in enumerate(run.cards) if index != busy]
    most, card = max(free, default=(0, 0))
    if most > needed:
        return Remedy((), {"CUDA_VISIBLE_DEVICES": str(card)}, who)
    return Remedy(do=f"{who}; or choose a free card with CUDA_VISIBLE_DEVICES")


# The seven questions


def checks(run: OomRun, kind: OomKind, remedy: Remedy) -> list[Check]:
    """Return the seven answers in their order."""
    questions: tuple[Callable[[OomRun], Check], ...] = (_asked, _others, _pieces, _grows, _phase, _outside)
    if not kind.kind:
        instead = _check("skip", "no sign that memory ran out")
    elif remedy.line:
        instead = _check("ok", "; ".join(filter(None, (remedy.line, remedy.do))))
    else:
        instead = _check("warn", remedy.do or "no known setting fits", do="ocrlab memory fit measures what fits")
    answers = zip(QUESTIONS, [*(question(run) for question in questions), instead], strict=True)
    return [replace(answer, name=name, step=step) for step, (name, answer) in enumerate(answers, 1)]


def _check(judgement: str, observed: str, where: SourceLine | str | None = None, **more: Any) -> Check:
    return Check("", judgement, f"{observed} ({where})" if where else observed, **more)


def _asked(run: OomRun) -> Check:
    message, refused = run.message, run.refused
    if message is not None and message.request is not None:
        observed = f"{size_text(message.request)} asked for"
        if message.free is not None:
            observed += f", {size_text(message.free)} free of {size_text(message.total)}"
            observed += f"; this process holds {size_text(message.ours)}"
        observed += f"; {size_text(message.allowed)} allowed" if message.allowed is not None else ""
        if run.judged and run.judged[0].cause == "gpumem.absurd_size":
            need = "a request that some card could hold"
            return _check("fail", observed, run.message_at, cause="gpumem.absurd_size", need=need)
        if message.free is None or message.request > message.free:
            return _check("fail", observed, run.message_at, cause="gpumem.capacity")
        return _check("warn", observed, run.message_at)
    if refused is not None:
        limit = run.facts.get("address_space_bytes") or run.limit
        observed = "" if refused.request is None else f"{size_text(refused.request)} of "
        observed += "host memory asked for" + (f" for an array {refused.shape}" if refused.shape else "")
        observed += f", {size_text(limit)} allowed" if limit else ""
        cause = "gpumem.absurd_size" if is_absurd(run) else "host.alloc_fail"
        return _check("fail", observed, run.refused_at, cause=cause)
    peak, limit = run.facts.get("memory_peak_bytes"), run.limit
    if peak and limit:
        observed = f"peak of {size_text(peak)}, {size_text(limit)} allowed"
        return _check("fail" if peak >= 0.9 * limit else "ok", observed, "facts.json")
    return _check("skip", "no message with numbers, and no measurement of `ocrlab watch`")


def _others(run: OomRun) -> Check:
    message = run.message
    index = message.device if message and message.device is not None else 0
    names = ", ".join(
        f"{process.get('name') or 'process'} {process['pid']} {size_text(process.get('bytes'))}"
        for card in run.cards[index : index + 1]
        for process in card.get("processes", ())
        if not process.get("ours")
    )
    if message is not None and message.total and message.free is not None and message.ours is not None:
        foreign = message.foreign or 0
        who = ", ".join(f"process {pid} {size_text(size)}" for pid, size in (message.others or {}).items()) or names
        observed = f"{size_text(foreign)} of {size_text(message.total)} are neither free nor in this process"
        observed += f": {who}" if who else ""
        if run.speaks_for("gpumem.foreign"):
            return _check("fail", observed, run.message_at, cause="gpumem.foreign")
        return _check("warn" if foreign >= 0.1 * message.total else "ok", observed, run.message_at)
    if names:
        return _check("warn", f"on the card at the failure: {names}", "facts.json", cause="gpumem.foreign")
    if run.cards:
        return _check("ok", "no other process was on the card at the failure", "facts.json")
    if killed_in_group(run) or run.cause.startswith("host."):
        return _check("skip", "host memory: all processes of the control group or machine share it")
    return _check("skip", "not in the message; `ocrlab memory watch` shows the processes that use it now")


def _pieces(run: OomRun) -> Check:
    message, cause = run.message, "gpumem.fragmentation"
    if message is None or message.unallocated is None or message.request is None:
        return _check("skip", "the message does not name reserved but unallocated memory")
    idle, request = size_text(message.unallocated), size_text(message.request)
    observed = f"{idle} reserved but unallocated against a request of {request}"
    if run.speaks_for(cause):
        observed += ": the largest free block is smaller than the request"
        return _check("fail", observed, run.message_at, cause=cause)
    return _check("warn" if any(judged.cause == cause for judged in run.judged) else "ok", observed, run.message_at)


def _grows(run: OomRun) -> Check:
    if run.leak is not None:
        return _check("fail", run.leak.text, run.leak, cause="gpumem.leak")
    if not run.grown:
        return _check("skip", "no measurements of memory over time (recorder.on=true, or run it under `ocrlab watch`)")
    series, grown = run.steep or run.grown[0]
    text = f"{_growth_text(series, grown)}; {grown.points} points"
    if run.steep:
        cause = "gpumem.leak" if series.where == "gpu" else "host.oom_kill"
        return _check("fail", f"{text}, {100 * grown.confidence:.1f} % sure", series.source, cause=cause)
    if grown.grows:
        return _check("warn", f"{text}, during the start, as in every program", series.source)
    points, highest = f"{grown.points} points of {series.what}", size_text(int(max(series.values)))
    return _check("ok", f"it does not grow: {points}, peak of {highest}", series.source)


def _phase(run: OomRun) -> Check:
    at = f" in step {run.step}" if run.step is not None else ""
    named = f"; its batch: {', '.join(run.samples[:8])}" if run.samples else ""
    if run.phase.startswith("valid"):
        do = "torch.no_grad(), smaller pages"
        return _check("fail", f"it ended in validation{at}{named}", run.phase_at, do=do)
    if run.phase:
        first = ": the first one, before anything could grow" if run.step == 0 else ""
        judgement = "warn" if run.samples and not first else "ok"
        return _check(judgement, f"it ended in {run.phase}{at}{first}{named}", run.phase_at)
    if run.place:
        return _check("ok", f"not in validation; the allocation is at {run.place} `{run.place.text}`")
    return _check("skip", "phase and page at the failure are unknown")


def _outside(run: OomRun) -> Check:
    facts, message = run.facts, run.message
    left, address = facts.get("shm_free_bytes"), facts.get("address_space_bytes")
    if run.cause in ("gpumem.raw_alloc", "wsl.limits") and (pinned := PINNED.search(run.text)):
        return _check("fail", f"it failed in {pinned[0]}: page-locked host memory", cause=run.cause)
    if run.cause == "host.shm":
        space = NO_SPACE.search(run.text)
        more = f"; {size_text(left)} are left in /dev/shm" if left is not None else ""
        return _check("fail", f"{space[0] if space else 'shared memory is exhausted'}{more}", cause="host.shm")
    if facts.get("oom_kills"):
        observed = f"the control group's oom_kill counter grew by {facts['oom_kills']}"
        return _check("fail", observed, "facts.json", cause="host.oom_kill")
    if killed_in_group(run):
        where = run.verdict.causes[0].evidence[0].file
        return _check("fail", "the kernel killed a process of the control group", where)
    if address:
        observed = f"ulimit -v allows {size_text(address)} of address space"
        return _check("fail" if run.cause == "host.alloc_fail" else "warn", observed, "facts.json")
    if message is not None and message.outside is not None:
        for judged in run.judged:
            if judged.cause == "gpumem.raw_alloc":
                return _check("fail", judged.why, run.message_at, cause=judged.cause)
        outside = f"{size_text(message.outside)} of this process are outside torch's allocator: a context"
        return _check("ok", outside, run.message_at)
    if left is not None:
        observed = f"{size_text(left)} are left in /dev/shm; no kill was counted"
        return _check("warn" if left < FULL else "ok", observed, "facts.json")
    return _check("skip", "not measured: run it under `ocrlab watch`")
