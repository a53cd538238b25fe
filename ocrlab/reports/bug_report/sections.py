"""The sections of a bug report, one function each; each says so if nothing is known."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from ocrlab._version import __version__
from ocrlab.debug.diagnosis import catalogue, next_steps
from ocrlab.debug.diagnosis.verdict_files import sentence
from ocrlab.hardware import host
from ocrlab.reports.bug_report.markup import Block, Code, Section, Table, code, ticked
from ocrlab.reports.bug_report.sources import Sources, find_stack, number

SURE, POSSIBLE = 0.8, 0.4
TAIL = 25  # lines of output that are shown
SHOWN = 12  # rows of one table
UNKNOWN = "unknown"
LIBRARIES = ("torch", "torchvision", "lightning", "numpy", "opencv-python", "numba", "shapely", "ocrlab")
AS_IT_WAS = "as it was"
REMEDIES = ("fp32", "one thread", "mkldnn off", "CUDA_LAUNCH_BLOCKING=1", "cuDNN off", "no caching allocator")


def front(sources: Sources, verification: Mapping[str, Any]) -> dict[str, object]:
    """Return the front matter: title, id, date, type, category, status, version, tags."""
    cause, failure = sources.cause, sources.failure
    entry = _entry(cause.id) if cause else None
    ended = (sources.record.ended or sources.record.started) if sources.record else ""
    tags = [cause.id if cause else "", sources.verdict.symptom, sources.verdict.signal, failure.kind, sources.kind]
    tags.append(str(sources.incident.facts.get("platform") or ""))
    again = any(record.get("reproduced") for _, record in sources.replays)
    status = "no failure" if not sources.failed else "reproduced" if again else "open"
    if sources.failed and verification.get("runs"):
        status = "reproduced" if verification["same"] else "not reproduced"
    return {
        "title": title(sources),
        "id": f"OCR-{failure.id}",
        "date": ended[:19] or UNKNOWN,
        "type": "bug",
        "category": entry.family if entry else UNKNOWN,
        "status": status,
        "version": __version__,
        "tags": list(dict.fromkeys(filter(None, tags))),
    }


def title(sources: Sources) -> str:
    """Return what happened and where, in one line."""
    failure, cause = sources.failure, sources.cause
    lines: list[str] = []
    if failure.kind and (cause is None or cause.confidence < SURE):
        lines = find_stack(sources.incident.texts, False).whole.splitlines()[::-1]
    exception = next((line.strip()[:120] for line in lines if failure.kind in line.partition(":")[0]), "")
    entry = _entry(cause.id) if cause and cause.confidence >= POSSIBLE else None
    if exception or entry:
        what = exception or (entry.title if entry else "")
    elif sources.nonfinite and not cause:
        what = f"{sources.nonfinite[1]} becomes {sources.nonfinite[2]}"
    elif sources.record and sources.record.status == "died":
        what = "The process ended without a message"
    else:
        how = "It hung" if sources.hung else "It failed"
        what = failure.kind or sources.verdict.signal or f"{how}, and the cause is unknown"
    return f"{what} in {failure.place}" if failure.place else what


def build_sections(sources: Sources, verification: Mapping[str, Any]) -> list[Section]:
    """Return all sections in their order."""
    return [
        Section("Summary", summary(sources)),
        Section("Environment", environment(sources)),
        Section("Steps to reproduce", reproduction(sources, verification)),
        Section("Expected and actual", expected(sources)),
        Section("Stack", stack(sources)),
        Section("Impact", [impact(sources)]),
        Section("Hypotheses", hypotheses(sources)),
        Section("Ruled out", ruled_out(sources)),
        Section("Proposed fix", [fix(sources)]),
        Section("Tests", trials(sources, verification)),
        Section("Progress", [progress(sources, verification)]),
        Section("Not known", [unknown(sources)]),
    ]


def summary(sources: Sources) -> list[Block]:
    """What happened, in one sentence and a few facts."""
    if not sources.failed:
        text = "Nothing here says that it failed."
        if sources.record and sources.record.status == "success":
            text = "This run ended with success: there is no failure to report."
        do = "If it did something other than you expected, describe it under Expected and actual,"
        return [text, f"{do} and share the run."]
    cause = sources.cause
    rows = [
        ["how it ended", ending(sources)],
        *([["cause", f"{code(cause.id)}, confidence {cause.confidence:.2f}"]] if cause else []),
        ["when", when(sources)],
        ["how far", how_far(sources)],
        ["fingerprint", f"{code(sources.failure.id)}, the same for the same failure elsewhere"],
        *([["run folder", code(sources.path.name)]] if sources.kind in ("run", "notebook") else []),
    ]
    if sources.verdict.status == "log" and cause is None:
        return [ending(sources), Table(["", ""], rows)]
    explained: list[Block] = [ticked(cause.explanation)] if cause and cause.explanation else []
    return [*explained, ticked(sentence(sources.verdict)), Table(["", ""], rows)]


def environment(sources: Sources) -> list[Block]:
    """The machine in the order in which maintainers ask for it (torch.utils.collect_env).

    The run wrote it down when it began; else it is looked up, if the run is the user's own.
    """
    recorded, facts = sources.environment, sources.incident.facts
    origin = "Recorded by the run when it started."
    if not recorded and sources.own:
        recorded = host.environment()
        origin = "The run recorded no environment. These are the facts of this machine when the report was written."
        origin += " The packages are those of the Python that wrote it, and may differ from the program's."
    if not recorded and not facts:
        return ["Unknown: nothing was recorded, and nothing proves that you recorded it on this machine."]
    machine, installed = recorded.get("machine") or {}, recorded.get("packages") or {}
    gpu, torch = (facts[name] if isinstance(facts.get(name), dict) else {} for name in ("gpu", "torch"))
    gpu_parts = [str(gpu[name]) for name in ("name", "capability", "driver") if gpu.get(name)]
    gpu_parts += [f"CUDA {torch['cuda']}"] if torch.get("cuda") else []
    cores = f"{recorded.get('cores')} ({recorded.get('physical_cores')})" if recorded.get("cores") else None
    values: dict[str, object] = {
        "ocrlab": recorded.get("revision"),
        "libraries": ", ".join(f"{name} {installed[name]}" for name in LIBRARIES if name in installed),
        "device": machine.get("device") or machine.get("accelerator"),
        "number format": ("bf16" if machine["bf16"] else "fp32") if "bf16" in machine else None,
        "GPU": ", ".join(gpu_parts),
        "OS": recorded.get("platform") or facts.get("platform"),
        "libc": recorded.get("libc"),
        "Python": recorded.get("python") or sources.process.get("python"),
        "CPU": recorded.get("cpu_name"),
        "cores (physical)": cores,
        "CPU flags": " ".join(recorded.get("cpu_flags") or facts.get("cpu_flags") or ()),
        "memory": _size(recorded.get("memory_bytes") or facts.get("memory_limit_bytes")),
        "peak memory": _size(facts.get("memory_peak_bytes")),
        "/dev/shm": _size(recorded.get("shm_bytes") or facts.get("shm_free_bytes")),
        "free disk at the end": _size(facts.get("disk_free_bytes")),
        "open files allowed": facts.get("fd_limit"),
    }
    rows = [[name, code(value) if value else UNKNOWN] for name, value in values.items()]
    basis = origin if recorded else "Only what was measured at the failure is known."
    packages = "\n".join(f"{name}=={version}" for name, version in installed.items())
    folded: list[Block] = [Code(packages, "text", f"All {len(installed)} packages")] if installed else []
    return [basis, Table(["what", "value"], rows), *folded]


def _size(count: object) -> str | None:
    if not isinstance(count, int | float) or not 0 < count < 2**63:
        return None
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def command(sources: Sources) -> list[str] | None:
    """Return the words of the program that failed, without the watcher around it; None if they are unknown."""
    words = sources.process.get("command")
    if not (isinstance(words, list) and words and all(isinstance(word, str) for word in words)):
        return None
    for index, word in enumerate(words[1:3], 1):
        is_module = word == "-m" and words[index + 1 : index + 2] == ["ocrlab"]
        if is_module or Path(word).name == "ocrlab":
            arguments = words[index + 1 + is_module :]
            if arguments[:1] == ["watch"]:
                return arguments[arguments.index("--") + 1 :] if "--" in arguments else None
            return ["ocrlab", *arguments]
    return None if any("ipykernel" in word for word in words) else words


def reproduction(sources: Sources, verification: Mapping[str, Any]) -> list[Block]:
    """How to reproduce it: the exact command, where it was given, and how running it again ended."""
    if sources.kind == "notebook":
        execution = sources.notebook.get("papermill") or {}
        words = ["ocrlab", "run", str(execution.get("input_path") or sources.path.name)]
        for name, value in (execution.get("parameters") or {}).items():
            words += ["-p", str(name), str(value)]
        how = "" if execution else " Nothing says how it was executed; this is how it would be executed again."
        return [Code(shlex.join(words), "sh"), f"The notebook itself belongs to this report.{how}"]
    blocks, items, run = list[Block](), list[str](), sources.path.name
    if words := command(sources) or []:
        folder = sources.process.get("folder")
        lines = [f"cd {shlex.quote(folder)}"] if isinstance(folder, str) else []
        watched = ["ocrlab", "watch", "--", *words] if words[0] != "ocrlab" else words
        blocks.append(Code("\n".join([*lines, shlex.join(watched)]), "sh"))
    else:
        blocks.append("The command is unknown: no record of the process says how it was started.")
    if sources.has_config:
        again = f"{code(f'ocrlab train --config {run}/config.yaml')} trains with the same settings."
        items.append(f"{again} {code('config.yaml')} is private and is not part of this.")
    if sources.recorded:
        items.append(f"{code(f'ocrlab replay {run}')} repeats only the step that failed.")
    blocks += [items] if items else []
    if not verification:
        return [*blocks, f"Not verified: {code('ocrlab report bug RUN --verify')} runs the command again."]
    runs = verification.get("runs")
    if not runs:
        return [*blocks, f"It could not be verified: {verification.get('why') or 'it is unknown why'}."]
    rows = [
        ["the same failure" if row["same"] else "a different ending", code(row["told"]), f"{row['seconds']:.1f}"]
        for row in runs
    ]
    text = f"Verified: run again, and the same failure occurred in {verification['same']} of {len(runs)} runs"
    text += f" (looked for: {code(verification['wanted'])})."
    return [*blocks, text, Table(["result", "description", "s"], rows)]


def expected(sources: Sources) -> list[Block]:
    """What should have happened, which nobody has stated, and what did."""
    wanted = "It ends by itself with exit status 0."
    if sources.has_config:
        wanted = "The training ends by itself, with its last step and a checkpoint."
    if sources.kind == "notebook":
        wanted = "Every cell runs to its end."
    blocks: list[Block] = [
        f"Expected: {wanted} Nothing else about the expected behaviour was recorded.",
        f"Actual: {ending(sources)}",
    ]
    if sources.nonfinite:
        line, name, value = sources.nonfinite
        blocks.append(f"{code(name)} is {code(value)} from line {line} of {code('metrics.csv')} on.")
    texts = sources.incident.texts
    others = (name for name in texts if name not in ("stacks.txt", "kernel_log.txt", "traceback.txt"))
    name = "log_tail.txt" if texts.get("log_tail.txt") else next(others, "")
    if texts.get(name):
        last = "\n".join(texts[name].rstrip().splitlines()[-TAIL:])
        return [*blocks, Code(last, "text", f"The last lines of {name}")]
    return [*blocks, "What it printed is unknown: no output was stored."]


def stack(sources: Sources) -> list[Block]:
    """The failing line with the lines around it, and the whole stack."""
    stack = find_stack(sources.incident.texts, sources.own)
    if not stack.whole:
        return ["Unknown: there is no traceback and no stack."]
    blocks: list[Block] = []
    if stack.frame:
        function, place = code(stack.frame.function), code(f"{stack.frame.file}:{stack.frame.line}")
        blocks.append(f"It failed in {function}, {place}, as {code(stack.file)} shows.")
    blocks.append(Code(stack.source, "python") if stack.source else f"The line itself is unknown: {stack.why_none}.")
    return [*blocks, Code(stack.whole, "text", "The whole stack")]


def impact(sources: Sources) -> Block:
    """What was lost, and what is left."""
    if not sources.failed:
        return "None is known."
    items = ["Who else is affected is unknown."]
    if sources.has_config:
        again = code(f"ocrlab train --resume {shlex.quote(sources.path.name)}")
        left = (sources.path / "checkpoints" / "last.ckpt").is_file()
        lost = "No checkpoint was written: the whole run is lost."
        items.append(f"A checkpoint is left: {again} goes on from it." if left else lost)
    silent = number(sources.incident.facts.get("silent_seconds"))
    if silent and sources.hung:
        items.append(f"It made no progress for {silent:.0f} s.")
    return items


def hypotheses(sources: Sources) -> list[Block]:
    """Every possible cause, with its confidence and the lines that support it."""
    rows = []
    for cause in sources.verdict.causes:
        entry = _entry(cause.id)
        name = f"{entry.title if entry else ''} {code(cause.id)}".strip()
        state = "supported" if cause.confidence >= SURE else "open"
        places = [(f"{line.file}:{line.line}" if line.line else line.file, line.text[:200]) for line in cause.evidence]
        lines = "; ".join(f"{code(place)} {code(text)}" for place, text in places) or "it matches what was observed"
        rows.append([name, state, f"{cause.confidence:.2f}", lines])
    for file, record in sources.bisects:
        if record.get("status") == "found":
            posterior = record.get("posterior")
            confidence = UNKNOWN if posterior is None else f"{posterior:.2f}"
            evidence = f"{code(file)} {_answer(record.get('sentence'))}"
            names = record.get("culprits") or []
            rows += [[f"Setting {code(name)}", "supported", confidence, evidence] for name in names]
    if not rows:
        return ["None: nothing observed supports a known cause."]
    blocks: list[Block] = [Table(["hypothesis", "status", "confidence", "evidence"], rows)]
    if sources.cause and sources.cause.experiment:
        blocks += ["To confirm it:", Code(sources.cause.experiment)]
    return blocks


def ruled_out(sources: Sources) -> list[Block]:
    """What was checked and is not the reason."""
    rows = [[code(out.id), "refuted", ticked(out.why)] for out in sources.verdict.ruled_out]
    for file, record in sources.bisects:
        if record.get("status") in ("found", "none"):
            names = [row.get("name") for row in record.get("factors") or []]
            innocent = [name for name in names if name not in (record.get("culprits") or [])]
            rows += [[f"Setting {code(name)}", "refuted", f"{code(file)}: it does not change it"] for name in innocent]
    return [Table(["cause", "status", "why"], rows)] if rows else ["Nothing was ruled out."]


def fix(sources: Sources) -> Block:
    """The fix, as far as the cause is known, and the ways around it that were tried."""
    cause, items = sources.cause, _workarounds(sources)
    proposed = []
    if cause and cause.fix:
        unsure = "" if cause.confidence >= SURE else f"If it is {code(cause.id)}, which is not certain: "
        proposed = [f"{unsure}{ticked(cause.fix)} Nothing here shows that this was tried."]
    return [*items, *proposed] or ["Unknown, like the cause."]


def _workarounds(sources: Sources) -> list[str]:
    """Return what bisects and replays have shown to avoid the failure, each as a sentence."""
    items = [
        f"Until it is fixed: {code(record['until_mended'])}, as {code(file)} found."
        for file, record in sources.bisects
        if record.get("until_mended")
    ]
    for file, record in sources.replays:
        rows = [row for row in record.get("cells") or [] if not row.get("not_done") and not row.get("alone")]
        if any(row.get("cell") == AS_IT_WAS and row.get("fault") for row in rows):
            passed = [row["cell"] for row in rows if row.get("cell") in REMEDIES and not row.get("fault")]
            items += [f"In {code(file)} the step that failed had no fault with {code(variant)}." for variant in passed]
    return items


def trials(sources: Sources, verification: Mapping[str, Any]) -> list[Block]:
    """What was run (replays, bisects, runs again), each with its result, and the commands that were not."""
    blocks: list[Block] = []
    for file, record in sources.replays:
        rows = [[code(row.get("cell")), code(_result(row)), _seconds(row)] for row in record.get("cells") or []]
        blocks += [f"{code(file)}: {_answer(record.get('answer'))}"]
        blocks += [Table(["variant", "result", "s"], rows[:SHOWN])] if rows else []
    for file, record in sources.bisects:
        flips = [(", ".join(row.get("flipped") or ["nothing"]), row) for row in record.get("table") or []]
        rows = [[code(flipped), _answer(row.get("ended")), _seconds(row)] for flipped, row in flips]
        blocks += [f"{code(file)}: {_answer(record.get('sentence'))}"]
        blocks += [Table(["flipped", "how it ended", "s"], rows[:SHOWN])] if rows else []
    if verification.get("runs"):
        same = f"{verification['same']} of {len(verification['runs'])}"
        blocks.append(f"Run again: {same} failed in the same way, see above.")
    left = []
    if sources.recorded and not sources.replays:
        left.append(f"{code(f'ocrlab replay {sources.path.name}')} (which module, operator and sample)")
    if sources.has_config and not sources.bisects:
        left.append(f"{code(f'ocrlab bisect {sources.path.name}')} (which setting makes it fail)")
    left.append(f"{code('ocrlab doctor')} (what is broken on this machine)")
    return [*blocks, f"Not run: {', '.join(left)}."]


def _result(row: Mapping[str, Any]) -> str:
    """Return how a variant of a replay ended."""
    if row.get("not_done"):
        return f"not done: {row['not_done']}"
    fault = row.get("fault")
    if not fault:
        return "one sample after the other" if row.get("alone") else "no fault"
    what = next((fault[key] for key in ("exception", "signal", "value", "kind") if fault.get(key)), "a fault")
    place = fault.get("path") or fault.get("module") or fault.get("line")
    return f"{str(what).strip().splitlines()[0][:120]}{f' in {place}' if place else ''}"


def progress(sources: Sources, verification: Mapping[str, Any]) -> Block:
    """What is done and what is not."""
    cause = sources.cause
    replayed = sources.verdict.status != "log" and any(record.get("fault") for _, record in sources.replays)
    again = bool(verification.get("same")) or replayed
    return {
        "failure recorded": sources.failed,
        "reproduced" if again else f"reproduced: {code('--verify')} runs it again": again,
        "first fault placed: module, operator, sample": replayed,
        f"cause named with confidence {SURE:g} or more": cause is not None and cause.confidence >= SURE,
        "fix proposed": bool(cause and cause.fix),
        "a workaround tried and shown to work": bool(_workarounds(sources)),
        "fix tried": False,
        "regression test written": False,
    }


def unknown(sources: Sources) -> Block:
    """What is not known, and what would have shown it."""
    own = next_steps.own_error(sources.verdict)  # which stands in the summary
    missing = [text for text in sources.verdict.missing if not (own and text.endswith(own))]
    items = [ticked(text) for text in (*missing, *sources.unread)]
    if sources.kind == "run" and not sources.replays:
        replay = code(f"ocrlab replay {sources.path.name}")
        why = f"{replay} was not run" if sources.recorded else "there is no flight record to replay"
        items.append(f"Module, operator and sample of the first fault: {why}.")
    return items or ["Nothing else is known to be missing."]


def ending(sources: Sources) -> str:
    """Return how it ended in words."""
    verdict, record = sources.verdict, sources.record
    status = record.status if record else ""
    seconds = number(sources.incident.facts.get("run_seconds"))
    after = f" after {seconds:.1f} s" if seconds is not None else ""
    if status == "success":
        return "It ended with success."
    if sources.hung:
        return f"It hung: it stopped making progress{after}."
    if verdict.signal:
        return f"It was killed by {verdict.signal}{after}."
    if verdict.exit_code is not None:
        return f"It ended with exit status {verdict.exit_code}{after}."
    if status in ("running", "died"):
        return "It is still running." if status == "running" else "Its process is gone and left no message."
    if record and record.error:
        return f"It ended with {code(str(record.error.get('type'))[:200])}{after}."
    return "How it ended is unknown."


def when(sources: Sources) -> str:
    """Return when it began and ended."""
    if sources.record is None or not sources.record.started:
        return UNKNOWN
    try:
        began = datetime.fromisoformat(sources.record.started)
        text = f"{began:%Y-%m-%d %H:%M:%S} UTC"
        if sources.record.ended:
            text += f", for {(datetime.fromisoformat(sources.record.ended) - began).total_seconds():.0f} s"
        return text
    except (ValueError, TypeError):
        return code(sources.record.started[:40])


def how_far(sources: Sources) -> str:
    """Return the last step that is known."""
    steps = [step for row in sources.steps if (step := number(row.get("step"))) is not None]
    beat, step = sources.incident.facts.get("heartbeat"), sources.last_step
    parts = [f"step {steps[-1]:.0f} in {code('metrics.csv')}"] if steps else []
    if isinstance(beat, Mapping) and beat.get("step") is not None:
        parts.append(f"its last heartbeat was in step {code(beat['step'])} ({code(beat.get('phase') or UNKNOWN)})")
    parts += [f"step {step} was running, according to the flight record"] if step is not None else []
    return ", ".join(parts) or UNKNOWN


def _entry(cause: str) -> catalogue.Entry | None:
    return catalogue.load().entries.get(cause)


def _seconds(row: Mapping[str, Any]) -> str:
    return f"{row['seconds']:.1f}" if row.get("seconds") is not None else ""


def _answer(value: object) -> str:
    return code(str(value)[:600] if value else "no answer")
