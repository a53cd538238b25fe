"""What do hooks on modules cost a training step? `decoder.fusion` and all modules, statistics every 10 steps.

    python benchmarks/layers.py                 all kinds of steps in turn, in one process
    python benchmarks/layers.py --smoke         the same path in seconds, on tiny images

One network steps on one batch: bare, with hooks in a step that is looked at, and with hooks in one that is not, in an
order that turns. A tenth of the first and nine tenths of the second, by medians, are compared with the bare step.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Callable

import torch
from step_sides import noise_batch, ours
from table import figure, judged, markdown, page, parser, publish
from torch import nn

from ocrlab.debug.instruments.layers import layer_watch

EVERY = 10  # steps, of which statistics are taken in one
LIMITS = {"decoder.fusion": 0.01, "*": 0.10}  # of a step
NEVER = 1 << 30


def main() -> None:
    """Measure, print the table, and end with 1 where a limit is not met."""
    args = arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    step, model = watched_step(args.size, args.threads)
    step()
    seconds = measure(step, model, args.rounds)
    met, body = report(seconds, args)
    publish("layers", page("Hooks on modules", body), args)
    sys.exit(0 if met or args.smoke else 1)


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=24, help="steps of each kind (default 24)")
    options.add_argument("--size", type=int, default=320, help="pixels, side of the images (default 320)")
    options.add_argument("--threads", type=int, default=2, help="(default 2)")
    options.add_argument("--smoke", action="store_true", help="one round at 64 px, one thread: does it run at all")
    args = options.parse_args()
    if args.smoke:
        args.rounds, args.size, args.threads = 1, 64, 1
    return args


def watched_step(size: int, threads: int) -> tuple[Callable[[], float], nn.Module]:
    """Return a training step of ocrlab in fp32, ResNet-18, and the detector that it trains."""
    modules: list[nn.Module] = []
    handle = nn.modules.module.register_module_forward_pre_hook(lambda module, _: modules.append(module))
    step, _ = ours(noise_batch(size), threads, bf16=False)
    step()  # the first module that is called is the detector
    handle.remove()
    return step, modules[0]


def measure(step: Callable[[], float], model: nn.Module, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of single steps: bare, and for each pattern looked at and let pass; in an order that turns."""
    kinds = ["bare", *(f"{how} {which}" for which in LIMITS for how in ("looked", "passed"))]
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for index in range(rounds):
        turn = index % len(kinds)
        for kind in (*kinds[turn:], *kinds[:turn]):
            how, _, which = kind.partition(" ")
            with contextlib.ExitStack() as stack:
                if which:
                    watch = stack.enter_context(layer_watch.watch(model, which, every=1 if how == "looked" else NEVER))
                    if how == "passed":
                        watch.step()
                began = time.perf_counter()
                step()
                seconds[kind].append(time.perf_counter() - began)
    return seconds


def report(seconds: dict[str, list[float]], args: argparse.Namespace) -> tuple[bool, str]:
    """Return whether both limits are met, and the text with the table."""
    middle = {kind: 1000 * statistics.median(times) for kind, times in seconds.items()}
    rows, met = [("nothing", f"{middle['bare']:.1f} ms", "-", "-", "-", "-")], True
    for which, limit in LIMITS.items():
        looked, passed = middle[f"looked {which}"], middle[f"passed {which}"]
        cost = (looked + (EVERY - 1) * passed) / (EVERY * middle["bare"]) - 1
        met = met and cost <= limit
        name = "all modules" if which == "*" else which
        figure(f"hooks on {name}, of a step, 1 in {EVERY} looked at", cost, "share", limit=f"<= {limit}")
        columns = (f"{passed:.1f} ms", f"{looked:.1f} ms", f"{100 * cost:+.2f} %", f"{100 * limit:g} %")
        rows.append((name, *columns, judged(cost <= limit)))
    head = ("hooks on", "step", "step looked at", f"of a step, 1 in {EVERY} looked at", "must", "")
    spread = statistics.quantiles(seconds["bare"], n=4) if len(seconds["bare"]) > 1 else [0.0, 0.0, 0.0]
    text = f"Images 2 x 3 x {args.size} x {args.size}, ResNet-18, fp32, {args.threads} threads; inputs, outputs, "
    text += f"weights and gradients; medians of {args.rounds} single steps of each kind in turn (half of the bare "
    text += f"ones: between {1000 * spread[0]:.1f} and {1000 * spread[2]:.1f} ms)."
    return met, f"{text}\n\n{markdown(head, rows)}"


if __name__ == "__main__":
    main()
