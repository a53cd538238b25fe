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
from ocrlab.debug.memory.oom_inputs import OomRun, SourceLine
from ocrlab.hardware.processes import exit_codes
from ocrlab.records import SCHEMA, Check, check_record, finite


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
ABSURD = 2**40  # bytes of one request
PINNED = re.compile(r"pin_memory|cudaHostAlloc|CachingHostAllocator|pin memory thread")
GROWS = ("capacity", "killed by the host", "refused by the host", "control group", "outside the cache", "fragmentation")


def classify_oom(run: OomRun) -> OomKind:
    """Return which disease it is; empty where nothing says that memory ran out."""
    cause = run.cause
    if not cause or (cause == "host.oom_kill" and not killed_for_memory(run)):
        return OomKind()  # also for a bare SIGKILL whose reason nobody knows
    kind = OomKind(KINDS[cause], cause, run.verdict.causes[0].confidence, _why(run))
    if cause == "host.oom_kill" and killed_in_group(run):
        kind = replace(kind, kind="control group")
    if cause in ("gpumem.raw_alloc", "wsl.limits") and PINNED.search(run.text):
        kind = replace(kind, kind="pinned memory", why="page-locked host memory was asked for and refused")
    if cause == "host.alloc_fail" and run.refused and is_absurd(run):
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
    rate, low, high, rise = (size_text(int(size)) for size in (grown.rate, grown.low, grown.high, grown.rise))
    why = f"{series.what} grew by {rate} a {series.unit} (95 %: {low} to {high}), {rise} in all"
    return replace(leak, confidence=min(grown.confidence, 0.95), why=why)


def is_absurd(run: OomRun) -> bool:
    """Return whether the host was asked for more than the whole machine could ever hold."""
    request = run.refused.request if run.refused else None
    limit = run.limit
    return request is not None and (request >= ABSURD or request > 3 * (limit or LARGEST_CARD))


def killed_for_memory(run: OomRun) -> bool:
    """Return whether anything besides a SIGKILL supports a kill by the kernel."""
    log = run.text
    if run.facts.get("oom_kills") or re.search(r"(?i)oom|out of memory|memory cgroup", log):
        return True
    sure = bool(run.verdict.causes) and run.verdict.causes[0].confidence >= 0.6
    died = run.incident.signal == "SIGKILL" or exit_codes.signal_of_exit(run.incident.exit_code) == "SIGKILL"
    return sure or (died and run.steep is not None)


def killed_in_group(run: OomRun) -> bool:
    """Return whether the control group killed, and not the whole machine."""
    return bool(re.search(r"Memory cgroup out of memory|CONSTRAINT_MEMCG|oom_memcg=", run.text)) or bool(
        run.facts.get("oom_kills") and "Out of memory: Killed" not in run.text
    )


def _why(run: OomRun) -> str:
    """Return the sum in words: of the message's judgement, else the verdict's first line of evidence."""
    for judged in run.judged:
        if judged.cause == run.cause:
            return judged.why
    if run.refused is not None and run.refused.request is not None and run.cause.startswith("host."):
        return f"{size_text(run.refused.request)} were asked for and refused"
    lines = run.verdict.causes[0].evidence
    return f"`{lines[0].text[:200].rstrip('.')}`" if lines else ""


ROOM = 0.9  # of the limit that a proposal may use
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
AGAIN = "runtime.activation_checkpointing"
SMALL_WORKSPACE = {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}  # cuBLAS: eight of 16 KiB in place of megabytes for each stream


