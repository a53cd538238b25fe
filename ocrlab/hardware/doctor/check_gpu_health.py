"""Step 7: memory in use and by whom, temperature, clocks, ECC, and the kernel's Xid lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ocrlab.hardware.doctor.check_driver import merged
from ocrlab.hardware.doctor.check_spec import PROBES, Answers, Facts, Options, Probe, fail, ok, size, skip, warn
from ocrlab.records import Check

BUSY = 0.10  # of a card's memory; a desktop takes some 0.05
HOT = 85  # degrees Celsius; most cards lower their clocks between 83 and 95
HANG = "hang.cuda_init"  # what it means when neither NVML nor nvidia-smi returns
RECENT = 86_400.0  # seconds; an Xid of yesterday still explains the crash of this morning
SMI = 8.0  # seconds; with eight cards and without persistence it takes 5
XID = re.compile(r"NVRM: Xid \((?P<card>[^)]*)\): (?P<number>\d+)(?:,\s*(?P<rest>.*))?")
HARDWARE = {48, 63, 64, 74, 79, 92, 94, 95, 110, 119, 120}  # faults of the card, its bus or its firmware
KILLED = re.compile(r"Killed process (?P<pid>\d+) \((?P<name>[^)]*)\)(?:.*?anon-rss:(?P<kb>\d+)kB)?")
TRAP = re.compile(r"(?P<name>[^\s\[\]]+)\[(?P<pid>\d+)\] trap invalid opcode.*? in (?P<library>[^\s\[]+)\[")


def asks(options: Options) -> list[Probe]:
    """Return the asks of step 7; NVML answers in milliseconds, or never where the driver is stuck."""
    probe, gpu = PROBES / "nvml.py", ("driver",)
    return [
        Probe(7, "GPU health", probe, "health", judge, 15, own=True, after=gpu, skip=no_card, hang=HANG),
        Probe(
            7,
            "nvidia-smi",
            probe,
            "smi",
            judge_smi,
            SMI + 4,
            {"seconds": SMI},
            own=True,
            after=gpu,
            skip=no_card,
            hang=HANG,
        ),
        Probe(7, "kernel log", PROBES / "resource_limits.py", "kernel", judge_log, 15, {"seconds": RECENT}, own=True),
    ]


def no_card(facts: Facts) -> str | None:
    """Return why no card can be asked for its health."""
    kernel, library = merged(facts.get("driver", []))
    if "driver" not in facts or kernel["cards"] or kernel["nodes"] or kernel["dxg"] or library.get("devices"):
        return None
    return "no NVIDIA GPU on this machine"


def judge(answers: Answers, facts: Facts) -> Iterator[Check]:
    """Yield the findings on every card."""
    [answer] = answers
    if not answer["loaded"]:
        do = "install the driver's nvidia-utils; in a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        yield warn("GPU health", f"NVML is not there: {answer['error']}", "libnvidia-ml.so.1", do, "driver.state")
        return
    if answer["code"]:
        observed = answer["error"]
        yield fail("GPU health", observed, "NVML starts", "sudo reboot: kernel module and driver libraries differ",
                   "driver.state")  # fmt: skip
        return
    for number, card in enumerate(answer["cards"]):
        if "error" in card:
            yield fail(f"GPU {number}", card["error"], "it answers", "dmesg | grep -i xid; sudo reboot", "hw.gpu")
            continue
        yield judge_memory(number, card, answer.get("holders") or [])
        yield judge_health(number, card)
    if not answer["cards"]:
        yield skip("GPU health", "NVML shows no card")


def judge_memory(number: int, card: dict[str, Any], holders: list[dict[str, Any]]) -> Check:
    """Judge the memory of a card that others hold already."""
    label, total = f"GPU {number} memory", card.get("total") or 0
    if not total:
        return skip(label, "the card does not tell")
    observed = f"{size(card['used'])} of {size(total)} in use"
    who = [
        f"{process['name'] or 'a process of another container'} ({process['pid']}{_bytes(process['bytes'])})"
        for process in card["processes"]
    ]
    observed += f" by {', '.join(who)}" if who else ""
    if card["used"] > BUSY * total:
        if not who and holders:
            names = ", ".join(f"{process['name']} ({process['pid']})" for process in holders)
            observed += f"; /dev/nvidia* is held open by {names}"
        elif not who:
            observed += ", by no process that is visible here: another container, or one that died"
        pids = " ".join(str(process["pid"]) for process in card["processes"] or holders if process["name"])
        do = f"kill {pids}" if pids else "nvidia-smi on the host names it; sudo fuser -v /dev/nvidia*"
        return warn(label, observed, f"at most {BUSY:.0%} before a training begins", do, "gpumem.foreign")
    return ok(label, observed)


def _bytes(count: int | None) -> str:
    return f", {size(count)}" if count is not None else ""


def judge_health(number: int, card: dict[str, Any]) -> Check:
    """Judge errors of a card's memory, its temperature and what slows it down."""
    label, remap = f"GPU {number} health", card.get("remap") or {}
    parts = [f"{card['temperature']} °C"] if "temperature" in card else []
    parts += [f"{card['clock']} of {card.get('clock_most', '?')} MHz"] if "clock" in card else []
    parts += [f"{card['power'] / 1000:.0f} of {card.get('power_limit', 0) / 1000:.0f} W"] if "power" in card else []
    parts += [f"{card['ecc']} uncorrectable ECC errors"] if "ecc" in card else []
    parts += [f"slowed down by {', '.join(card['throttled'])}"] if card["throttled"] else []
    observed, do = ", ".join(parts) or "it tells nothing", "nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT; reboot"
    if remap.get("failed"):
        return fail(label, f"{observed}; a row could not be replaced", "healthy memory", "exchange the card", "hw.gpu")
    if card.get("ecc"):
        return fail(label, observed, "no uncorrectable ECC error", do, "hw.gpu")
    if remap.get("pending") or card.get("retired_pending"):
        return warn(label, f"{observed}; rows wait for a reset to be replaced", "none", "sudo reboot", "hw.gpu")
    thermal = [name for name in card["throttled"] if "thermal" in name or "brake" in name]
    if thermal or card.get("temperature", 0) >= min(HOT, card.get("slowdown", HOT)):
        return warn(
            label, observed, f"below {HOT} °C", "nvidia-smi -q -d TEMPERATURE,PERFORMANCE; clean the fans", "hw.gpu"
        )
    return ok(label, observed)


