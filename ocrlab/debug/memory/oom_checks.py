"""The seven questions after an out-of-memory error, each looked up and answered with its number and its line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ocrlab.debug.diagnosis.catalogue import Level
from ocrlab.debug.diagnosis.oom_message import size_text
from ocrlab.debug.memory.oom_inputs import OomRun, SourceLine
from ocrlab.debug.memory.oom_kinds import PINNED, OomKind, is_absurd, killed_in_group
from ocrlab.debug.memory.oom_remedies import Remedy
from ocrlab.records import Check

STEPS = (
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
    return Check(STEPS[step - 1], judgement, f"{observed}{source}", step=step, **more)


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
