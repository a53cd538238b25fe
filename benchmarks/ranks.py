"""How does training scale over ranks? Measured at 1 and 2 on this CPU, and a calculation up to 64 GPUs.

    python benchmarks/ranks.py                   two minutes: images a second at 1 and 2 ranks, 1 and 2 threads
    python benchmarks/ranks.py --only-calculate --step 0.2     the calculation for a step that you measured, in seconds

The measured half starts `ocrlab train`'s own ranks, by torchrun, on synthetic receipts, and reads metrics.csv. The
calculated half is arithmetic, and says so: a ring all-reduce sends 2 (n - 1) / n times the gradients through each
link (Patarasuk and Yuan 2009), and torch's DDP sends them while the backward pass still computes, all but the last
bucket (Li et al. 2020, PyTorch Distributed).
"""

from __future__ import annotations

import csv
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from table import figure, markdown, page, parser, publish

from ocrlab.hardware import host

DATA = Path(__file__).parents[1] / "data_samples"
SKIP = 5  # first rows, in which kernels are compiled and caches filled
BUCKET = 25 * 2**20  # bytes: DDP's default bucket_cap_mb
BACKWARD = 2 / 3  # share of a step that is its backward pass: twice the forward's work
LATENCY = 20e-6  # seconds for one message between machines, 2 (n - 1) of them in a ring
LINKS = {"NVLink 4, one machine": 450.0, "InfiniBand 400 Gbit/s": 50.0, "Ethernet 100 Gbit/s": 12.5}
LINKS |= {"Ethernet 10 Gbit/s": 1.25}  # gigabytes a second, each way
RANKS = (1, 2, 4, 8, 16, 32, 64)
PER_MACHINE = 8  # GPUs that one machine joins by NVLink
NETWORKS = {"resnet18_slim": (2.90e6, 5.0e3), "resnet18": (11.3e6, 9.8e3), "resnet50": (23.8e6, 53.4e3)}
# with FPN, width 64: parameters, and numbers in BatchNorm's buffers


WORDS = """Calculated, **not measured**: images a second of n GPUs over n times those of one, for a step of
{step:.0f} ms on one GPU (assumed; a longer step scales better). A link carries 2 (n - 1) / n of the
gradients in float32, and each of the 2 (n - 1) messages takes {us:.0f} us more. The backward pass,
{share:.2f} of the step, hides it, but for the last bucket of {mib:.0f} MiB, which always waits: a
network whose gradients fit into one bucket hides nothing. BatchNorm's buffers, averaged once a step,
wait whole. One link for each GPU with nobody else on it, one ring. Left out: data loading, ranks that
are slower (all wait for the slowest), validation, checkpoints, the 64 bytes of words that nobody waits
for."""


def reduced(ranks: int, size: float, gigabytes: float) -> float:
    """Return the seconds of a ring all-reduce of `size` bytes over links of so many gigabytes a second."""
    turns = 2 * (ranks - 1)
    return turns / ranks * size / (gigabytes * 1e9) + turns * LATENCY


def waited(ranks: int, network: tuple[float, float], gigabytes: float, step: float) -> float:
    """Return the seconds that a step waits for the network.

    Gradients: what does not fit beside the backward pass, at least the last bucket. BatchNorm's buffers: all of it.
    """
    if ranks == 1:
        return 0.0
    gradients, buffers = (4 * count for count in network)  # float32, also under bf16 autocast
    last = reduced(ranks, min(gradients, BUCKET), gigabytes)
    late = max(reduced(ranks, gradients, gigabytes) - BACKWARD * step, last)
    return late + reduced(ranks, buffers, gigabytes)


class Case(NamedTuple):
    """One training: ranks, and threads of each."""

    ranks: int
    threads: int


