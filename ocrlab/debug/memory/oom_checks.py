"""The seven questions after an out-of-memory error, each looked up and answered with its number and its line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ocrlab.debug.diagnosis.oom_message import size_text
from ocrlab.debug.memory.oom_inputs import Known, Spot
from ocrlab.debug.memory.oom_kinds import PINNED, Split, absurd, of_group
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


def checks(known: Known, found: Split, remedy: Remedy) -> list[Check]:
    """Return the seven answers in their order."""
    asked: tuple[Callable[[Known], Check], ...] = (_asked, _others, _pieces, _grows, _phase, _outside)
    return [*(ask(known) for ask in asked), _instead(known, found, remedy)]


def _check(step: int, judgement: str, seen: str, where: Spot | str | None = None, **more: Any) -> Check:
    source = f" ({where})" if where else ""
    return Check(STEPS[step - 1], judgement, f"{seen}{source}", step=step, **more)


def _asked(known: Known) -> Check:
    told = known.message
    if told is not None and told.request is not None:
        seen = f"{size_text(told.request)} asked for"
        if told.free is not None:
            seen += (
                f", {size_text(told.free)} free of {size_text(told.total)}; this process holds {size_text(told.ours)}"
            )
        if told.allowed is not None:
            seen += f"; {size_text(told.allowed)} allowed"
        first = known.judged[0].cause if known.judged else ""
        if first == "gpumem.absurd_size":
            return _check(1, "fail", seen, known.spot, cause=first, need="a request that some card could hold")
        short = told.free is None or told.request > told.free
        return _check(1, "fail" if short else "warn", seen, known.spot, cause="gpumem.capacity" if short else "")
    if known.refused is not None:
        limit = known.facts.get("address_space_bytes") or known.limit
        shape = f" for an array {known.refused.shape}" if known.refused.shape else ""
        size = "" if known.refused.request is None else f"{size_text(known.refused.request)} of "
        seen = f"{size}host memory asked for{shape}"
        seen += f", {size_text(limit)} allowed" if limit else ""
        cause = "gpumem.absurd_size" if absurd(known) else "host.alloc_fail"
        return _check(1, "fail", seen, known.refused_at, cause=cause)
    peak, limit = known.facts.get("memory_peak_bytes"), known.limit
    if peak and limit:
        near = peak >= 0.9 * limit
        return _check(
            1, "fail" if near else "ok", f"{size_text(peak)} at the highest, {size_text(limit)} allowed", "facts.json"
        )
    return _check(1, "skip", "no message with numbers, no figures of the watcher")


def _others(known: Known) -> Check:
    told = known.message
    cards = (known.facts.get("gpus") or {}).get("cards") or []
    index = told.device if told and told.device is not None else 0
    listed = [one for card in cards[index : index + 1] for one in card.get("processes", ()) if not one.get("ours")]
    names = ", ".join(f"{one.get('name') or 'process'} {one['pid']} {size_text(one.get('bytes'))}" for one in listed)
    if told is not None and told.total and told.free is not None and told.ours is not None:
        held = told.foreign or 0
        share = held / told.total
        who = ", ".join(f"process {pid} {size_text(size)}" for pid, size in (told.others or {}).items()) or names
        seen = f"{size_text(held)} of {size_text(told.total)} are neither free nor ours" + (f": {who}" if who else "")
        foreign = any(one.cause == "gpumem.foreign" and one.confidence > 0.6 for one in known.judged)
        judgement = "fail" if foreign else "warn" if share >= 0.1 else "ok"
        return _check(2, judgement, seen, known.spot, cause="gpumem.foreign" if foreign else "")
    if names:
        return _check(2, "warn", f"on the card at the failure: {names}", "facts.json", cause="gpumem.foreign")
    if cards:
        return _check(2, "ok", "nobody else was on the card at the failure", "facts.json")
    if of_group(known) or known.cause.startswith("host."):
        return _check(2, "skip", "host memory: the control group or the machine is shared by all in it")
    return _check(2, "skip", "the message does not say; `ocrlab memory watch` shows who holds it now")


def _pieces(known: Known) -> Check:
    told = known.message
    if told is None or told.unallocated is None or told.request is None:
        return _check(3, "skip", "no figure of reserved but unallocated memory")
    seen = f"{size_text(told.unallocated)} reserved but unallocated against a request of {size_text(told.request)}"
    torn = next((one for one in known.judged if one.cause == "gpumem.fragmentation"), None)
    if torn is not None and torn.confidence > 0.6:
        seen += ": the largest free block is smaller than the request"
        return _check(3, "fail", seen, known.spot, cause="gpumem.fragmentation")
    return _check(3, "warn" if torn else "ok", seen, known.spot)


def _grows(known: Known) -> Check:
    if known.leak is not None:
        return _check(4, "fail", known.leak.text, known.leak, cause="gpumem.leak")
    if not known.grown:
        return _check(4, "skip", "no figures of memory over time (recorder.on=true, or run it under `ocrlab watch`)")
    steep = known.steep
    series, grown = steep or known.grown[0]
    points = f"{grown.points} points of {series.what}"
    if steep is None and grown.grows:
        seen = f"+{size_text(int(grown.rate))} a {series.unit} while it started, as every program does: {points}"
        return _check(4, "warn", seen, series.source)
    if steep is None:
        return _check(
            4, "ok", f"it does not grow: {points}, {size_text(int(max(series.values)))} at the highest", series.source
        )
    interval = f"{size_text(int(grown.low))} to {size_text(int(grown.high))}"
    per = f"+{size_text(int(grown.rate))} a {series.unit} (95 %: {interval})"
    seen = f"{per}, {100 * grown.confidence:.1f} % sure, {points}, {size_text(int(grown.rise))} in all"
    return _check(4, "fail", seen, series.source, cause="gpumem.leak" if series.where == "gpu" else "host.oom_kill")


def _phase(known: Known) -> Check:
    at = f" in step {known.step}" if known.step is not None else ""
    named = f"; its batch: {', '.join(known.samples[:8])}" if known.samples else ""
    if not known.phase:
        place = known.place
        if place is not None:
            return _check(5, "ok", f"not in validation; the allocation is at {place.file}:{place.line} `{place.text}`")
        return _check(5, "skip", "nothing says in which phase or with which page it ended")
    if known.phase.startswith("valid"):
        return _check(
            5, "fail", f"it ended in validation{at}{named}", known.phase_at, do="torch.no_grad(), smaller pages"
        )
    first = known.step == 0
    seen = f"it ended in {known.phase}{at}" + (": the first one, before anything could grow" if first else "")
    return _check(5, "warn" if known.samples and not first else "ok", f"{seen}{named}", known.phase_at)


def _outside(known: Known) -> Check:
    facts, told = known.facts, known.message
    pinned = PINNED.search(known.text)
    if pinned and known.cause in ("gpumem.raw_alloc", "wsl.limits"):
        return _check(6, "fail", f"it failed in {pinned[0]}: page-locked host memory", cause=known.cause)
    space = NO_SPACE.search(known.text)
    left = facts.get("shm_free_bytes")
    if known.cause == "host.shm":
        more = f"; {size_text(left)} are left in /dev/shm" if left is not None else ""
        return _check(6, "fail", f"{space[0] if space else 'shared memory is exhausted'}{more}", cause="host.shm")
    if facts.get("oom_kills"):
        seen = f"the control group's oom_kill counter grew by {facts['oom_kills']}"
        return _check(6, "fail", seen, "facts.json", cause="host.oom_kill")
    if of_group(known):
        return _check(6, "fail", "the kernel killed in the control group", known.verdict.causes[0].evidence[0].file)
    if facts.get("address_space_bytes"):
        seen = f"ulimit -v allows {size_text(facts['address_space_bytes'])} of address space"
        return _check(6, "fail" if known.cause == "host.alloc_fail" else "warn", seen, "facts.json")
    if told is not None and told.outside is not None:
        raw = next((one for one in known.judged if one.cause == "gpumem.raw_alloc"), None)
        seen = raw.why if raw else f"{size_text(told.outside)} of this process are outside torch's allocator: a context"
        return _check(6, "fail" if raw else "ok", seen, known.spot, cause="gpumem.raw_alloc" if raw else "")
    if left is not None:
        full = left < FULL
        return _check(
            6, "warn" if full else "ok", f"{size_text(left)} are left in /dev/shm; no kill was counted", "facts.json"
        )
    return _check(6, "skip", "nothing was measured from outside (run it under `ocrlab watch`)")


def _instead(known: Known, found: Split, remedy: Remedy) -> Check:
    if not found.kind:
        return _check(7, "skip", "nothing says that memory ran out")
    if remedy.line:
        more = f"; {remedy.do}" if remedy.do else ""
        return _check(7, "ok", f"{remedy.line}{more}")
    return _check(7, "warn", remedy.do or "nothing is known to fit", do="ocrlab memory fit measures what fits")
