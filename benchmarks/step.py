"""How long is one training step? Ours in bf16 and fp32 against other implementations of DBNet, 2 threads.

    python benchmarks/step.py --peer official=../DB        a checkout of MhLiao/DB, the paper's own code
    python benchmarks/step.py --smoke                      the same path in seconds, on tiny images

Every side steps on the same batch, 2 x 3 x 640 x 640, as it does in its own training (`step_sides.py`). Each lives in
its own process, so that our memory settings cannot help the others, and they step in turn, never two at a time. The
order changes every round; the first rounds only warm up.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from table import figure, judged, markdown, page, parser, publish

from ocrlab.hardware import host

LIMIT = 0.27  # of the official step, where the CPU has AMX
WARM_UP = 2  # rounds
PAUSE = 0.05  # seconds; an OpenMP pool spins for a moment after its last loop, on the cores that the next side needs
OURS = ("ours bf16", "ours fp32")
PEERS = ("official",)


@dataclass
class Side:
    """One implementation: what it said about itself, and its measurements, one a round."""

    name: str
    about: dict[str, Any] = field(default_factory=dict)
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    fault: str | None = None  # why it is not measured


Pair = tuple[Side, "subprocess.Popen[str]"]


def main() -> None:
    """Measure, print the table, and end with 1 where the limit is not met."""
    args = arguments()
    named = dict(word.partition("=")[::2] for word in args.peer)
    sides = [Side(name) for name in (*OURS, *PEERS, *(name for name in named if name not in PEERS))]
    with contextlib.ExitStack() as stack:
        pairs = [
            (side, stack.enter_context(process(side.name, named.get(side.name, ""), args)))
            for side in sides
            if buildable(side, named)
        ]
        for side, child in pairs:
            side.about = read_answer(side, child)
        measure(pairs, args.rounds)
    met, body = report(sides, args.size, args.threads)
    publish("step", page("One training step", body), args)
    sys.exit(1 if met is False else 0)


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    options = parser(__doc__)
    peer = f"another implementation and its checkout; NAME is {' or '.join(PEERS)}"
    options.add_argument("--peer", action="append", default=[], metavar="NAME=PATH", help=peer)
    options.add_argument("--rounds", type=int, default=9, help="measured rounds, 7 or more for a result (default 9)")
    options.add_argument("--size", type=int, default=640, help="pixels, side of the images (default 640)")
    options.add_argument("--threads", type=int, default=2, help="of each side (default 2)")
    options.add_argument("--smoke", action="store_true", help="two rounds at 64 px, one thread: does it run at all")
    args = options.parse_args()
    if args.smoke:
        args.rounds, args.size, args.threads = 2, 64, 1
    return args


def buildable(side: Side, named: dict[str, str]) -> bool:
    """Return whether a side can be tried; if not, its `fault` says why."""
    if side.name not in OURS and side.name not in PEERS:
        side.fault = f"step_sides.py knows how to build {' and '.join(PEERS)}"
    elif side.name in PEERS and side.name not in named:
        side.fault = f"no --peer {side.name}=PATH given"
    return side.fault is None


@contextlib.contextmanager
def process(name: str, path: str, args: argparse.Namespace) -> Iterator[subprocess.Popen[str]]:
    """Run the process of one side."""
    script = Path(__file__).with_name("step_sides.py")
    words = [sys.executable, str(script), name, "--size", str(args.size), "--threads", str(args.threads)]
    words += ["--path", path] if path else []
    environment = os.environ | {"OMP_NUM_THREADS": str(args.threads), "MKL_NUM_THREADS": str(args.threads)}
    pipe = subprocess.PIPE
    child = subprocess.Popen(words, env=environment, stdin=pipe, stdout=pipe, text=True)
    try:
        yield child
    finally:
        child.kill()  # it holds nothing that is worth closing
        child.communicate()


def read_answer(side: Side, child: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the next answer of a side; where it fails or dies that is empty, and its `fault` says why."""
    assert child.stdout is not None, "started with a pipe"
    line = child.stdout.readline()
    answer: dict[str, Any] = json.loads(line) if line else {"fault": f"died with exit status {child.wait()}"}
    side.fault = answer.pop("fault", None)
    return answer


def measure(pairs: Sequence[Pair], rounds: int) -> None:
    """Let every side warm up and then do one step a round, starting with another side each time."""
    for index in range(WARM_UP + rounds):
        turn = index % len(pairs)
        for side, child in (*pairs[turn:], *pairs[:turn]):
            if side.fault or child.stdin is None:
                continue
            time.sleep(PAUSE)
            child.stdin.write("step\n")
            child.stdin.flush()
            answer = read_answer(side, child)
            if answer and index >= WARM_UP:
                side.wall.append(answer["wall"])
                side.cpu.append(answer["cpu"])
                side.about["memory"] = answer["memory"]


def report(sides: Sequence[Side], size: int, threads: int) -> tuple[bool | None, str]:
    """Return whether the limit is met (None: not judged) and the text with the table."""
    measured = {side.name: side for side in sides if side.wall and not side.fault}
    ours, base = measured.get("ours bf16"), measured.get("official")
    header = ("side", "step", "fastest .. slowest", "of official", "CPU", "peak memory", "parameters")
    rounds = max((len(side.wall) for side in sides), default=0)
    lines = [f"Images 2 x 3 x {size} x {size}, {threads} threads, median of {rounds} rounds in turn.", ""]
    lines += [markdown(header, [row(side, base) for side in sides]), ""]
    for name, side in measured.items():
        what = f"one training step, 2 x 3 x {size} x {size}, {threads} threads: {name}"
        figure(what, statistics.median(side.wall), "s", peer=name if name in PEERS else None)
    if ours is None or base is None:
        return None, "\n".join([*lines, f"Limit {LIMIT} of the official step: not judged, a side is missing."])
    ratio = statistics.median(ours.wall) / statistics.median(base.wall)
    cpu = statistics.median(ours.cpu) / statistics.median(base.cpu)
    figure("ours in bf16 / official", ratio, "share", limit=f"<= {LIMIT}", peer="official")
    fits = size == 640 and "amx_bf16" in host.cpu_flags()
    met = ratio <= LIMIT if fits else None
    why = "" if fits else " (that takes 640 px and a CPU with amx_bf16)"
    sentence = f"Ours in bf16 / official: {ratio:.3f} ({cpu:.3f} by CPU seconds); limit {LIMIT}: {judged(met)}{why}."
    return met, "\n".join([*lines, sentence])


def row(side: Side, base: Side | None) -> tuple[str, ...]:
    """Return the cells of one side; `base` is what the others are compared with."""
    if side.fault or not side.wall:
        return (side.name, f"not measured: {side.fault}", *["-"] * 5)
    median = statistics.median(side.wall)
    return (
        side.name,
        f"{median:.3f} s",
        f"{min(side.wall):.3f} .. {max(side.wall):.3f} s",
        f"{median / statistics.median(base.wall):.3f}" if base else "-",
        f"{statistics.median(side.cpu):.2f} s",
        f"{side.about['memory']:.1f} GiB",
        f"{side.about['parameters'] / 1e6:.1f} M",
    )


if __name__ == "__main__":
    main()