def find_remedy(run: OomRun, kind: OomKind) -> Remedy:
    """Return what would let the run through; empty where memory did not run out."""
    match kind.kind:
        case "capacity":
            settings = _less(run, _share_that_fits(run))
            do = "A smaller batch with more accumulation, bf16, a smaller crop; `ocrlab memory fit` measures what fits"
            return Remedy(settings, {}, "" if settings else do)
        case "fragmentation":
            return Remedy((), EXPANDABLE, "Pad batches to a few sizes, so that blocks fit again")
        case "another process":
            return _elsewhere(run)
        case "leak":
            return _leak(run)
        case "outside the cache":
            return Remedy((), SMALL_WORKSPACE, "Fewer NCCL communicators, streams and models")
        case "pinned memory":
            return Remedy(_fewer_workers(run), do="DataLoader(pin_memory=False), or fewer batches ahead")
        case "WSL limit":
            return Remedy(do="Raise memory= in .wslconfig, or DataLoader(pin_memory=False)")
        case "absurd size":
            place = run.place
            where = f" at {place.file.rpartition('/')[2]}:{place.line} `{place.text}`" if place else ""
            return Remedy(do=f"Correct the shape{where}; no batch size fixes it")
        case "killed by the host" | "control group" | "refused by the host":
            return _host(run)
        case "shared memory":
            settings = ("runtime.workers=0",) if run.config else ()
            return Remedy(settings, do="docker run --shm-size=8g or --ipc=host; or fewer workers")
    return Remedy()


