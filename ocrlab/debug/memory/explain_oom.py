"""Why a run ran out of memory: its kind, seven questions answered, one sentence, and what to set."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ocrlab.debug.diagnosis import load_input
from ocrlab.debug.diagnosis.catalogue import Level
from ocrlab.debug.diagnosis.oom_message import LARGEST_CARD, size_text
from ocrlab.debug.memory import oom_inputs
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
ABSURD = 2**40  # bytes of one request
PINNED = re.compile(r"pin_memory|cudaHostAlloc|CachingHostAllocator|pin memory thread")
GROWS = ("capacity", "killed by the host", "refused by the host", "control group", "outside the cache", "fragmentation")


@dataclass(frozen=True)
class OomKind:
    """The disease: its kind, the id of the catalogue, how sure (0..1), and why in numbers; no kind where it is none."""

    kind: str = ""
    cause: str = ""
    confidence: float = 0.0
    why: str = ""


def classify_oom(run: OomRun) -> OomKind:
    """Return which disease it is; empty where nothing says that memory ran out."""
    first = run.verdict.causes[0] if run.verdict.causes else None
    if not run.cause or first is None:
        return OomKind()
    kind = OomKind(KINDS.get(run.cause, run.cause), run.cause, first.confidence, _why(run))
    if run.cause == "host.oom_kill" and not killed_for_memory(run):
        return OomKind()  # a bare SIGKILL of which nobody knows the reason
    if run.cause == "host.oom_kill" and killed_in_group(run):
        kind = OomKind("control group", kind.cause, kind.confidence, kind.why)
    if run.cause in ("gpumem.raw_alloc", "wsl.limits") and PINNED.search(run.text):
        kind = OomKind(
            "pinned memory", kind.cause, kind.confidence, "page-locked host memory was asked for and refused"
        )
    if run.cause == "host.alloc_fail" and is_absurd(run):
        request = run.refused.request if run.refused else None
        kind = OomKind("absurd size", "gpumem.absurd_size", 0.9, f"one request of {size_text(request)}")
    return _grown(run, kind)


def is_absurd(run: OomRun) -> bool:
    """Tell whether the host was asked for more than the whole machine could ever hold."""
    request = run.refused.request if run.refused else None
    limit = run.limit
    return request is not None and (request >= ABSURD or request > 3 * (limit or LARGEST_CARD))


def killed_for_memory(run: OomRun) -> bool:
    """Tell whether anything but a SIGKILL speaks for a kill by the kernel."""
    log = run.text
    if run.facts.get("oom_kills") or re.search(r"(?i)oom|out of memory|memory cgroup", log):
        return True
    sure = bool(run.verdict.causes) and run.verdict.causes[0].confidence >= 0.6
    died = run.incident.signal == "SIGKILL" or exit_codes.signal_of_exit(run.incident.exit_code) == "SIGKILL"
    return sure or (died and run.steep is not None)


def killed_in_group(run: OomRun) -> bool:
    """Tell whether the control group killed, and not the whole machine."""
    return bool(re.search(r"Memory cgroup out of memory|CONSTRAINT_MEMCG|oom_memcg=", run.text)) or bool(
        run.facts.get("oom_kills") and "Out of memory: Killed" not in run.text
    )


def _grown(run: OomRun, kind: OomKind) -> OomKind:
    """Return a leak where memory certainly grew step by step, or was found to by the leak watch, before it ran out."""
    steep = run.steep
    if run.leak is not None and kind.kind in GROWS:
        return OomKind("leak", _leak_cause(kind.cause), 0.95, run.leak.text)
    if steep is None or kind.kind not in GROWS:
        return kind
    series, grown = steep
    share = grown.rise / max(series.values[-1], 1.0)
    if share < 0.2:  # it grows, but most of it was there from the start
        return kind
    per = f"{size_text(int(grown.rate))} a {series.unit}"
    sure = f"95 %: {size_text(int(grown.low))} to {size_text(int(grown.high))}"
    why = f"{series.what} grew by {per} ({sure}), {size_text(int(grown.rise))} in all"
    return OomKind("leak", _leak_cause(kind.cause), min(grown.confidence, 0.95), why)


def _leak_cause(cause: str) -> str:
    return "gpumem.leak" if cause.startswith("gpumem.") else cause


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


def find_remedy(run: OomRun, kind: OomKind) -> Remedy:
    """Return what would let the run through; empty where memory did not run out."""
    kinds = {
        "capacity": _smaller,
        "fragmentation": lambda case: Remedy((), EXPANDABLE, "Pad batches to a few sizes, so that blocks fit again"),
        "another process": _elsewhere,
        "leak": _leak,
        "outside the cache": lambda case: Remedy((), SMALL_WORKSPACE, "Fewer NCCL communicators, streams and models"),
        "pinned memory": lambda case: Remedy(
            *_workers(case), do="DataLoader(pin_memory=False), or fewer batches ahead"
        ),
        "WSL limit": lambda case: Remedy(do="Raise memory= in .wslconfig, or DataLoader(pin_memory=False)"),
        "absurd size": _bounds,
        "killed by the host": _host,
        "control group": _host,
        "refused by the host": _host,
        "shared memory": lambda case: Remedy(
            ("runtime.workers=0",) if case.config else (),
            {},
            "docker run --shm-size=8g or --ipc=host; or fewer workers",
        ),
    }
    return kinds[kind.kind](run) if kind.kind in kinds else Remedy()


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


def _smaller(run: OomRun) -> Remedy:
    message, share = run.message, 0.5
    if message and message.total and message.ours and message.request:
        limit = min(message.total - max((message.foreign or 0), 0), message.allowed or message.total)
        share = min(0.99, max(0.1, ROOM * limit / (message.ours + message.request)))
    settings = _less(run, share)
    do = "A smaller batch with more accumulation, bf16, a smaller crop; `ocrlab memory fit` measures what fits"
    return Remedy(settings, {}, "" if settings else do)


def _less(run: OomRun, share: float = 0.5) -> tuple[str, ...]:
    """Return a smaller batch; of a batch of one what costs time, and then only what costs what is learned."""
    if run.config.get("batch_size") == 1 and run.config.get(AGAIN) is False:
        return (f"{AGAIN}=true",)
    return smaller_batch(run.config, share)


def _elsewhere(run: OomRun) -> Remedy:
    message = run.message
    pids = sorted(
        (message.others or {}) if message else {}, key=lambda pid: -(message.others or {})[pid] if message else 0
    )
    free = _freest(run, message.device if message else None)
    who = f"End process {' '.join(map(str, pids[:4]))}" if pids else "End who holds the card: `ocrlab memory watch`"
    if free is not None:
        return Remedy((), {"CUDA_VISIBLE_DEVICES": str(free)}, who)
    return Remedy(do=f"{who}; or choose a free card with CUDA_VISIBLE_DEVICES")


def _freest(run: OomRun, busy: int | None) -> int | None:
    """Return the card with most free memory at the failure, where it is another one and has enough."""
    cards = (run.facts.get("gpus") or {}).get("cards") or []
    needed = ((run.message.ours or 0) + (run.message.request or 0)) if run.message else 0
    others = [(card.get("free") or 0, index) for index, card in enumerate(cards) if index != busy]
    best = max(others, default=(0, None))
    return best[1] if best[0] > needed else None


def _leak(run: OomRun) -> Remedy:
    if run.leak is not None:
        return Remedy(do=run.leak.text.rpartition(". ")[2] or run.leak.text)
    do = "ocrlab.debug.watch_leaks(model) around the loop names the line that keeps it"
    if run.cause.startswith("gpumem."):
        do += "; keep .item() or .detach(), and torch.no_grad() in validation"
    return Remedy(do=do)


def _bounds(run: OomRun) -> Remedy:
    where = f" at {run.place.file.rpartition('/')[2]}:{run.place.line} `{run.place.text}`" if run.place else ""
    return Remedy(do=f"Correct the shape{where}; no batch size mends it")


def _host(run: OomRun) -> Remedy:
    settings, _ = _workers(run)
    settings = settings or _less(run)
    limit, address = run.limit, run.facts.get("address_space_bytes")
    if address:
        return Remedy(
            settings, {}, "" if settings else f"Raise ulimit -v ({size_text(address)}), or ask for less at a time"
        )
    more = f"more than {size_text(limit)} for the container" if limit else "a larger memory limit"
    return Remedy(settings, {}, "" if settings else f"Fewer workers and a smaller batch or cache, or {more}")


def _workers(run: OomRun) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return fewer loader workers, where the config sets more than one."""
    workers = run.config.get("runtime.workers")
    if isinstance(workers, int) and workers > 1:
        return (f"runtime.workers={workers // 2}",), {}
    return ("runtime.workers=0",) if workers == 1 else (), {}


