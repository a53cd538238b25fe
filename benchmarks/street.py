"""Who reads street photographs better after the same CPU time, from scratch: ours or docTR's detector?

    python benchmarks/street.py --data ../shared/data/icdar2015/dev --doctr-python VENV/bin/python      all, one by one
    python benchmarks/street.py --data … --only ours --seed 1 --out DIR                                 one training
    python benchmarks/street.py --data … --report DIR --save                                            the table
    python benchmarks/street.py --data … --smoke                                                        does it run

300 pages are split 240/60 by the hash of their names. Both sides learn from the 240 with the same number of threads,
never at the same time: ours for `--steps`, then docTR for as many CPU seconds as ours took from its start to its end
(CPU seconds, because wall seconds depend on what else the machine does; docTR's schedule runs by the same clock).
Thresholds are each side's defaults, and tuned on 40 of the 240. Scores are ours (`metrics.iou`, regions that do not
count), intervals a bootstrap over the 60 pages, the same draws for both.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import runs
import street_score as score
from table import page, parser, publish

from ocrlab.data.formats import reader
from ocrlab.errors import DataError

SALT = "street-1"  # of the split; another one gives another split
TEST, TUNE = 60, 40
THRESHOLDS = [(low, box) for low in (0.2, 0.3, 0.4, 0.5, 0.6) for box in (0.1, 0.3, 0.4, 0.5, 0.6, 0.7)]
DOCTR = (0.3, 0.1)  # bin_thresh and box_thresh, its defaults

# Street words: half are lower than 22 px at 1280 x 720, so pages stay at native size; they tilt, come in every size,
# and 1,800 steps are too short for the long memory of the default averaging.
SETTINGS = (
    "evaluate.long_side=1280",
    "crop=512",
    "augment.scale=[0.7,2.5]",
    "augment.around_text=1",
    "augment.rotate=10",
    "augment.brightness=0.4",
    "augment.degrade=0.1",
    "optim.ema=0.99",
    "optim.warmup_steps=50",
    "post.box_threshold=0.5",  # 0.6 is of a long training; a short one is less sure
)


def main() -> int:
    """Train what is asked for, or print the table of what is finished; 1 if docTR is not beaten."""
    args = arguments()
    if args.report is not None:
        return report(args, args.report)
    data = divided(args.data, args.out)
    for seed in [args.seed] if args.seed is not None else args.seeds:
        for side in [args.only] if args.only else ("ours", "doctr"):
            out = args.out / f"{side}-seed{seed}.json"
            if out.exists():
                print(f"{side}, seed {seed}: done before", file=sys.stderr)
            elif side == "ours":
                train_ours(args, data, seed, out)
            elif args.doctr_python:
                train_doctr(args, data, seed, out)
            else:
                print("docTR: not measured, --doctr-python names no Python that has it", file=sys.stderr)
    return 0 if args.only else report(args, args.out)


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    command = parser(__doc__)
    command.add_argument("--data", type=Path, required=True, help="the folder with images/ and gts/")
    command.add_argument("--out", type=Path, default=Path("runs/street"), help="where finished sides go (runs/street)")
    command.add_argument(
        "--steps", type=int, default=1800, help="steps of ocrlab; docTR gets the same CPU seconds (default: 1800)"
    )
    command.add_argument("--threads", type=int, default=2, help="of both (default 2)")
    command.add_argument(
        "--seeds", type=lambda text: [int(n) for n in text.split(",")], default=[0, 1, 2], metavar="LIST"
    )
    command.add_argument("--seed", type=int, help="only this one")
    command.add_argument("--only", choices=("ours", "doctr"), help="only this side, without a table")
    command.add_argument("--report", type=Path, metavar="DIR", help="only the table of what is finished in DIR")
    command.add_argument("--smoke", action="store_true", help="two steps each, small pages")
    command.add_argument("--doctr-python", metavar="PATH", help="a Python with python-doctr")
    command.add_argument("--doctr-size", type=int, default=640, help="long side of its canvas (default 640)")
    command.add_argument("--doctr-batch", type=int, default=2, help="its batch (default 2, as docTR's)")
    command.add_argument("--doctr-fp32", action="store_true", help="its network in fp32 (default bf16 where ours is)")
    command.add_argument("settings", nargs="*", metavar="key=value", help="for ours, over those of this benchmark")
    return command.parse_intermixed_args()


def divided(source: Path, out: Path) -> Path:
    """Copy the pages of `source` into out/data/train, tune (40 of train) and test, by the hash of their names."""
    place = out / "data"
    names = sorted((file.name for file in (source / "images").iterdir()), key=digest)
    if len(names) <= TEST + TUNE:
        raise DataError(f"{source} is too small to be split", got=f"{len(names)} images", need=f"over {TEST + TUNE}")
    for split, chosen in (("test", names[:TEST]), ("train", names[TEST:]), ("tune", names[TEST : TEST + TUNE])):
        if (place / split).is_dir():
            continue
        fresh = place / f".{split}"
        shutil.rmtree(fresh, ignore_errors=True)
        for name in chosen:
            for file in (Path("images") / name, Path("gts") / f"gt_{Path(name).stem}.txt"):
                (fresh / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source / file, fresh / file)
        fresh.rename(place / split)  # whole or not at all
    return place


def digest(name: str) -> str:
    """Return what pages are put in order by."""
    return hashlib.sha256(f"{SALT}/{name}".encode()).hexdigest()


def train_ours(args: argparse.Namespace, data: Path, seed: int, out: Path) -> None:
    """Train ours in a child, predict here, and write what was found to `out`."""
    settings = [f"data={data}", "val_split=tune", f"runs={args.out / 'runs'}", f"runtime.threads={args.threads}"]
    settings += ["runtime.workers=0", *SETTINGS, f"seed={seed}", *args.settings]
    if args.smoke:
        settings += ["crop=64", "evaluate.long_side=160", "encoder=resnet18_slim", "width=16", "batch_size=2"]
    steps = 2 if args.smoke else args.steps
    run = runs.train([*settings, f"trainer.max_steps={steps}", f"trainer.val_every={steps}", f"name=street-{seed}"])
    about = {"steps": steps, "seconds": run.figure("fit_seconds"), "cpu_seconds": run.figure("cpu_seconds")}
    about |= {"threads": args.threads, "command": runs.command(run, "DIR")}
    about["choices"] = runs.choices(run)
    post = run.config.post
    thresholds = [(post.threshold, post.box_threshold), *THRESHOLDS]
    pages = predict(run.folder, data, thresholds, args.smoke)
    write(out, {"settings": thresholds, "default": 0, "pages": pages, "about": about})


def predict(run: Path, data: Path, thresholds: Sequence[tuple[float, float]], smoke: bool) -> dict[str, list[Any]]:
    """Return of each page of test and tune, for each pair of thresholds, the polygons in page pixels."""
    from ocrlab.data.dataset import Pages
    from ocrlab.inference import Detector
    from ocrlab.inference import page_inference as paths

    best = sorted((run / "checkpoints").glob("best-*.ckpt"))
    detector = Detector.load(best[-1] if best else run / "checkpoints" / "last.ckpt")
    config, predictions = detector.config, {}
    for split in ("test", "tune"):
        whole = Pages(reader.load(data, split).samples[: 2 if smoke else None], config)
        for shown in (whole[i] for i in range(len(whole))):
            heat, size = paths.probability(detector.model, shown.canvas, bf16=detector.bf16), shown.sample
            predictions[size.image.name] = [
                [p.round(2).tolist() for p in paths.regions(
                    heat, shown.warp, (size.width, size.height),
                    config.post.model_copy(update={"threshold": low, "box_threshold": box}),
                    config.targets.shrink_ratio).polygons]
                for low, box in thresholds
            ]  # fmt: skip
    return predictions


def train_doctr(args: argparse.Namespace, data: Path, seed: int, out: Path) -> None:
    """Train and predict with docTR in its own Python, which writes to a file beside `out` that is then renamed."""
    from ocrlab.hardware import host

    index, half = reader.load(data, "train"), "amx_bf16" in host.cpu_flags() and not args.doctr_fp32
    size = 192 if args.smoke else args.doctr_size
    width, height = max(((s.width, s.height) for s in index.samples), key=lambda wh: wh[0] / wh[1])
    canvas = (-(-round(size * height / width) // 32) * 32, size)  # height, width: the pages' shape, in whole 32s
    labels = [{"name": s.image.name, "polygons": by_class(s)} for s in index.samples]
    images = data.parent / "data" / "all"
    gathered(data, images)
    wanted = [s.image.name for split in ("test", "tune") for s in reader.load(data, split).samples[: limit(args)]]
    partial_file = out.with_name(f".{out.name}")
    job = {
        "cpu_seconds": cpu_seconds(args, seed), "threads": args.threads, "seed": seed, "canvas": canvas,
        "batch": args.doctr_batch, "bf16": half, "steps": 2 if args.smoke else 0,
        "images": str(images.absolute()), "train": labels,
        "predict": wanted, "settings": [DOCTR, *THRESHOLDS], "default": 0, "out": str(partial_file.absolute()),
    }  # fmt: skip
    file = out.with_suffix(".job.json")
    write(file, job)
    command = [args.doctr_python, str(Path(__file__).with_name("street_doctr.py")), str(file)]
    print(f"$ docTR, seed {seed}, canvas {canvas[1]} x {canvas[0]}", file=sys.stderr, flush=True)
    threads = {name: str(args.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | threads
    subprocess.run(command, check=True, env=environment)
    record = json.loads(partial_file.read_text(encoding="utf-8"))
    record["about"] |= {"threads": args.threads, "canvas": canvas, "batch": args.doctr_batch, "bf16": half}
    write(out, record)
    partial_file.unlink()


def limit(args: argparse.Namespace) -> int | None:
    """Return how many pages of a split are predicted; None for all."""
    return 2 if args.smoke else None


def cpu_seconds(args: argparse.Namespace, seed: int) -> float:
    """Return the CPU seconds that ours took with this seed; raises DataError if it was not trained yet."""
    file = args.out / f"ours-seed{seed}.json"
    if not file.exists():
        raise DataError("docTR gets the CPU seconds of ocrlab's run", got=f"no {file}", need="--only ours first")
    return float(json.loads(file.read_text(encoding="utf-8"))["about"]["cpu_seconds"])


def by_class(sample: reader.Sample) -> dict[str, list[Any]]:
    """Return the quads of a page as docTR's labels: words, and what does not count."""
    quads: dict[str, list[Any]] = {"words": [], "ignored": []}
    for polygon, ignored in zip(sample.polygons, sample.ignored, strict=True):
        if len(polygon) == 4:
            quads["ignored" if ignored else "words"].append(polygon.tolist())
    return quads


def gathered(data: Path, place: Path) -> None:
    """Put the images of train and test into one folder, which is what docTR reads."""
    place.mkdir(exist_ok=True)
    for file in [*(data / "train" / "images").iterdir(), *(data / "test" / "images").iterdir()]:
        if not (place / file.name).exists():
            os.link(file, place / file.name)


def write(path: Path, record: dict[str, Any]) -> None:
    """Write JSON to a file, whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(record), encoding="utf-8")
    part.replace(path)


def report(args: argparse.Namespace, place: Path) -> int:
    """Print the table of what is finished in `place`; 0 if ours is ahead, or where nothing can be compared yet."""
    met, text = score.report(place)
    publish("street", page("Street photographs, from scratch, against docTR", text), args)
    return 1 if met is False and not args.smoke else 0


if __name__ == "__main__":
    sys.exit(main())