def smaller_batch(config: dict[str, Any], share: float = 0.5) -> tuple[str, ...]:
    """Return settings with at most `share` of the batch and as many steps accumulated for the same effective batch.

    Where the batch is one already, a smaller crop.
    """
    batch = int(config.get("batch_size") or 0)
    if batch < 1:
        return ()
    steps = int(config.get("trainer.accumulate_grad_batches") or 1)
    most = max(1, math.floor(batch * share))
    if batch == 1:
        crop = int(config.get("crop") or 512)
        side = max(64, int(crop * math.sqrt(min(share, 0.75))) // 32 * 32)
        return (f"crop={side}",) if side < crop else ()
    fits = max(size for size in range(1, most + 1) if batch * steps % size == 0)
    return (f"batch_size={fits}", f"trainer.accumulate_grad_batches={batch * steps // fits}")


def _share_that_fits(run: OomRun) -> float:
    """Return the part of the batch that would have fitted, half of it where the message does not tell."""
    message = run.message
    if not (message and message.total and message.ours and message.request):
        return 0.5
    limit = min(message.total - max((message.foreign or 0), 0), message.allowed or message.total)
    return min(0.99, max(0.1, ROOM * limit / (message.ours + message.request)))


def _less(run: OomRun, share: float = 0.5) -> tuple[str, ...]:
    """Return a smaller batch; of a batch of one what costs time, and then only what costs what is learned."""
    if run.config.get("batch_size") == 1 and run.config.get(AGAIN) is False:
        return (f"{AGAIN}=true",)
    return smaller_batch(run.config, share)


def _elsewhere(run: OomRun) -> Remedy:
    """Return the processes to end, and the card with most free memory at the failure where that is enough."""
    others = (run.message.others if run.message else None) or {}
    pids = sorted(others, key=lambda pid: -others[pid])
    who = f"End process {' '.join(map(str, pids[:4]))}" if pids else "End who holds the card: `ocrlab memory watch`"
    busy = run.message.device if run.message else None
    needed = ((run.message.ours or 0) + (run.message.request or 0)) if run.message else 0
    free = [(card.get("free") or 0, index) for index, card in enumerate(run.cards) if index != busy]
    most, card = max(free, default=(0, 0))
    if most > needed:
        return Remedy((), {"CUDA_VISIBLE_DEVICES": str(card)}, who)
    return Remedy(do=f"{who}; or choose a free card with CUDA_VISIBLE_DEVICES")


def _leak(run: OomRun) -> Remedy:
    if run.leak is not None:
        return Remedy(do=run.leak.text.rpartition(". ")[2] or run.leak.text)
    do = "ocrlab.debug.watch_leaks(model) around the loop names the line that keeps it"
    if run.cause.startswith("gpumem."):
        do += "; keep .item() or .detach(), and torch.no_grad() in validation"
    return Remedy(do=do)


def _host(run: OomRun) -> Remedy:
    settings = _fewer_workers(run) or _less(run)
    address = run.facts.get("address_space_bytes")
    if settings:
        return Remedy(settings)
    if address:
        return Remedy(do=f"Raise ulimit -v ({size_text(address)}), or ask for less at a time")
    more = f"more than {size_text(run.limit)} for the container" if run.limit else "a larger memory limit"
    return Remedy(do=f"Fewer workers and a smaller batch or cache, or {more}")


def _fewer_workers(run: OomRun) -> tuple[str, ...]:
    """Return fewer loader workers, where the config sets any."""
    workers = run.config.get("runtime.workers")
    return (f"runtime.workers={workers // 2}",) if isinstance(workers, int) and workers > 0 else ()


QUESTIONS = (
    "request and free memory",
    "memory of other processes",
    "fragmentation",
    "growth from step to step",
    "validation or the largest page",
    "outside torch's cache: pinned, shared, limits",
    "what fits instead",
)
FULL = 64 << 20  # bytes left in /dev/shm: less is full
NO_SPACE = re.compile(r"No space left on device[^\n]*|out of shared memory[^\n]*|insufficient shared memory[^\n]*")


def checks(run: OomRun, kind: OomKind, remedy: Remedy) -> list[Check]:
    """Return the seven answers in their order."""
    asked: tuple[Callable[[OomRun], Check], ...] = (_asked, _others, _pieces, _grows, _phase, _outside)
    return [*(ask(run) for ask in asked), _instead(kind, remedy)]


def _check(step: int, judgement: str, observed: str, where: SourceLine | str | None = None, **more: Any) -> Check:
    source = f" ({where})" if where else ""
    return Check(QUESTIONS[step - 1], judgement, f"{observed}{source}", step=step, **more)


def _asked(run: OomRun) -> Check:
    message, refused = run.message, run.refused
    if message is not None and message.request is not None:
        observed = f"{size_text(message.request)} asked for"
        if message.free is not None:
            observed += f", {size_text(message.free)} free of {size_text(message.total)}"
            observed += f"; this process holds {size_text(message.ours)}"
        if message.allowed is not None:
            observed += f"; {size_text(message.allowed)} allowed"
        if run.judged and run.judged[0].cause == "gpumem.absurd_size":
            need = "a request that some card could hold"
            return _check(1, "fail", observed, run.message_at, cause="gpumem.absurd_size", need=need)
        if message.free is None or message.request > message.free:
            return _check(1, "fail", observed, run.message_at, cause="gpumem.capacity")
        return _check(1, "warn", observed, run.message_at)
    if refused is not None:
        limit = run.facts.get("address_space_bytes") or run.limit
        size = "" if refused.request is None else f"{size_text(refused.request)} of "
        observed = f"{size}host memory asked for" + (f" for an array {refused.shape}" if refused.shape else "")
        observed += f", {size_text(limit)} allowed" if limit else ""
        cause = "gpumem.absurd_size" if is_absurd(run) else "host.alloc_fail"
        return _check(1, "fail", observed, run.refused_at, cause=cause)
    peak, limit = run.facts.get("memory_peak_bytes"), run.limit
    if peak and limit:
        observed = f"peak of {size_text(peak)}, {size_text(limit)} allowed"
        return _check(1, "fail" if peak >= 0.9 * limit else "ok", observed, "facts.json")
    return _check(1, "skip", "no message with numbers, and no measurement of `ocrlab watch`")


def _others(run: OomRun) -> Check:
    message = run.message
    index = message.device if message and message.device is not None else 0
    listed = [process for card in run.cards[index : index + 1] for process in card.get("processes", ())]
    names = ", ".join(
        f"{process.get('name') or 'process'} {process['pid']} {size_text(process.get('bytes'))}"
        for process in listed
        if not process.get("ours")
    )
    if message is not None and message.total and message.free is not None and message.ours is not None:
        others = message.foreign or 0
        who = ", ".join(f"process {pid} {size_text(size)}" for pid, size in (message.others or {}).items()) or names
        observed = f"{size_text(others)} of {size_text(message.total)} are neither free nor in this process"
        observed += f": {who}" if who else ""
        if run.speaks_for("gpumem.foreign"):
            return _check(2, "fail", observed, run.message_at, cause="gpumem.foreign")
        return _check(2, "warn" if others >= 0.1 * message.total else "ok", observed, run.message_at)
    if names:
        return _check(2, "warn", f"on the card at the failure: {names}", "facts.json", cause="gpumem.foreign")
    if run.cards:
        return _check(2, "ok", "no other process was on the card at the failure", "facts.json")
    if killed_in_group(run) or run.cause.startswith("host."):
        return _check(2, "skip", "host memory: all processes of the control group or machine share it")
    return _check(2, "skip", "not in the message; `ocrlab memory watch` shows the processes that use it now")


def _pieces(run: OomRun) -> Check:
    message = run.message
    if message is None or message.unallocated is None or message.request is None:
        return _check(3, "skip", "the message does not name reserved but unallocated memory")
    idle, request = size_text(message.unallocated), size_text(message.request)
    observed = f"{idle} reserved but unallocated against a request of {request}"
    if run.speaks_for("gpumem.fragmentation"):
        observed += ": the largest free block is smaller than the request"
        return _check(3, "fail", observed, run.message_at, cause="gpumem.fragmentation")
    torn = any(judgement.cause == "gpumem.fragmentation" for judgement in run.judged)
    return _check(3, "warn" if torn else "ok", observed, run.message_at)


def _grows(run: OomRun) -> Check:
    if run.leak is not None:
        return _check(4, "fail", run.leak.text, run.leak, cause="gpumem.leak")
    if not run.grown:
        return _check(
            4, "skip", "no measurements of memory over time (recorder.on=true, or run it under `ocrlab watch`)"
        )
    series, grown = run.steep or run.grown[0]
    points = f"{grown.points} points of {series.what}"
    rate, low, high, rise = (size_text(int(value)) for value in (grown.rate, grown.low, grown.high, grown.rise))
    if run.steep:
        observed = f"+{rate} a {series.unit} (95 %: {low} to {high}), {100 * grown.confidence:.1f} % sure, {points}, "
        cause = "gpumem.leak" if series.where == "gpu" else "host.oom_kill"
        return _check(4, "fail", f"{observed}{rise} in all", series.source, cause=cause)
    if grown.grows:
        observed = f"+{rate} a {series.unit} during the start, as in every program: {points}"
        return _check(4, "warn", observed, series.source)
    highest = size_text(int(max(series.values)))
    return _check(4, "ok", f"it does not grow: {points}, peak of {highest}", series.source)


def _phase(run: OomRun) -> Check:
    at = f" in step {run.step}" if run.step is not None else ""
    named = f"; its batch: {', '.join(run.samples[:8])}" if run.samples else ""
    if run.phase.startswith("valid"):
        do = "torch.no_grad(), smaller pages"
        return _check(5, "fail", f"it ended in validation{at}{named}", run.phase_at, do=do)
    if run.phase:
        first = ": the first one, before anything could grow" if run.step == 0 else ""
        judgement = "warn" if run.samples and not first else "ok"
        return _check(5, judgement, f"it ended in {run.phase}{at}{first}{named}", run.phase_at)
    if place := run.place:
        return _check(5, "ok", f"not in validation; the allocation is at {place} `{place.text}`")
    return _check(5, "skip", "phase and page at the failure are unknown")


def _outside(run: OomRun) -> Check:
    facts, message = run.facts, run.message
    left, address = facts.get("shm_free_bytes"), facts.get("address_space_bytes")
    pinned = PINNED.search(run.text)
    if pinned and run.cause in ("gpumem.raw_alloc", "wsl.limits"):
        return _check(6, "fail", f"it failed in {pinned[0]}: page-locked host memory", cause=run.cause)
    if run.cause == "host.shm":
        space = NO_SPACE.search(run.text)
        more = f"; {size_text(left)} are left in /dev/shm" if left is not None else ""
        return _check(6, "fail", f"{space[0] if space else 'shared memory is exhausted'}{more}", cause="host.shm")
    if facts.get("oom_kills"):
        observed = f"the control group's oom_kill counter grew by {facts['oom_kills']}"
        return _check(6, "fail", observed, "facts.json", cause="host.oom_kill")
    if killed_in_group(run):
        return _check(
            6, "fail", "the kernel killed a process of the control group", run.verdict.causes[0].evidence[0].file
        )
    if address:
        observed = f"ulimit -v allows {size_text(address)} of address space"
        return _check(6, "fail" if run.cause == "host.alloc_fail" else "warn", observed, "facts.json")
    if message is not None and message.outside is not None:
        raw = next((judgement for judgement in run.judged if judgement.cause == "gpumem.raw_alloc"), None)
        if raw:
            return _check(6, "fail", raw.why, run.message_at, cause=raw.cause)
        outside = f"{size_text(message.outside)} of this process are outside torch's allocator: a context"
        return _check(6, "ok", outside, run.message_at)
    if left is not None:
        observed = f"{size_text(left)} are left in /dev/shm; no kill was counted"
        return _check(6, "warn" if left < FULL else "ok", observed, "facts.json")
    return _check(6, "skip", "not measured: run it under `ocrlab watch`")


def _instead(kind: OomKind, remedy: Remedy) -> Check:
    if not kind.kind:
        return _check(7, "skip", "no sign that memory ran out")
    if remedy.line:
        return _check(7, "ok", "; ".join(filter(None, (remedy.line, remedy.do))))
    return _check(7, "warn", remedy.do or "no known setting fits", do="ocrlab memory fit measures what fits")


PHRASES = {
    "capacity": "a step that is too large for the card",
    "fragmentation": "fragmentation",
    "another process": "the memory of another process",
    "leak": "a leak",
    "outside the cache": "allocations outside torch's cache",
    "pinned memory": "pinned host memory",
    "WSL limit": "a limit of WSL",
    "absurd size": "one request of an absurd size",
    "killed by the host": "the machine's memory, and the kernel killed it",
    "refused by the host": "a limit on host memory",
    "control group": "the memory limit of its control group, and the kernel killed it",
    "shared memory": "shared memory",
}


@dataclass
class OomAnswer:
    """The answer: the kind of failure, the seven checks, what to set, one sentence."""

    kind: OomKind
    checks: list[Check]
    remedy: Remedy
    sentence: str
    run: oom_inputs.OomRun

    @property
    def record(self) -> dict[str, Any]:
        """The answer as JSON-ready data."""
        record: dict[str, Any] = {"schema": SCHEMA, "ran_out": bool(self.kind.kind), **asdict(self.kind)}
        record["checks"] = [check_record(check) for check in self.checks]
        record["remedy"] = {**asdict(self.remedy), "line": self.remedy.line}
        record["sentence"] = self.sentence
        return dict(finite(record))

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The checks as rows of a table."""
        marks = {"fail": "FAIL"}
        return [(str(c.step), marks.get(c.judgement, c.judgement), c.name, c.observed) for c in self.checks]


def explain_oom(path: str) -> OomAnswer:
    """Return why the run of a log or a run folder ran out of memory; raises DataError where it cannot be read."""
    folder = Path(path) if path != "-" and Path(path).is_dir() else None
    run = oom_inputs.collect(load_input.read_incident(path), folder, _config(folder))
    kind = classify_oom(run)
    proposed = find_remedy(run, kind)
    return OomAnswer(kind, checks(run, kind, proposed), proposed, sentence(run, kind, proposed), run)


def sentence(run: oom_inputs.OomRun, kind: OomKind, proposed: Remedy) -> str:
    """Return the answer in one sentence, with the remedy as a line of settings."""
    if not kind.kind:
        if not run.verdict.causes:
            return "There is no sign that memory ran out, and no other cause was found."
        first, *others = run.verdict.causes
        answer = f"Nothing here shows that memory ran out; the likely cause is {first.id} ({first.confidence:.2f})"
        also = [cause for cause in others if cause.id.startswith(oom_inputs.MEMORY)]
        return f"{answer}; {also[0].id} ({also[0].confidence:.2f}) looks the same." if also else f"{answer}."
    sure = "" if kind.confidence >= 0.8 else "most probably " if kind.confidence >= 0.6 else "perhaps "
    head = f"It ran out of memory, {sure}by {PHRASES[kind.kind]}: {kind.why}"
    last = f"Set {proposed.line}" if proposed.line else proposed.do
    return f"{head}. {last}." if last else f"{head}."


def _config(folder: Path | None) -> dict[str, Any]:
    """Return the settings of a run of `ocrlab train` under their dotted names; empty for any other."""
    path = folder / "config.yaml" if folder else None
    if path is None or not path.is_file():
        return {}
    with contextlib.suppress(Exception):  # of another version or program: the checks continue without it
        from ocrlab.config import schema as configs
        from ocrlab.config.fields import flat

        settings: dict[str, Any] = flat(configs.load(path))
        return settings
    return {}
