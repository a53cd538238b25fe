"""A best checkpoint made fit to be given away, and its model card, written from measured figures.

    python -m ocrlab.inference.release_checkpoint pack runs/NAME/checkpoints/best-....ckpt
        ocrlab/inference/pretrained/receipts.ckpt
    ocrlab evaluate --checkpoint ocrlab/inference/pretrained/receipts.ckpt data=DIR --json > measured.json
    python -m ocrlab.inference.release_checkpoint card ocrlab/inference/pretrained/receipts.ckpt
        --measured measured.json --robust robust.json
        --command 'ocrlab train ...' --minutes 38 --machine '2-core Xeon, no GPU'

A packed checkpoint is in half precision, holds nothing private, and has its SHA-256 beside it. `robust.json` holds
hmean@0.5 by condition: {"as it is": 0.95, "blur": 0.94, ...}.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ocrlab.config import schema as configs
from ocrlab.config.schema import Config
from ocrlab.errors import CheckpointError, DataError
from ocrlab.inference import checkpoint
from ocrlab.inference.pretrained import sha256
from ocrlab.run_folder import write_text

LEVELS = ("0.5", "0.7", "0.8")
FIGURES = ("hmean", "precision", "recall")

CARD = """# {name}: a text detector for receipts

{architecture}, {parameters:,} parameters ({used:,} of them in use when text is found), {megabytes:.2f} MB: weights in
half precision, biases and BatchNorm in single. It ships with ocrlab, which reads it into single precision:

    ocrlab predict page.jpg --checkpoint {name}

SHA-256 `{digest}` (also in `{file}.sha256`; checked whenever it is loaded).

## How good

Measured with this file on {pages} receipts (SROIE, validation split of this project). None of them was trained on, but
settings such as the threshold were chosen on them, which flatters the figures a little:

{figures}

{robust}

## Trained on

Zheng Huang, Kai Chen, Jianhua He, Xiang Bai, Dimosthenis Karatzas, Shijian Lu, C. V. Jawahar: ICDAR 2019 Competition on
Scanned Receipt OCR and Information Extraction (SROIE), ICDAR 2019; licence CC BY 4.0. The pages were cropped, scaled,
rotated and degraded at random; none of them is part of this package. No other data was used; the encoder
began from {start}.

    {command}

{minutes:g} minutes on {machine}, {step:,} steps. Shrink ratio {shrink:g}, threshold {threshold:g}, box threshold
{box_threshold:g}, unclip {unclip}, pages reduced to a long side of {long_side} pixels: the file holds these settings.

## Meant for

Finding lines and columns of printed text on scans and photographs of receipts, upright within about {rotate:g}
degrees, in Latin script. It says where text is, as quads with a score, and not what the text says.

## Limits