def measured(case: Case, steps: int, folder: Path) -> tuple[float, float]:
    """Return images a second and the median seconds of a step, from a training that is ours from end to end."""
    ranks, threads = case
    runs = folder / f"runs-{ranks}-{threads}"
    words = [f"data={DATA}", f"runs={runs}", "batch_size=2", "crop=512", f"trainer.max_steps={steps}"]
    words += [f"runtime.threads={threads}", "runtime.workers=0", "trainer.precision=fp32", "trainer.val_pages=1"]
    words += [
        "trainer.accelerator=cpu",
        "recorder.on=false",
        "trainer.log_every=1",
        "runtime.channels_last=true",
        f"trainer.val_every={steps}",
    ]
    command = [sys.executable, "-m", "ocrlab", "train", "--nproc", str(ranks), *words]
    pools = {name: str(threads) for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "MKL_NUM_THREADS")}
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **pools})
    (file,) = runs.glob("*/metrics.csv")
    with file.open(encoding="utf-8") as text:
        rows = [row for row in csv.DictReader(text) if row.get("step_seconds")][SKIP:]
    seconds = statistics.median(float(row["step_seconds"]) for row in rows)
    return 2 * ranks / seconds, seconds


def main() -> None:
    """Measure, calculate, print."""
    arguments = parser(__doc__)
    arguments.add_argument("--steps", type=int, default=25, help="optimizer steps of each measured training")
    arguments.add_argument(
        "--step", type=float, default=0.1, help="seconds of one step on one GPU, for the calculation"
    )
    arguments.add_argument("--only-calculate", action="store_true", help="measure nothing")
    args = arguments.parse_args()
    body = "" if args.only_calculate else f"{table_of_measured(args.steps)}\n\n"
    publish("ranks", page("Several ranks", body + table_of_calculated(args.step)), args)


def table_of_measured(steps: int) -> str:
    """Return the measured half."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        cases = [Case(1, 1), Case(2, 1), Case(1, 2)] if host.cores() > 1 else [Case(1, 1)]
        results = {case: measured(case, steps, Path(folder)) for case in cases}
    for case, (images, seconds) in results.items():
        gain = images / results[cases[0]][0]
        figure(f"{case.ranks} rank(s), {case.threads} thread(s)", images, "images/s")
        shares = (f"{gain:.2f}", f"{gain / (case.ranks * case.threads):.2f}")
        rows.append((case.ranks, case.threads, f"{images:.2f}", f"{seconds:.3f}", *shares))
    head = ("ranks", "threads each", "images/s", "seconds of a step")
    head += ("times 1 rank, 1 thread", "of the cores given")
    words = (
        f"Measured: resnet18_slim + FPN, fp32, batch_size 2 of 512 px on each rank, {steps} steps, median without the "
    )
    return f"{words}first {SKIP}. Gloo over the loopback of one machine.\n\n{markdown(head, rows)}"


def table_of_calculated(step: float) -> str:
    """Return the calculated half: efficiency by number of GPUs, for each link and network."""
    tables = []
    for name, network in NETWORKS.items():
        rows = []
        for link, speed in LINKS.items():
            most = PER_MACHINE if "one machine" in link else RANKS[-1]
            late = {n: waited(n, network, speed, step) for n in RANKS if n <= most}
            cells = [f"{100 * step / (step + late[n]):.1f} %" if n in late else "-" for n in RANKS]
            figure(
                f"calculated: {name}, {link}, efficiency at {max(late)} GPUs", step / (step + late[max(late)]), "share"
            )
            rows.append((link, *cells, f"{1000 * late[max(late)]:.1f}"))
        head = (
            f"{name}, {4 * network[0] / 1e6:.0f} MB",
            *(f"{n} GPU{'s' * (n > 1)}" for n in RANKS),
            "ms waited, most",
        )
        tables.append(markdown(head, rows))
    return "\n\n".join([WORDS.format(step=1000 * step, us=1e6 * LATENCY, share=BACKWARD, mib=BUCKET / 2**20), *tables])


if __name__ == "__main__":
    main()
