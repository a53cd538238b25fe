"""`ocrlab memory watch`: GPUs, processes, shared memory and control group of a training, and when they are full."""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from typing import Any

from ocrlab.cli.parser import COUNT, Answer, number, table
from ocrlab.cli.streams_and_signals import answer_line
from ocrlab.debug.diagnosis.oom_message import size_text
from ocrlab.debug.memory.monitor_log import Monitor, limits, newest
from ocrlab.errors import ConfigError
from ocrlab.hardware.processes import process_tree

RUNS = "runs"
PROCESSES = 6  # named
EXAMPLES = """
  ocrlab memory watch                       the newest run that is alive, else the whole machine
  ocrlab memory watch 4242                  one process and everything it started
  ocrlab memory watch 4242 --seconds 5 --json > memory.jsonl
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the words of this command."""
    parser.add_argument(
        "pid", nargs="?", type=int, metavar="PID", help="process id (default: the newest run that is alive)"
    )
    parser.add_argument(
        "--seconds",
        type=number(float, "0.1 seconds or more", lambda value: 0.1 <= value < math.inf),
        default=1.0,
        metavar="N",
        help="seconds between two samples (default: 1)",
    )
    parser.add_argument(
        "--count", type=COUNT, metavar="N", help="number of samples (default: until the process ends, or Ctrl-C)"
    )


def run(args: argparse.Namespace) -> Answer:
    """Watch until the process ends; with --json one line a sample as it is made, and the last one as the answer.

    Raises ConfigError for a process that does not exist.
    """
    pid, what = args.pid, "the whole machine"
    if pid is not None:
        process = process_tree.read_process(pid)
        if process is None or process.state in "ZX":
            raise ConfigError(f"There is no process {pid}", do="ocrlab memory watch without PID: the newest run")
        what = f"{process.name} ({pid})"
    elif run := newest(RUNS):
        pid, what = run[0], f"run {run[1].name} ({run[0]})"
    monitor, screen = Monitor(pid, args.seconds), Screen(args.json)
    last: dict[str, Any] = {}
    try:
        for count in itertools.count(1):
            sample = monitor.sample()
            if not sample["alive"] and last:
                break
            last = sample
            if count == args.count or not sample["alive"]:
                break
            screen.show(last, what)
            time.sleep(args.seconds)
    except KeyboardInterrupt:  # this is how people end it
        pass
    finally:
        monitor.close()
        screen.clear()
    return Answer(last, text(last, what) if last else "")


class Screen:
    """Where samples go: a block that is drawn again on a terminal, else a line each; JSON lines where asked."""

    def __init__(self, as_json: bool) -> None:
        self.as_json, self.lines_shown = as_json, 0
        self.terminal = not as_json and sys.stdout.isatty()

    def show(self, sample: dict[str, Any], what: str) -> None:
        """Write a sample."""
        if self.as_json:
            answer_line(sample)
        elif self.terminal:
            self.clear()
            block = text(sample, what)
            self.lines_shown = block.count("\n") + 1
            print(block, flush=True)
        else:
            print(line(sample), flush=True)

    def clear(self) -> None:
        """Take the block off the terminal."""
        if self.lines_shown:
            print(f"\x1b[{self.lines_shown}A\x1b[J", end="", flush=True)
            self.lines_shown = 0


def line(sample: dict[str, Any]) -> str:
    """Return a sample in one line."""
    parts = [f"{sample['seconds']:.0f} s"]
    for name, (used, limit) in limits(sample).items():
        whole = f" of {size_text(int(limit))}" if limit else ""
        parts.append(f"{name} {size_text(int(used))}{whole}{_growing(sample, name, ', ')}")
    missing = sample["gpus"].get("missing")
    return " | ".join(parts + ([f"gpus: {missing}"] if missing else []))


def text(sample: dict[str, Any], what: str) -> str:
    """Return a sample as a block: a row for each limit, then the cards, then the largest processes."""
    rows: list[tuple[str, ...]] = [("", "used", "of", "grows")]
    for name, (used, limit) in limits(sample).items():
        rows.append((name, size_text(int(used)), size_text(int(limit)) if limit else "", _growing(sample, name)))
    parts = [f"{what}, {sample['seconds']:.0f} s", table(rows)]
    parts += [_card(card) for card in sample["gpus"].get("cards", ())]
    parts += [f"GPUs: {sample['gpus']['missing']}"] if sample["gpus"].get("missing") else []
    used_memory = [(use.get("pss") or use["rss"], use) for use in sample["host"]["processes"]]
    largest = sorted(used_memory, key=lambda pair: -pair[0])[:PROCESSES]
    parts.append(table([(use["role"], use["pid"], use["name"], size_text(size)) for size, use in largest] or [("",)]))
    return "\n".join(part for part in parts if part)


def _card(card: dict[str, Any]) -> str:
    """Return what a card does and who holds its memory."""
    parts = [f"gpu {card['index']} {card.get('name', '')}"]
    parts += [f"{card['utilisation']} % busy"] if "utilisation" in card else []
    parts += [f"{card['temperature']} °C"] if "temperature" in card else []
    if "power" in card:
        limit = f" of {card['power_limit'] / 1000:.0f}" if "power_limit" in card else ""
        parts.append(f"{card['power'] / 1000:.0f}{limit} W")
    parts += [f"throttled: {', '.join(card['throttled'])}"] if card.get("throttled") else []
    for process in card.get("processes", ()):
        whose = "ours" if process.get("ours") else "other"
        memory = "an unknown amount" if process["bytes"] is None else size_text(process["bytes"])
        parts.append(f"{process['name'] or 'process'} {process['pid']} ({whose}) {memory}")
    return ", ".join(parts)


def _growing(sample: dict[str, Any], name: str, before: str = "") -> str:
    growth = sample["growth"][name]
    if not growth["grows"]:
        return ""
    full = "" if growth["left"] is None else f", full in {growth['left'] / 60:.1f} min"
    return f"{before}+{size_text(int(growth['rate']))}/s{full}"