QUESTIONS = (
    "asked against what there was",
    "who else holds the memory",
    "in pieces",
    "grows step by step",
    "validation or the worst page",
    "outside the cache, pinned, shared, limits",
    "what fits instead",
)
FULL = 64 << 20  # bytes left in /dev/shm: less is full
NO_SPACE = re.compile(r"No space left on device[^\n]*|out of shared memory[^\n]*|insufficient shared memory[^\n]*")


def checks(run: OomRun, kind: OomKind, remedy: Remedy) -> list[Check]:
    """Return the seven answers in their order."""
    asked: tuple[Callable[[OomRun], Check], ...] = (_asked, _others, _pieces, _grows, _phase, _outside)
    return [*(ask(run) for ask in asked), _instead(run, kind, remedy)]


def _check(step: int, judgement: str, observed: str, where: SourceLine | str | None = None, **more: Any) -> Check:
    source = f" ({where})" if where else ""
    return Check(QUESTIONS[step - 1], judgement, f"{observed}{source}", step=step, **more)


def _asked(run: OomRun) -> Check:
    message = run.message
    if message is not None and message.request is not None:
        observed = f"{size_text(message.request)} asked for"
        if message.free is not None:
            observed += f", {size_text(message.free)} free of {size_text(message.total)}"
            observed += f"; this process holds {size_text(message.ours)}"
        if message.allowed is not None:
            observed += f"; {size_text(message.allowed)} allowed"
        first = run.judged[0].cause if run.judged else ""
        if first == "gpumem.absurd_size":
            return _check(1, "fail", observed, run.message_at, cause=first, need="a request that some card could hold")
        short = message.free is None or message.request > message.free
        return _check(
            1, "fail" if short else "warn", observed, run.message_at, cause="gpumem.capacity" if short else ""
        )
    if run.refused is not None:
        limit = run.facts.get("address_space_bytes") or run.limit
        shape = f" for an array {run.refused.shape}" if run.refused.shape else ""
        size = "" if run.refused.request is None else f"{size_text(run.refused.request)} of "
        observed = f"{size}host memory asked for{shape}"
        observed += f", {size_text(limit)} allowed" if limit else ""
        cause = "gpumem.absurd_size" if is_absurd(run) else "host.alloc_fail"
        return _check(1, "fail", observed, run.refused_at, cause=cause)
    peak, limit = run.facts.get("memory_peak_bytes"), run.limit
    if peak and limit:
        near = peak >= 0.9 * limit
        return _check(
            1, "fail" if near else "ok", f"{size_text(peak)} at the highest, {size_text(limit)} allowed", "facts.json"
        )
    return _check(1, "skip", "no message with numbers, no figures of the watcher")


