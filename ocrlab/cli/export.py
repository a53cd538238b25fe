"""`ocrlab export`: a detector as a file that runs without torch."""

from __future__ import annotations

import argparse

from ocrlab.cli import detector_options, output_paths
from ocrlab.cli.parser import Answer, Parser
from ocrlab.errors import escape_name
from ocrlab.records import SCHEMA

EXAMPLES = """
  ocrlab export onnx --out receipts.onnx                  the newest run's best detector, else the included one
  ocrlab export onnx --checkpoint best.ckpt --out model.onnx post.threshold=0.4
  ocrlab export onnx --checkpoint receipts --out receipts.onnx --json
"""


def arguments(parser: Parser) -> None:
    """Add the words of this command."""
    parser.add_argument(
        "form", choices=("onnx",), help="ONNX: input images (B, 3, H, W) uint8 RGB, output probability maps"
    )
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="key=value",
        help="settings to store in the file's metadata, such as post.threshold=0.4",
    )
    parser.add_argument("--checkpoint", type="path", metavar="CKPT", help=detector_options.NEWEST)
    parser.add_argument("--out", type="path", required=True, metavar="FILE", help="new file to write (required)")


def run(args: argparse.Namespace) -> Answer:
    """Export, and answer with the file and by how much its probabilities differ from torch's."""
    asked = detector_options.check(args.settings)
    detector_options.check_checkpoint(args.checkpoint)
    output_paths.new_file(args.out, "--out")
    detector = detector_options.open_detector(args.checkpoint, args.settings, asked, "cpu")
    from ocrlab.inference import onnx_export

    output_paths.make(args.out.parent, "--out")
    apart = onnx_export.to_onnx(detector, args.out)
    size = args.out.stat().st_size
    record = {"schema": SCHEMA, **detector_options.about(detector), "out": str(args.out), "bytes": size}
    text = f"{escape_name(args.out)}, {size / 1e6:.1f} MB; probabilities differ from torch by at most {apart:.1g}"
    return Answer({**record, "difference": apart}, text)
