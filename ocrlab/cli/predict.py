"""`ocrlab predict`: find the text of images, one line of JSON a page or files that are never written over a file."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ocrlab import safe_read
from ocrlab.cli import detector_options, output_paths, progress
from ocrlab.cli.parser import Answer, Parser
from ocrlab.cli.streams_and_signals import write_line
from ocrlab.config.overrides import is_override
from ocrlab.errors import ConfigError, DataError, escape_control, escape_name
from ocrlab.records import SCHEMA, Prediction

if TYPE_CHECKING:
    from ocrlab.data.annotations import Problem

FORMATS = ("json", "icdar", "overlay")
OUT = Path("found")
LONGEST = 4096  # bytes of a path: PATH_MAX of Linux
TAKES_PATHS = True  # words after -- are paths, whatever they look like
EXAMPLES = """
  ocrlab predict page.jpg                                 results go to found/
  ocrlab predict scans more/page.png --out found --checkpoint best.ckpt
  ocrlab predict scans --jsonl - | jq .detections         one line of JSON for each page, as soon as it is done
  find scans -name '*.tif' | ocrlab predict - --checkpoint receipts --format json overlay
  ocrlab predict scans post.threshold=0.4 evaluate.long_side=960 --json

An argument that is not a file is an error before anything runs. A page that cannot be read, or a line on stdin that
names no file, is reported and left out.