def _others(run: OomRun) -> Check:
    message = run.message
    cards = (run.facts.get("gpus") or {}).get("cards") or []
    index = message.device if message and message.device is not None else 0
    listed = [
        process for card in cards[index : index + 1] for process in card.get("processes", ()) if not process.get("ours")
    ]
    names = ", ".join(
        f"{process.get('name') or 'process'} {process['pid']} {size_text(process.get('bytes'))}" for process in listed
    )
    if message is not None and message.total and message.free is not None and message.ours is not None:
        others = message.foreign or 0
        share = others / message.total
        who = ", ".join(f"process {pid} {size_text(size)}" for pid, size in (message.others or {}).items()) or names
        observed = f"{size_text(others)} of {size_text(message.total)} are neither free nor ours" + (
            f": {who}" if who else ""
        )
        foreign = any(judged.cause == "gpumem.foreign" and judged.level is not Level.POSSIBLE for judged in run.judged)
        judgement = "fail" if foreign else "warn" if share >= 0.1 else "ok"
        return _check(2, judgement, observed, run.message_at, cause="gpumem.foreign" if foreign else "")
    if names:
        return _check(2, "warn", f"on the card at the failure: {names}", "facts.json", cause="gpumem.foreign")
    if cards:
        return _check(2, "ok", "nobody else was on the card at the failure", "facts.json")
    if killed_in_group(run) or run.cause.startswith("host."):
        return _check(2, "skip", "host memory: the control group or the machine is shared by all in it")
    return _check(2, "skip", "the message does not say; `ocrlab memory watch` shows who holds it now")


