"""Which encoder and decoder learn most for the same time on this CPU? hmean@0.5 on the receipts after equal seconds.

    python benchmarks/decoders.py --data ../shared/data/sroie                     4 minutes of training each
    python benchmarks/decoders.py --data data_samples --steps 2                   does it run at all

Each network first runs a few steps to see how long one takes, then trains for as many as fit the time, so that each
goes through its whole learning-rate schedule; cut off by the clock, the slow ones would lose for ending hot.
"""

from __future__ import annotations

import argparse
import statistics

import runs
from runs import Run
from table import figure, markdown, page, parser, publish

from ocrlab.config.schema import Config

NETWORKS = ("resnet18_slim+fpn", "resnet18_slim+unet", "resnet18+fpn", "resnet18+unet", "mobilenet_v3_large+fpn")
TRIAL = 24  # steps; the first ones are slower
QUIET = ("evaluate.long_side=64",)  # a trial is not there to be validated


def main() -> None:
    """Train every network in turn and print the table."""
    args = arguments()
    done = []
    for network in args.networks.split(","):
        common = [f"data={args.data}", f"runs={args.runs}", *setting(network), *args.settings]
        steps = args.steps or fitting(common, args.minutes)
        schedule = [f"trainer.max_steps={steps}", f"trainer.val_every={steps}"]
        done.append((network, runs.train([*common, *schedule, f"name={network}"])))
    publish("decoders", page("Encoders and decoders for the same time", report(done)), args)


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    command = parser(__doc__)
    command.add_argument("--data", required=True, help="the folder with train/ and val/")
    command.add_argument("--minutes", type=float, default=4.0, help="of training for each (default 4)")
    command.add_argument("--steps", type=int, help="the same number of steps for each instead")
    command.add_argument("--networks", default=",".join(NETWORKS), metavar="LIST", help="ENCODER+DECODER,...")
    command.add_argument("--runs", default="runs/benchmarks", help="where the run folders go (default runs/benchmarks)")
    command.add_argument("settings", nargs="*", metavar="key=value", help="for all trainings")
    return command.parse_intermixed_args()


def setting(network: str) -> list[str]:
    """Return the settings that choose a network written as ENCODER+DECODER."""
    encoder, _, decoder = network.partition("+")
    width = 64 if encoder.endswith("_slim") else 128  # the decoder that goes with it
    return [f"encoder={encoder}", f"decoder={decoder}", f"width={width}"]


def fitting(settings: list[str], minutes: float) -> int:
    """Return how many steps of this network fit the time, judged by a short run."""
    quick = [f"trainer.max_steps={TRIAL}", f"trainer.val_every={TRIAL}", "trainer.log_every=4", "name=trial"]
    return steps_in(minutes, runs.train([*settings, *quick, *QUIET]))


def steps_in(minutes: float, trial: Run) -> int:
    """Return how many steps fit the time, by the median step of the later half of a trial."""
    seconds = [row["step_seconds"] for row in trial.rows if "step_seconds" in row]
    return max(1, round(60 * minutes / statistics.median(seconds[len(seconds) // 2 :])))


def parameters(config: Config) -> int:
    """Return the number of parameters of the network that a config names, without memory for them."""
    import torch

    from ocrlab.model.dbnet import Detector

    with torch.device("meta"):
        return sum(p.numel() for p in Detector(config.encoder, config.decoder, config.width).parameters())


def report(done: list[tuple[str, Run]]) -> str:
    """Return the table of (network, its finished run), best first."""
    rows = []
    for network, run in sorted(done, key=lambda pair: -pair[1].metrics["hmean@0.5"]):
        seconds, cpu, steps = run.figure("fit_seconds") or 0.0, run.figure("cpu_seconds"), run.figure("steps") or 0.0
        for name in ("hmean@0.5", "hmean@0.7"):
            figure(f"{name} for the same time: {network}", run.metrics[name], "hmean")
        rows.append(
            (
                network,
                f"{run.metrics['hmean@0.5']:.4f}",
                f"{run.metrics['hmean@0.7']:.4f}",
                f"{seconds:.0f} s",
                "not recorded" if cpu is None else f"{cpu:.0f} s",
                f"{steps:.0f}",
                f"{steps * run.config.batch_size / max(seconds, 1e-9):.1f}",
                f"{parameters(run.config) / 1e6:.1f} M",
            )
        )
    header = ("network", "hmean@0.5", "hmean@0.7", "training", "CPU", "steps", "images/s", "parameters")
    return f"{markdown(header, rows)}\n\nBest for the time: {rows[0][0]}."


if __name__ == "__main__":
    main()