- It has seen receipts only: street photographs, handwriting, dense pages, other scripts and vertical text are outside.
- Boxes follow the habits of the SROIE annotators: a line that is broken by a wide gap is several boxes.
- Text lower than about {smallest:g} pixels after the page was reduced was not learned.
- Scores order detections; they are not calibrated probabilities.
- Receipts can hold personal data; where they may be processed is for the user to decide.
"""


def pack(source: Path, out: Path) -> str:
    """Write the detector of a checkpoint in half precision to `out`, its SHA-256 to `out`.sha256, and return that.

    The same checkpoint always gives the same bytes. Raises CheckpointError where `out` exists, where a weight is too
    large for half precision (65,504), or where the settings still name a place on the disk.
    """
    beside = out.with_name(f"{out.name}.sha256")
    for file in (out, beside):
        if file.exists():
            do = "Remove it, or choose another"
            raise CheckpointError("Nothing is overwritten", got=f"{file}, which exists", do=do)
    model, config, about = checkpoint.load_detector(source)
    weights = {name: halved(name, tensor) for name, tensor in model.state_dict().items()}
    metrics = {name: value for name, value in about["metrics"].items() if "@" in name or name == "pages"}
    content = {"ocrlab": checkpoint.card(public(config), about["step"], metrics), "detector": weights}
    checkpoint.save(content, out)
    out.chmod(0o644)  # a run's checkpoints are for their owner; this one is for everybody
    digest = sha256(out)
    write_text(beside, f"{digest}  {out.name}\n")  # as sha256sum writes it, and checks it with -c
    return digest


def halved(name: str, tensor: Tensor) -> Tensor:
    """Return a weight of two or more dimensions as float16, others as they are; raises CheckpointError if it overflows.

    Biases and BatchNorm's statistics are a hundredth of the file, and a variance may be larger than float16 can hold.
    """
    tensor = tensor.detach().cpu().contiguous()
    if tensor.ndim < 2 or not tensor.is_floating_point():
        return tensor
    half = tensor.to(torch.float16)
    if not torch.isfinite(half).all():
        got = f"up to {float(tensor.abs().max()):g}"
        what = f"The weights {name} do not fit into half precision"
        raise CheckpointError(what, got=got, need="finite numbers up to 65504")
    return half


def public(config: Config) -> Config:
    """Return the settings without where and by whom; raises CheckpointError if one of them still looks like a path."""
    fresh = Config()
    public_config = config.model_copy(update={name: getattr(fresh, name) for name in checkpoint.PRIVATE})
    for key, value in configs.flat(public_config).items():
        if isinstance(value, str) and ("/" in value or "\\" in value):
            what = "A setting names a place on the disk"
            raise CheckpointError(what, got=f"{key}={value}", need="none in a public file")
    return public_config


def card(
    packed: Path, measured: Mapping[str, Any], robust: Mapping[str, float], command: str, minutes: float, machine: str
) -> str:
    """Return the model card of a packed checkpoint as Markdown; raises DataError if a figure is missing."""
    missing = [f"{figure}@{at}" for figure in FIGURES for at in LEVELS if f"{figure}@{at}" not in measured]
    if missing or "pages" not in measured:
        got = ", ".join(missing) or "no pages"
        raise DataError("The figures are not complete", got=got, need="ocrlab evaluate --json")
    robustness = "Its robustness to bad pictures was not measured."
    if robust:
        first = next(iter(robust.values()))
        conditions = [[name, f"{value:.3f}", f"{value - first:+.3f}"] for name, value in robust.items()]
        robustness = "The same pages made worse:\n\n" + markdown(["", "hmean@0.5", "change"], conditions)
    model, config, about = checkpoint.load_detector(packed)
    count = sum(weight.numel() for weight in model.parameters())
    rows = [[f"IoU {at}", *(f"{measured[f'{figure}@{at}']:.3f}" for figure in FIGURES)] for at in LEVELS]
    return CARD.format(
        name=packed.stem,
        file=packed.name,
        architecture=f"DBNet (Liao et al. 2020): {config.encoder} + {config.decoder} of width {config.width}",
        parameters=count,
        used=count - sum(weight.numel() for weight in model.head.threshold.parameters()),
        megabytes=packed.stat().st_size / 1e6,
        digest=sha256(packed),
        pages=int(measured["pages"]),
        figures=markdown(["", *FIGURES], rows),
        robust=robustness,
        command=command,
        minutes=minutes,
        machine=machine,
        start=f"torchvision's weights ({config.weights})" if config.weights else "random weights",
        step=about["step"],
        shrink=config.targets.shrink_ratio,
        threshold=config.post.threshold,
        box_threshold=config.post.box_threshold,
        unclip=config.post.unclip,
        long_side=config.evaluate.long_side,
        rotate=config.augment.rotate,
        smallest=config.targets.min_text_size,
    )


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with padded columns."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |" for row in rows]
    head = "| " + " | ".join(cell.ljust(w) for cell, w in zip(header, widths, strict=True)) + " |"
    return "\n".join([head, "|" + "|".join("-" * (w + 2) for w in widths) + "|", *lines])


def main() -> None:
    """Pack the checkpoint that the command line names, or write the card beside a packed one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="action", required=True)
    packing = commands.add_parser("pack", help="write a checkpoint in half precision")
    packing.add_argument("checkpoint", type=Path)
    packing.add_argument("out", type=Path)
    writing = commands.add_parser("card", help="write the model card of a packed checkpoint")
    writing.add_argument("checkpoint", type=Path)
    writing.add_argument("--measured", type=Path, required=True, help="output of ocrlab evaluate --json")
    writing.add_argument("--robust", type=Path, help="JSON of hmean@0.5 by condition, the untouched pages first")
    writing.add_argument("--command", required=True, help="of the training")
    writing.add_argument("--minutes", type=float, required=True, help="of the training")
    writing.add_argument("--machine", required=True, help="of the training, in words")
    args = parser.parse_args()
    if args.action == "pack":
        digest = pack(args.checkpoint, args.out)
        print(f"{digest}  {args.out}, {args.out.stat().st_size / 1e6:.2f} MB")
        return
    measured = json.loads(args.measured.read_text(encoding="utf-8"))
    robust = json.loads(args.robust.read_text(encoding="utf-8")) if args.robust else {}
    text = card(args.checkpoint, measured, robust, args.command, args.minutes, args.machine)
    write_text(args.checkpoint.with_suffix(".md"), text)
    print(args.checkpoint.with_suffix(".md"))


if __name__ == "__main__":
    main()