def _pieces(run: OomRun) -> Check:
    message = run.message
    if message is None or message.unallocated is None or message.request is None:
        return _check(3, "skip", "no figure of reserved but unallocated memory")
    observed = (
        f"{size_text(message.unallocated)} reserved but unallocated against a request of {size_text(message.request)}"
    )
    torn = next((judgement for judgement in run.judged if judgement.cause == "gpumem.fragmentation"), None)
    if torn is not None and torn.level is not Level.POSSIBLE:
        observed += ": the largest free block is smaller than the request"
        return _check(3, "fail", observed, run.message_at, cause="gpumem.fragmentation")
    return _check(3, "warn" if torn else "ok", observed, run.message_at)


def _grows(run: OomRun) -> Check:
    if run.leak is not None:
        return _check(4, "fail", run.leak.text, run.leak, cause="gpumem.leak")
    if not run.grown:
        return _check(4, "skip", "no figures of memory over time (recorder.on=true, or run it under `ocrlab watch`)")
    steep = run.steep
    series, grown = steep or run.grown[0]
    points = f"{grown.points} points of {series.what}"
    if steep is None and grown.grows:
        observed = f"+{size_text(int(grown.rate))} a {series.unit} while it started, as every program does: {points}"
        return _check(4, "warn", observed, series.source)
    if steep is None:
        return _check(
            4, "ok", f"it does not grow: {points}, {size_text(int(max(series.values)))} at the highest", series.source
        )
    rate, low, high = (size_text(int(value)) for value in (grown.rate, grown.low, grown.high))
    per = f"+{rate} a {series.unit} (95 %: {low} to {high})"
    observed = f"{per}, {100 * grown.confidence:.1f} % sure, {points}, {size_text(int(grown.rise))} in all"
    return _check(4, "fail", observed, series.source, cause="gpumem.leak" if series.where == "gpu" else "host.oom_kill")


def _phase(run: OomRun) -> Check:
    at = f" in step {run.step}" if run.step is not None else ""
    named = f"; its batch: {', '.join(run.samples[:8])}" if run.samples else ""
    if not run.phase:
        place = run.place
        if place is not None:
            return _check(5, "ok", f"not in validation; the allocation is at {place.file}:{place.line} `{place.text}`")
        return _check(5, "skip", "nothing says in which phase or with which page it ended")
    if run.phase.startswith("valid"):
        return _check(
            5, "fail", f"it ended in validation{at}{named}", run.phase_at, do="torch.no_grad(), smaller pages"
        )
    first = run.step == 0
    observed = f"it ended in {run.phase}{at}" + (": the first one, before anything could grow" if first else "")
    return _check(5, "warn" if run.samples and not first else "ok", f"{observed}{named}", run.phase_at)


