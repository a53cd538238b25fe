"""Does the batch that `ocrlab memory fit` chose still fit 50 epochs later, and was the peak known before the run?

Fit: under a memory control group (version 1 or 2, where one can be made here) and under RLIMIT_AS, on a tiny set.
`ocrlab memory fit` is asked inside the limit, then `ocrlab train` makes 50 epochs with validation inside it.
Estimate: 15 configs. The answer of `ocrlab memory estimate` is compared with the high-water mark of a short training,
less its value after imports: the median of three trainings, as the heap of the same training varies by a sixth. On a
processor without bf16 instructions (a step takes 40 s there) all are trained in fp32.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from table import figure, markdown, page, parser, publish

from ocrlab.config import schema as configs
from ocrlab.data.synthetic import generate
from ocrlab.model.inference_graph import packable

MIB = 1 << 20
UNIFIED = Path("/sys/fs/cgroup")
GROUPS = {"version 1": UNIFIED / "memory", "version 2": UNIFIED}
TRAININGS = 3  # of each config
EPOCHS, PAGES = 50, (96, 2)  # more pages than crops that fit, or the pages are the limit
SMALL = ("trainer.accelerator=cpu", "runtime.threads=2", "runtime.workers=0", "evaluate.long_side=640")
TINY = (
    *SMALL,
    "crop=128",
    "runtime.cache=none",
    "trainer.precision=fp32",
    "runtime.channels_last=true",
    "evaluate.long_side=320",
)
LIMITS = {"control group, version 1": 900 * MIB, "control group, version 2": 900 * MIB, "RLIMIT_AS": 5300 * MIB}
BF16, FP32 = "trainer.precision=bf16", "trainer.precision=fp32"
LAST, PLAIN = "runtime.channels_last=true", "runtime.channels_last=false"
AGAIN = "runtime.activation_checkpointing=true"
CONFIGS = (
    ("batch_size=1", "crop=512", BF16, LAST),
    ("batch_size=4", "crop=512", BF16, PLAIN),
    ("batch_size=8", "crop=384", BF16, LAST),
    ("batch_size=4", "crop=512", FP32, LAST),
    ("batch_size=8", "crop=256", FP32, PLAIN),
    ("batch_size=2", "crop=640", BF16, LAST, "decoder=unet"),
    ("batch_size=6", "crop=320", BF16, LAST, "width=128"),
    ("batch_size=2", "crop=320", FP32, LAST, "encoder=resnet18", "width=128"),
    ("batch_size=4", "crop=384", BF16, LAST, "encoder=resnet18", "trainer.accumulate_grad_batches=2"),
    ("batch_size=2", "crop=256", BF16, LAST, "encoder=resnet34"),
    ("batch_size=2", "crop=256", BF16, PLAIN, "encoder=resnet50", "decoder=unet"),
    ("batch_size=4", "crop=256", FP32, LAST, "encoder=mobilenet_v3_large"),
    ("batch_size=4", "crop=512", BF16, LAST, "encoder=resnet18", AGAIN),
    ("batch_size=4", "crop=320", FP32, PLAIN, "encoder=mobilenet_v3_large", AGAIN),
    ("batch_size=4", "crop=384", FP32, LAST, "weights=receipts", "optim.freeze_batchnorm=true"),
)


def unmade(name: str) -> str:
    """Return why no limit of this name can be set here, or an empty text."""
    if name == "RLIMIT_AS":
        return ""
    top = GROUPS[name.split(", ")[1]]
    if top == UNIFIED:
        switched = top / "cgroup.subtree_control"
        enabled = switched.is_file() and "memory" in switched.read_text().split()
        return "" if enabled and os.access(top, os.W_OK) else "the memory controller is not in version 2 here"
    return "" if os.access(top, os.W_OK) and top.is_dir() else "no memory group can be made here"


@contextlib.contextmanager
def control_group(name: str, limit: int) -> Iterator[tuple[Callable[[], None], Callable[[], dict[str, int]]]]:
    """Give how a child joins a new memory group, and what the group has seen; the group is removed afterwards."""
    top = GROUPS[name.split(", ")[1]]
    files = ("memory.max", "memory.events") if top == UNIFIED else ("memory.limit_in_bytes", "memory.oom_control")
    group = top / f"ocrlab-bench-{os.getpid()}"
    group.mkdir()
    (group / files[0]).write_text(str(limit))

    def join() -> None:
        (group / "cgroup.procs").write_text(str(os.getpid()))

    def read_events() -> dict[str, int]:
        lines = (group / files[1]).read_text().split("\n")
        return {"kills": next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)}

    try:
        yield join, read_events
    finally:
        group.rmdir()


@contextlib.contextmanager
def address_space(_name: str, limit: int) -> Iterator[tuple[Callable[[], None], Callable[[], dict[str, int]]]]:
    """Give how a child lowers its address space; nothing is killed there, allocations fail."""
    yield (lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit))), dict


def inside(join: Callable[[], None], words: Sequence[str]) -> tuple[int, dict[str, Any]]:
    """Run an ocrlab command under a limit; return its exit status and its JSON."""
    command = [sys.executable, "-m", "ocrlab", *words, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, preexec_fn=join)
    try:
        return done.returncode, json.loads(done.stdout)
    except ValueError:
        return done.returncode, {}


def fit_row(name: str, folder: Path) -> tuple[str, str, str]:
    """Return one row: what was chosen under a limit, how close it is, and what 50 epochs with it came to."""
    kind = control_group if name.startswith("control") else address_space
    data = [f"data={folder / 'pages'}", f"runs={folder / name.replace(' ', '-')}"]
    with kind(name, LIMITS[name]) as (join, read_events):
        status, fit = inside(join, ["memory", "fit", *TINY, *data, "--minutes", "20"])
        batch = fit.get("batch", 0)
        if status or not batch:
            return f"fit, {name}", f"**missed**: {fit.get('sentence') or fit.get('error')}", "0 OOM"
        size = [f"batch_size={batch}", f"trainer.max_epochs={EPOCHS}", f"trainer.val_every={max(1, PAGES[0] // batch)}"]
        status, trained = inside(join, ["train", *TINY, *data, *size, "recorder.on=true"])
        counts = read_events()
    share = fit["peak"] / fit["limit"]["bytes"]
    bad = status != 0 or counts.get("kills", 0) > 0
    close = share >= 0.9 or fit["proven"] == "batch + 1 fails"
    text = f"batch {batch}, {len(fit['tries'])} children, peak {share:.2f} of the limit ({fit['proven']}); "
    text += f"{EPOCHS} epochs: exit status {status}, {counts.get('kills', 0)} kills"
    steps = trained.get("metrics", {}).get("steps", 0)
    text += f", {steps:.0f} steps{' **missed**' if bad or not close else ''}"
    return f"fit, {name}", text, "0 OOM; 0.90 or the next fails"


def peaks(words: Sequence[str], folder: Path) -> tuple[float, list[float]]:
    """Return the peak that was said and those that were measured, ascending, in bytes beyond what imports take."""
    settings = [*SMALL, *words, f"data={folder / 'pages'}", f"runs={folder / 'runs'}"]
    (folder / "config.yaml").write_text(configs.dump(configs.load(None, settings)), encoding="utf-8")
    answers = []
    # The first one compiles what the others import.
    for module in ("estimate_memory", *["measure_memory"] * TRAININGS):
        out, job = folder / f"{module}.json", folder / "job.json"
        content = {"schema": 1, "config": str(folder / "config.yaml"), "overrides": {}, "out": str(out)}
        job.write_text(json.dumps(content))
        subprocess.run(
            [sys.executable, "-m", f"ocrlab.training.jobs.{module}", str(job)], check=True, capture_output=True
        )
        answers.append(json.loads(out.read_text()))
    estimate, *measured = answers
    return estimate["peak"], sorted(max(answer["peaks"].values()) - answer["base"] for answer in measured)


def estimate_rows(folder: Path, count: int) -> list[tuple[str, str, str]]:
    """Return a row for each config and one for all."""
    rows, ratios = [], []
    half = BF16 if packable(torch.bfloat16) else FP32
    for config in CONFIGS[:count]:
        words = [half if word == BF16 else word for word in config]
        estimate, measured = peaks(words, folder)
        ratios.append(estimate / statistics.median(measured))
        spread = " ".join(f"{size / MIB:.0f}" for size in measured)
        text = f"{estimate / MIB:.0f} of {spread} MiB: {ratios[-1]:.2f} of the median"
        print(*words, text, file=sys.stderr, flush=True)
        rows.append((" ".join(words), text, "0.90 to 1.10"))
    good = sum(0.9 <= ratio <= 1.1 for ratio in ratios)
    worst = max(ratios, key=lambda ratio: abs(ratio - 1))
    text = f"{good} of {len(ratios)}, median {statistics.median(ratios):.2f}, worst {worst:.2f}"
    text += "" if good == len(ratios) else " **missed**"
    return [("peak said before the run, within 10 %", text, "all"), *rows]


def rows(folder: Path, count: int = len(CONFIGS), *, fits: bool = True) -> list[tuple[str, str, str]]:
    """Return every row of this file; `folder` is empty and removed by the caller."""
    generate.make(folder / "pages", train=PAGES[0], val=PAGES[1])
    fit_rows = []
    for name in LIMITS if fits else ():
        if why := unmade(name):
            fit_rows.append((f"fit, {name}", f"not measured: {why}", "0 OOM"))
        else:
            fit_rows.append(fit_row(name, folder))
            print(fit_rows[-1][:2], file=sys.stderr, flush=True)
    return [*fit_rows, *(estimate_rows(folder, count) if count else ())]


def main() -> None:
    """Print the table; end with 1 where a limit is not met."""
    arguments = parser(__doc__)
    arguments.add_argument("--configs", type=int, default=len(CONFIGS), help="how many of the estimate's configs")
    arguments.add_argument("--no-fit", action="store_true", help="the estimate alone")
    args = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="ocrlab-bench-") as folder:
        table = rows(Path(folder), args.configs, fits=not args.no_fit)
    for what, measured, must in table:
        figure(what, measured, "as in the text", limit=must)
    publish("memory-fit", page("What fits", markdown(("what", "is", "must"), table)), args)
    sys.exit(any("**missed**" in row[1] for row in table))


if __name__ == "__main__":
    main()