def judge_smi(answers: Answers, facts: Facts) -> Iterator[Check]:
    """Yield the finding on nvidia-smi: it is the first thing to hang with a driver."""
    [answer] = answers
    if answer.get("missing"):
        yield skip("nvidia-smi", "not installed; nothing needs it")
    elif "hung" in answer:
        observed = f"nvidia-smi did not return within {answer['hung']:.0f} s"
        yield fail("nvidia-smi", observed, "an answer", "dmesg | grep -iE 'nvrm|xid'; sudo reboot", "hang.cuda_init")
    elif answer.get("status") or "error" in answer:
        message = str(answer.get("said") or answer.get("error")).strip().partition("\n")[0]
        observed = f"exit status {answer.get('status')}: {message}"
        yield fail("nvidia-smi", observed, "it lists the cards", "mend what step 4 says of the driver", "driver.state")
    else:
        yield ok("nvidia-smi", f"lists {answer['said'].count('GPU ')} cards")


def judge_log(answers: Answers, facts: Facts) -> Iterator[Check]:
    """Yield the findings on the kernel's log: Xid lines, illegal instructions, and what was killed for memory."""
    [answer] = answers
    if answer["missing"]:
        yield skip("kernel log", answer["missing"])
        return
    lines: list[str] = answer["lines"]
    xids = [match for line in lines if (match := XID.search(line))]
    if xids:
        numbers = sorted({int(match["number"]) for match in xids})
        observed = f"Xid {', '.join(map(str, numbers))}; the last: {xids[-1][0]}"
        cause = "hw.gpu" if HARDWARE & set(numbers) else "hw.xid_app"
        judged = fail if HARDWARE & set(numbers) else warn
        yield judged(
            "kernel log: Xid", observed, "no Xid", "dmesg | grep -i xid; ocrlab diagnose --explain hw.gpu", cause
        )
    killed = [match for line in lines if (match := KILLED.search(line))]
    traps = [match for line in lines if (match := TRAP.search(line))]
    if traps:
        last = traps[-1]
        observed = f"{len(traps)} illegal instructions in the last day; the last: {last['name']} in {last['library']}"
        do = f"reinstall what brings {last['library']}; dmesg | grep 'invalid opcode'"
        yield warn("kernel log: SIGILL", observed, "no illegal instruction", do, "build.cpu_isa")
    if killed:
        last = killed[-1]
        resident = f", which held {size(int(last['kb']) * 1024)}" if last["kb"] else ""
        observed = f"{len(killed)} processes killed for memory in the last day; the last: {last['name']}{resident}"
        do = "fewer loader workers and smaller batches; dmesg | grep 'Killed process'"
        yield warn("kernel log: memory", observed, "nothing killed for memory", do, "host.oom_kill")
    if not (xids or traps or killed):
        yield ok("kernel log", "no Xid, no illegal instruction, nothing killed for memory in the last day")