def _outside(run: OomRun) -> Check:
    facts, message = run.facts, run.message
    pinned = PINNED.search(run.text)
    if pinned and run.cause in ("gpumem.raw_alloc", "wsl.limits"):
        return _check(6, "fail", f"it failed in {pinned[0]}: page-locked host memory", cause=run.cause)
    space = NO_SPACE.search(run.text)
    left = facts.get("shm_free_bytes")
    if run.cause == "host.shm":
        more = f"; {size_text(left)} are left in /dev/shm" if left is not None else ""
        return _check(6, "fail", f"{space[0] if space else 'shared memory is exhausted'}{more}", cause="host.shm")
    if facts.get("oom_kills"):
        observed = f"the control group's oom_kill counter grew by {facts['oom_kills']}"
        return _check(6, "fail", observed, "facts.json", cause="host.oom_kill")
    if killed_in_group(run):
        return _check(6, "fail", "the kernel killed in the control group", run.verdict.causes[0].evidence[0].file)
    if facts.get("address_space_bytes"):
        observed = f"ulimit -v allows {size_text(facts['address_space_bytes'])} of address space"
        return _check(6, "fail" if run.cause == "host.alloc_fail" else "warn", observed, "facts.json")
    if message is not None and message.outside is not None:
        raw = next((judgement for judgement in run.judged if judgement.cause == "gpumem.raw_alloc"), None)
        observed = (
            raw.why if raw else f"{size_text(message.outside)} of this process are outside torch's allocator: a context"
        )
        return _check(6, "fail" if raw else "ok", observed, run.message_at, cause="gpumem.raw_alloc" if raw else "")
    if left is not None:
        full = left < FULL
        return _check(
            6, "warn" if full else "ok", f"{size_text(left)} are left in /dev/shm; no kill was counted", "facts.json"
        )
    return _check(6, "skip", "nothing was measured from outside (run it under `ocrlab watch`)")


def _instead(run: OomRun, kind: OomKind, remedy: Remedy) -> Check:
    if not kind.kind:
        return _check(7, "skip", "nothing says that memory ran out")
    if remedy.line:
        more = f"; {remedy.do}" if remedy.do else ""
        return _check(7, "ok", f"{remedy.line}{more}")
    return _check(7, "warn", remedy.do or "nothing is known to fit", do="ocrlab memory fit measures what fits")


MARKS = {"ok": "ok", "warn": "warn", "fail": "FAIL", "skip": "skip"}


@dataclass
class OomAnswer:
    """The answer: the disease, the seven checks, what to set, one sentence."""

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
        clean: dict[str, Any] = finite(record)
        return clean

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The checks as rows of a table."""
        return [(str(check.step), MARKS[check.judgement], check.name, check.observed) for check in self.checks]


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
            return "Nothing says that memory ran out, and nothing else explains the failure."
        first, *others = run.verdict.causes
        answer = f"It did not run out of memory as far as can be seen: {first.id} ({first.confidence:.2f})"
        also = [cause for cause in others if cause.id.startswith(oom_inputs.MEMORY)]
        return f"{answer}; {also[0].id} ({also[0].confidence:.2f}) looks the same." if also else f"{answer}."
    sure = "" if kind.confidence >= 0.8 else "most probably " if kind.confidence >= 0.6 else "perhaps "
    head = f"It ran out of memory, {sure}by {_article(kind.kind)}: {kind.why}"
    if proposed.line:
        return f"{head}. Set {proposed.line}."
    return f"{head}. {proposed.do}." if proposed.do else f"{head}."


def _article(kind: str) -> str:
    words = {
        "capacity": "a step that is too large for the card",
        "fragmentation": "fragmentation",
        "another process": "what another process holds",
        "leak": "a leak",
        "outside the cache": "what is allocated outside torch's cache",
        "pinned memory": "pinned host memory",
        "WSL limit": "a limit of WSL",
        "absurd size": "one request of an absurd size",
        "killed by the host": "the machine's memory, and the kernel killed it",
        "refused by the host": "a limit on host memory",
        "control group": "the memory limit of its control group, and the kernel killed it",
        "shared memory": "shared memory",
    }
    return words[kind]


def _config(folder: Path | None) -> dict[str, Any]:
    """Return the settings of a run of `ocrlab train` under their dotted names; empty for any other."""
    path = folder / "config.yaml" if folder else None
    if path is None or not path.is_file():
        return {}
    with contextlib.suppress(Exception):  # of another version, or somebody else's: the checks go on without it
        from ocrlab.config import schema as configs
        from ocrlab.config.fields import flat

        settings: dict[str, Any] = flat(configs.load(path))
        return settings
    return {}