exit status: 0 = every page predicted; 1 = pages left out; 2 = usage error
"""


def arguments(parser: Parser) -> None:
    """Add the words of this command."""
    parser.add_argument(
        "words",
        nargs="*",
        metavar="PATH|key=value",
        help="images, folders, - for a list on stdin, settings such as post.threshold=0.4; after -- only paths",
    )
    parser.add_argument("--checkpoint", type="path", metavar="CKPT", help=detector_options.NEWEST)
    parser.add_argument("--out", type="path", metavar="DIR", help=f"folder for the results (default: {OUT})")
    parser.add_argument(
        "--format",
        nargs="+",
        metavar=f"{{{','.join(FORMATS)}}}",
        help="what to write into DIR (default: all three)",
    )
    parser.add_argument(
        "--jsonl",
        metavar="FILE",
        help="write one JSON object for each page to a new file, or - for stdout; DIR is then written only with --out",
    )
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        help="device; auto uses a GPU that passes a smoke test (default: auto)",
    )


def run(args: argparse.Namespace) -> Answer:
    """Predict, and answer with what was found and the pages that were left out; the exit status is 1 if there are such.

    With `--json` the answer holds every page's detections; without it no page stays in memory. Each page's line is
    written as soon as it is done.
    """
    formats = [word for word in args.format or () if word in FORMATS]
    more = [word for word in args.format or () if word not in FORMATS]  # settings and paths after the formats
    wrong = next((word for word in more if not (is_override(word) or word == "-" or os.path.lexists(word))), None)
    if wrong or (more and not formats):
        raise ConfigError("--format is unknown", got=wrong or more[0], need=f"one or more of {', '.join(FORMATS)}")
    words = [*args.words, *more]
    settings = [word for word in words if is_override(word) and not Path(word).exists()]
    paths = [*(word for word in words if word not in settings), *args.program]
    asked = detector_options.check(settings)
    out = None if args.jsonl and not args.out and not formats else args.out or OUT
    _check(args, paths, out)
    detector_options.check_checkpoint(args.checkpoint)
    files, formats = _files(paths), formats or list(FORMATS)
    detector = detector_options.open_detector(args.checkpoint, settings, asked, args.device)
    from ocrlab.inference import prediction_files

    start = time.perf_counter()
    predictions: list[dict[str, Any]] = []
    left_out: list[str] = []
    count = regions = 0
    stream = prediction_files.predict_files(detector, files, out, formats)
    with (
        _open_lines(args.jsonl) as write,
        progress.page_progress("predicting") as tick,
        contextlib.closing(stream),
    ):
        for done, result in enumerate(stream, 1):
            write(result.record())
            if isinstance(result.page, Prediction):
                count, regions = count + 1, regions + len(result.page.detections)
                predictions += [result.record()] if args.json else []
                problem = _skipped_pages(result.file)
            else:
                problem = str(result.page)
            if problem:
                left_out.append(problem)
                print(escape_control(f"left out: {problem}"), file=sys.stderr)
            tick(done, len(files))
    record = {
        "schema": SCHEMA,
        **detector_options.about(detector),
        "out": str(out) if out else None,
        "formats": formats if out else [],
        "pages": count,
        "regions": regions,
        "left_out": left_out,
        "predictions": predictions,
        "seconds": time.perf_counter() - start,
    }
    where = f", in {escape_name(out)}" if out else f", in {escape_name(args.jsonl)}" if args.jsonl != "-" else ""
    left = f"; {len(left_out)} left out" if left_out else ""
    counts = ((count, "page"), (regions, "text region"))
    text = ", ".join(f"{number} {what}{'' if number == 1 else 's'}" for number, what in counts) + f"{where}{left}"
    if args.jsonl == "-":
        print(text, file=sys.stderr)
        text = ""
    elif count:
        place = escape_name(shlex.quote(str(out or args.jsonl)))
        text += f"\nnext: ocrlab evaluate --predictions {place} data=DIR  (where DIR has annotations of these pages)"
    return Answer(record, text, 1 if left_out or not count else 0)


def _check(args: argparse.Namespace, paths: list[str], out: Path | None) -> None:
    """Raise ConfigError for words that do not go together, and for places that cannot be written."""
    if not paths:
        raise ConfigError("predict needs at least one image", need="files or folders", do="See ocrlab predict --help")
    if args.jsonl == "-" and args.json:
        raise ConfigError("--json and --jsonl - both want stdout", do="Choose one of them, or --jsonl FILE")
    if address := next((word for word in paths if "://" in word), None):
        raise ConfigError("A page is a file, not an address", got=address, need="a path", do="Download it first")
    if lost := next((word for word in paths if word != "-" and not os.path.lexists(word)), None):  # before torch
        raise DataError("No such file or folder", got=lost, need="images or folders of images", missing=True)
    if args.jsonl == "":
        raise ConfigError("--jsonl needs a file name", need="a new file, or - for stdout")
    if args.jsonl and args.jsonl != "-":
        output_paths.new_file(Path(args.jsonl), "--jsonl", in_existing_folder=True)
    if out is not None:
        output_paths.folder(out, "--out")


def _files(paths: list[str]) -> list[Path | Problem]:
    """Return the image files that are named by words and on stdin; raises DataError.

    A missing file is an error as a word, and a page that is left out as a line of a list.
    """
    from ocrlab.data.annotations import Problem
    from ocrlab.inference import prediction_files

    named = [Path(path) for path in paths if path != "-"]
    files = prediction_files.collect(named) if named else []
    if "-" in paths:
        for number, data in enumerate(safe_read.lines(sys.stdin.buffer, LONGEST), 1):
            if data is None:
                files.append(Problem(Path(f"line {number} of stdin"), None, f"is longer than {LONGEST:,} bytes."))
            elif line := os.fsdecode(data.removesuffix(b"\n")):
                files += (prediction_files.walk(Path(line)) if os.path.isdir(line) else []) or [Path(line)]
    if not files:
        raise DataError("No image was found", got="an empty list on stdin", need="one path a line")
    return files


def _skipped_pages(file: Path) -> str:
    """Return which pages of a file were left out, empty where there is only one."""
    if file.suffix.lower() not in (".tif", ".tiff", ".gif"):
        return ""
    from ocrlab.data import image_io

    pages = image_io.count(file)
    do = f"tiffsplit {file.name} makes a file of each" if file.suffix.lower() != ".gif" else "convert it first"
    return f"{file}: all but the first of its {pages} pages, as a file is one page; {do}" if pages > 1 else ""


@contextlib.contextmanager
def _open_lines(target: str | None) -> Iterator[Callable[[Any], None]]:
    """Yield what writes a record as one line of JSON to a new file or to stdout (-), each in one piece."""
    if target is None:
        yield lambda _record: None
        return
    try:
        new = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        place = os.dup(sys.stdout.fileno()) if target == "-" else os.open(target, new, 0o666)
    except OSError as error:
        raise ConfigError(f"--jsonl {target} cannot be written", got=error.strerror, need="a new file") from error

    try:
        yield partial(write_line, place)
    finally:
        os.close(place)
