"""The model card of a packed detector, written from measured figures.

    ocrlab evaluate --checkpoint ocrlab/inference/pretrained/receipts.ckpt data=DIR --json > measured.json
    python -m ocrlab.inference.model_card ocrlab/inference/pretrained/receipts.ckpt
        --measured measured.json --robust robust.json
        --command 'ocrlab train ...' --minutes 38 --machine '2-core Xeon, no GPU'

`robust.json` holds hmean@0.5 by condition: {"as it is": 0.95, "blur": 0.94, ...}.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ocrlab.errors import DataError
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
    """Write the card beside the packed checkpoint that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--measured", type=Path, required=True, help="answer of ocrlab evaluate --json")
    parser.add_argument("--robust", type=Path, help="JSON of hmean@0.5 by condition, the untouched pages first")
    parser.add_argument("--command", required=True, help="of the training")
    parser.add_argument("--minutes", type=float, required=True, help="of the training")
    parser.add_argument("--machine", required=True, help="of the training, in words")
    args = parser.parse_args()
    measured = json.loads(args.measured.read_text(encoding="utf-8"))
    robust = json.loads(args.robust.read_text(encoding="utf-8")) if args.robust else {}
    text = card(args.checkpoint, measured, robust, args.command, args.minutes, args.machine)
    write_text(args.checkpoint.with_suffix(".md"), text)
    print(args.checkpoint.with_suffix(".md"))


if __name__ == "__main__":
    main()
