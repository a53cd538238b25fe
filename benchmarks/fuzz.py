"""Does any reader break on a file that somebody damaged: an internal error, more than 10 s, more than 1 GiB?

    python benchmarks/fuzz.py                          every reader, 2,000 damaged inputs each
    python benchmarks/fuzz.py notebooks images
    python benchmarks/fuzz.py notebooks --only 1234    one input again, in a folder that stays, with all that is printed

Input N of a reader is made from the seed "READER-N", so that it can be made again. Each goes through the commands that
read it, in a fork of its own. Misses: an internal error, a library's warning, a lost neighbour, 10 s of CPU time (the
machine may be busy), 60 s of waiting, and 1 GiB, the interpreter included.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from table import ROOT, figure, judged, markdown, page, parser, publish

from ocrlab.cli import main as command

COUNT, WHOLE = 2000, 12  # inputs of each reader: damaged, and whole ones before them
SECONDS, WAIT, BYTES = 10.0, 60.0, 2**30
PAGES = ROOT / "data_samples/val"
INTERNAL = re.compile(r"^ocrlab: (\w+: .*)\n +at .*?/(ocrlab/\S+|\S+ in \w+)", re.MULTILINE)
TRACEBACK = re.compile(r"^Traceback \(most recent call last\)", re.MULTILINE)  # a message may quote one
UNFORESEEN = re.compile(r"(?:Given|broke off|failed): (\w*(?:Error|Exception|error))\b")
DEEP = 100_000  # lists in each other
LITERALS = (  # of JSON, in the place of any value
    *("null", "true", "7", "-1", "0", "1e308", "-1e308", "1e999", "NaN", "Infinity", "9" * 400, '""', "[]", "{}"),
    *(r'"\ud800"', r'"\u0000"', r'"a\nb"', '"../../x"', '"/dev/zero"', '"' + "a" * 100_000 + '"', "[7]", '{"a": 7}'),
    *("[" * DEEP + "]" * DEEP, "[" + "0," * 50_000 + "0]", '"2026-99-99"', '"\N{RIGHT-TO-LEFT OVERRIDE}x"'),
)


@dataclass
class Case:
    """The commands that read a damaged input, and what is wrong with their answers ("" if nothing is)."""

    commands: list[list[str]]
    check: Callable[[list[tuple[int, str]]], str] = lambda answers: ""


@dataclass
class Outcome:
    """What became of an input: what is wrong in a few words, seconds, bytes at most, errors that a guard caught."""

    wrong: str
    seconds: float
    peak: int
    caught: list[str]


def main() -> int:
    """Fuzz the readers, print a row each; 1 if any input is a miss."""
    args = arguments()
    rows, missed = [], 0
    for name in args.readers or READERS:
        if args.only is not None:
            return again(name, args.only)
        outcomes = fuzz(name, args.count)
        wrong = Counter(outcome.wrong for outcome in outcomes if outcome.wrong)
        caught = Counter(error for outcome in outcomes for error in outcome.caught)
        slowest, largest = max(o.seconds for o in outcomes), max(o.peak for o in outcomes)
        missed += sum(wrong.values())
        figure(f"{name}: misses of {len(outcomes)} damaged inputs", sum(wrong.values()), "inputs", limit="<= 0")
        figure(f"{name}: slowest", slowest, "s", limit=f"<= {SECONDS:g}")
        figure(f"{name}: most memory", largest / 2**20, "MiB", limit=f"<= {BYTES / 2**20:g}")
        rest = ", ".join(f"{count} {what}" for what, count in caught.most_common(4))
        rows.append((name, len(outcomes), sum(wrong.values()), f"{slowest:.1f} s", f"{largest / 2**20:.0f} MiB", rest))
        last = max(range(len(outcomes)), key=lambda number: outcomes[number].seconds)
        print(f"{name}: the slowest is --only {last}", file=sys.stderr, flush=True)
        for what, count in wrong.most_common(20):
            first = next(number for number, outcome in enumerate(outcomes) if outcome.wrong == what)
            print(f"{name}: {count} times, first by --only {first}: {what}", file=sys.stderr, flush=True)
    head = (
        "reader",
        "inputs",
        "misses",
        "slowest",
        "most memory, the interpreter and its libraries included",
        "caught",
    )
    met = f"0 internal errors, {SECONDS:g} s, 1 GiB: {judged(not missed)}."
    publish("fuzz", page("Damaged files", f"{markdown(head, rows)}\n\n{met}"), args)
    return 1 if missed else 0


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    line = parser(__doc__)
    line.add_argument("readers", nargs="*", choices=[*READERS, []], metavar="READER", help=", ".join(READERS))
    line.add_argument("--count", type=int, default=COUNT, help=f"inputs of each reader ({COUNT})")
    line.add_argument("--only", type=int, metavar="N", help="one input of one reader, shown")
    return line.parse_args()


def fuzz(name: str, count: int) -> list[Outcome]:
    """Return what becomes of each input of a reader; the libraries are loaded once, and each input has a fork."""
    outcomes, start = [], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ocrlab-fuzz-") as scratch:
        warm_up(name, Path(scratch))
        gc.freeze()  # so that collecting in a fork copies no page of this process
        for number in range(count):
            place = Path(scratch, str(number))
            place.mkdir()
            outcomes.append(run_input(name, number, place))
            shutil.rmtree(place, ignore_errors=True)
            if number % 200 == 199:
                wrong = sum(bool(outcome.wrong) for outcome in outcomes)
                print(
                    f"{name}: {number + 1}, {wrong} misses, {time.monotonic() - start:.0f} s",
                    file=sys.stderr,
                    flush=True,
                )
    return outcomes


def warm_up(name: str, scratch: Path) -> None:
    """Read undamaged inputs, which must be read; after that a fork finds everything imported."""
    before = os.getcwd()
    for number in range(WHOLE):
        place = scratch / f"whole-{number}"
        place.mkdir()
        case = READERS[name](place, Undamaged(number))
        os.chdir(place)
        answers = []
        for at, words in enumerate(case.commands):
            with streams(at):
                code = run(words)
            out, err = read(Path(f"out-{at}")), read(Path(f"err-{at}"))
            answers.append((code, out))
            failed = code not in (0, 1) or err.startswith("ocrlab: ") or "Traceback" in err
            assert not failed, f"an undamaged input of {name}: ocrlab {' '.join(words)}: {code} {err}"
        assert not case.check(answers), f"an undamaged input of {name}: {case.check(answers)}"
        os.chdir(before)


def again(name: str, number: int) -> int:
    """Show one input: its folder, which stays, and what its commands print."""
    os.environ["OCRLAB_TRACEBACK"] = "1"
    place = Path(tempfile.mkdtemp(prefix=f"ocrlab-fuzz-{name}-{number}-"))
    case = READERS[name](place, random.Random(f"{name}-{number}"))
    os.chdir(place)
    print(place, flush=True)
    for words in case.commands:
        print("$ ocrlab", *words, flush=True)
        run(words)
    return 0


def run_input(name: str, number: int, place: Path) -> Outcome:
    """Create one input, run its commands in a fork, and return the outcome."""
    case = READERS[name](place, random.Random(f"{name}-{number}"))
    start = time.monotonic()
    pid = os.fork()
    if pid == 0:
        child(case.commands, place)
    wrong = ""
    while True:
        done, status, usage = os.wait4(pid, os.WNOHANG)
        if done:
            break
        waited, resident = time.monotonic() - start, resident_bytes(pid)
        if waited > WAIT or resident > 2 * BYTES:  # before it exhausts the machine
            wrong = "more than 2 GiB" if resident > 2 * BYTES else f"waits for more than {WAIT:g} s"
            os.kill(pid, signal.SIGKILL)
            _, status, usage = os.wait4(pid, 0)
            break
        time.sleep(0.002 if waited < 0.2 else 0.02)
    seconds, peak = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024
    if not wrong and os.WIFSIGNALED(status):
        wrong = f"killed by signal {os.WTERMSIG(status)}"
    answers, caught = [], []
    for at, words in enumerate(case.commands):
        code, out, err = (read(place / f"{kind}-{at}") for kind in ("code", "out", "err"))
        answers.append((int(code or -1), out))
        internal = INTERNAL.search(err)
        if internal:
            wrong = wrong or f"{' '.join(words[:2])}: {internal[1][:160]} at {internal[2]}"
        elif TRACEBACK.search(err) or "Warning:" in err:
            wrong = wrong or f"{' '.join(words[:2])}: {err.strip()[-200:]!r}"
        caught += UNFORESEEN.findall(out + err)
    if not wrong and peak > BYTES:
        wrong = f"{peak / 2**20:.0f} MiB"
    if not wrong and seconds > SECONDS:
        wrong = f"more than {SECONDS:g} s"
    return Outcome(wrong or case.check(answers), seconds, peak, caught)


def resident_bytes(pid: int) -> int:
    """Return the memory of a process, 0 if it is gone."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    return 0


def child(commands: list[list[str]], place: Path) -> None:
    """Run commands in a fork, their streams and exit statuses into files; does not return."""
    try:
        resource.setrlimit(resource.RLIMIT_AS, (24 * 2**30,) * 2)
        os.chdir(place)
        for at, words in enumerate(commands):
            with streams(at):
                code = run(words)
            Path(f"code-{at}").write_text(str(code))
    finally:
        os._exit(0)


@contextlib.contextmanager
def streams(at: int) -> Iterator[None]:
    """Send stdout and stderr into files of this folder."""
    before = [os.dup(descriptor) for descriptor in (1, 2)]
    for descriptor, kind in ((1, "out"), (2, "err")):
        file = os.open(f"{kind}-{at}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, descriptor)
        os.close(file)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, old in zip((1, 2), before, strict=True):
            os.dup2(old, descriptor)
            os.close(old)


def run(words: list[str]) -> int:
    """Run a command of ocrlab, or one of the two readers without a command, which report as a command does."""
    if words[0] in ("load-checkpoint", "load-config"):
        from ocrlab.cli import report_failure

        try:
            if words[0] == "load-checkpoint":
                from ocrlab.inference import checkpoint

                checkpoint.load_detector(Path(words[1]))
            else:
                from ocrlab.config import schema

                schema.load(Path(words[1]), words[2:])
        except Exception as error:
            return report_failure(error).status
        return 0
    return command(words)


def read(file: Path) -> str:
    """Return a text, "" where there is none."""
    with contextlib.suppress(OSError):
        return file.read_text(errors="replace")
    return ""


# How an input is damaged.


class Undamaged(random.Random):
    """Dice for an input that stays whole."""


def damaged(data: bytes, dice: random.Random) -> bytes:
    """Return bytes with one to four faults: flipped, lost, doubled, foreign, repeated, cut off, or extreme numbers."""
    if isinstance(dice, Undamaged):
        return data
    content = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 4))):
        at = dice.randrange(len(content) + 1)
        length = dice.choice((1, 4, 16, 256, 4096))
        match dice.randrange(8):
            case 0:
                for _ in range(dice.choice((1, 8, 64))):
                    if content:
                        content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
            case 1:
                del content[at : at + length]
            case 2:
                content[at:at] = content[at : at + length]
            case 3:
                content[at:at] = dice.randbytes(length)
            case 4:
                content[at:at] = (content[at : at + length] or b"\0") * dice.choice((100, 2000))
            case 5:
                del content[at:]
            case 6:
                number = dice.choice((b"\0" * 4, b"\xff" * 4, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x80\0\0\0"))
                content[at : at + 4] = number
            case 7:
                content[at : at + length] = dice.choice((b"\0", b"\xff", b"\n", b",", b"\r", b'"', b"[", b"9")) * length
    return bytes(content)


def damaged_json(value: Any, dice: random.Random) -> bytes:
    """Return a JSON text of which one to three values are others, gone, or twice; one in four is damaged as bytes."""
    if dice.random() < 0.25 or isinstance(dice, Undamaged):
        return damaged(json.dumps(value).encode(), dice)
    root = [json.loads(json.dumps(value))]
    literals = []
    for _ in range(dice.choice((1, 1, 2, 3))):
        spots = [(node, key) for node in walk(root) for key in (node if isinstance(node, dict) else range(len(node)))]
        node, key = dice.choice(spots)
        match dice.randrange(4):
            case 0 | 1:
                literals.append(dice.choice(LITERALS))
                node[key] = f"@{len(literals) - 1}@"
            case 2:
                other, its = dice.choice(spots)
                with contextlib.suppress(KeyError, IndexError, ValueError, RecursionError):
                    node[key] = json.loads(json.dumps(other[its]))
            case 3 if len(spots) > 1 and node is not root:
                del node[key]
    text = json.dumps(root[0] if root else None)
    for number, literal in enumerate(literals):
        text = text.replace(f'"@{number}@"', literal)
    return text.encode("utf-8", "backslashreplace")


def walk(node: Any) -> list[Any]:
    """Return the objects and lists at and below a node."""
    inner = node.values() if isinstance(node, dict) else node
    return [node, *(place for part in inner if isinstance(part, dict | list) for place in walk(part))]


# The inputs of each reader: made in a folder, and the commands that read them.

TEXTS = {
    "icdar.txt": "10,10,90,10,90,30,10,30,Total\n10,40,90,40,90,60,10,60,###\n",
    "total.txt": "x: [[10 90 90 10]], y: [[10 10 30 30]], ornt: [u'c'], transcriptions: [u'Total']\n",
    "ctw.xml": '<Annotations><image file="b.png"><box height="20" width="80" top="10" left="10"><label>Total</label>'
    "<segs>10,10,90,10,90,30,10,30</segs></box></image></Annotations>",
}
BOX = {"points": [[10, 10], [90, 10], [90, 30], [10, 30]], "text": "Total", "ignore": False}
SHAPE = {"label": "Total", "points": BOX["points"], "shape_type": "polygon", "flags": {}}
QUAD = dict(zip(("x1", "y1", "x2", "y2", "x3", "y3", "x4", "y4"), (10, 10, 90, 10, 90, 30, 10, 30), strict=True))
OBJECTS: dict[str, Any] = {
    "page": {"image": "b.png", "width": 120, "height": 80, "boxes": [BOX]},
    "labelme": {"version": "5.0.0", "shapes": [SHAPE], "imagePath": "b.png", "imageHeight": 80, "imageWidth": 120},
    "cord": {"valid_line": [{"words": [{"quad": QUAD, "text": "Total"}], "group_id": 1, "category": "total"}]},
}
SETS: dict[str, Any] = {
    "ufo": {"images": {"b.png": {"words": {"1": {"points": BOX["points"], "transcription": "Total"}}}}},
    "coco": {
        "images": [{"id": 1, "file_name": "b.png", "width": 120, "height": 80}],
        "annotations": [
            {
                "id": 1,
                "image_id": 1,
                "bbox": [10, 10, 80, 20],
                "segmentation": [[10, 10, 90, 10, 90, 30]],
                "iscrowd": 0,
            },
            {"id": 2, "image_id": 1, "segmentation": {"counts": [800, 30, 8770], "size": [80, 120]}, "iscrowd": 1},
            {"id": 3, "image_id": 1, "segmentation": {"counts": "PPYo1", "size": [80, 120]}, "iscrowd": 1},
        ],
    },
    "textocr": {
        "imgs": {"1": {"id": "1", "file_name": "b.png", "width": 120, "height": 80, "set": "train"}},
        "anns": {
            "1_1": {"id": "1_1", "image_id": "1", "bbox": [10, 10, 80, 20], "utf8_string": "Total", "points": [10, 10]}
        },
        "imgToAnns": {"1": ["1_1"]},
    },
}


def picture(form: str = "PNG", **more: Any) -> bytes:
    """Return a small page with something like a line of text, as a file of a format."""
    from PIL import Image, ImageDraw

    image = Image.new(more.pop("mode", "RGB"), (120, 80), more.pop("colour", "white"))
    ImageDraw.Draw(image).rectangle((10, 10, 90, 30), outline="black" if image.mode != "CMYK" else (0, 0, 0, 255))
    out = io.BytesIO()
    image.save(out, form, **more)
    return out.getvalue()


def annotations(place: Path, dice: random.Random) -> Case:
    """One damaged annotation of any format; where each page has its own, between two good ones."""
    kind = dice.choice((*TEXTS, *OBJECTS, *SETS, "lines"))
    images, texts = place / "data/train/images", place / "data/train/gts"
    images.mkdir(parents=True)
    pages = 3
    for name in ("a", "b", "c"):
        (images / f"{name}.png").write_bytes(picture())
    if kind in SETS:
        pages = 0
        (place / "data/train.json").write_bytes(damaged_json(SETS[kind], dice))
    elif kind == "lines":
        rows = [json.dumps(OBJECTS["page"] | {"image": f"{name}.png"}).encode() for name in ("a", "b", "c")]
        rows[1] = damaged_json(OBJECTS["page"], dice).replace(b"\n", b" ").replace(b"\r", b" ")
        (place / "data/train.jsonl").write_bytes(b"\n".join(rows))
    else:
        texts.mkdir()
        suffix = Path(kind).suffix if kind in TEXTS else ".json"
        for name in ("a", "b", "c"):
            good = TEXTS[kind] if kind in TEXTS else json.dumps(OBJECTS[kind])
            good = good.replace("b.png", f"{name}.png")
            bad = damaged(good.encode(), dice) if kind in TEXTS else damaged_json(OBJECTS[kind], dice)
            (texts / f"{name}{suffix}").write_bytes(bad if name == "b" else good.encode())
    return Case(
        [
            ["samples", "convert", "data", "out", "--to", "jsonl", "--json"],
            ["samples", "check", "data", "--out", "sheets"],
        ],
        lambda answers: neighbours(answers[0], pages),
    )


def neighbours(answer: tuple[int, str], pages: int) -> str:
    """Say whether fewer pages are read than are good, or fewer than all with exit status 0."""
    try:
        read = sum(json.loads(answer[1]).get("pages", {}).values())
    except (ValueError, AttributeError):
        return f"no answer: {answer[1][:100]!r}"
    if pages and read < pages - 1:
        return f"{read} of {pages - 1} good pages are read"
    return f"{read} of {pages} pages and exit status 0" if pages and read < pages and answer[0] == 0 else ""


FORMS: tuple[dict[str, Any], ...] = (
    *({"form": "PNG"}, {"form": "PNG", "mode": "RGBA"}, {"form": "PNG", "mode": "P", "colour": 0}, {"form": "JPEG"}),
    *({"form": "JPEG", "progressive": True}, {"form": "JPEG", "mode": "CMYK", "colour": 0}, {"form": "BMP"}),
    *(
        {"form": "TIFF"},
        {"form": "TIFF", "compression": "tiff_lzw"},
        {"form": "TIFF", "compression": "tiff_adobe_deflate"},
    ),
    *(
        {"form": "WEBP"},
        {"form": "WEBP", "lossless": True},
        {"form": "JPEG", "exif": b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"},
    ),
)


def images(place: Path, dice: random.Random) -> Case:
    """One damaged image between two good ones."""
    form = dict(dice.choice(FORMS))
    data = damaged(picture(**form), dice)
    suffix = {"PNG": ".png", "JPEG": ".jpg", "BMP": ".bmp", "TIFF": ".tif", "WEBP": ".webp"}[form["form"]]
    folder = place / "data/train/images"
    folder.mkdir(parents=True)
    (place / "data/train/gts").mkdir()
    for name in ("a", "b", "c"):
        (folder / f"{name}{suffix if name == 'b' else '.png'}").write_bytes(data if name == "b" else picture())
        (place / f"data/train/gts/{name}.txt").write_text(TEXTS["icdar.txt"])
    return Case(
        [
            *(
                ["samples", "convert", "data", "out", "--to", "jsonl", "--json"],
                ["samples", "show", "data", "--out", "a.png"],
            ),
            ["samples", "check", "data", "--out", "sheets"],
        ],
        lambda answers: neighbours(answers[0], 3),
    )


def shards(place: Path, dice: random.Random) -> Case:
    """Two tars of three pages, one of them damaged."""
    folder = place / "data/train"
    folder.mkdir(parents=True)
    form = dice.choice((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT))
    for number in range(2):
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w", format=form) as tar:
            for name in ("a", "b", "c"):
                content = json.dumps(OBJECTS["page"] | {"image": f"{name}{number}.png"}).encode()
                long = "ä" * 120 if name == "c" else ""  # so that GNU and PAX need a header of their own
                for suffix, part in ((".png", picture()), (".json", content)):
                    with contextlib.suppress(ValueError):  # ustar holds no such name
                        info = tarfile.TarInfo(f"{name}{number}{long}{suffix}")
                        info.size = len(part)
                        tar.addfile(info, io.BytesIO(part))
        whole = data.getvalue()
        (folder / f"{number:06}.tar").write_bytes(damaged(whole, dice) if number == 0 else whole)
    good = 2 if form == tarfile.USTAR_FORMAT else 3
    return Case(
        [["samples", "convert", "data", "out", "--to", "jsonl", "--json"]],
        lambda answers: neighbours(answers[0], good + 1),
    )


FIELDS = {
    "output_type": "display_data",
    "metadata": {},
    "data": {"text/plain": ["x"], "text/html": ["<b>x</b>"], "image/png": "iVBORw0KGgo="},
}
CELLS = [
    {
        "cell_type": "markdown",
        "id": "a",
        "metadata": {},
        "source": ["# Title\n", "text $x^2$ ![p](attachment:p.png)"],
        "attachments": {"p.png": {"image/png": "iVBORw0KGgo="}},
    },
    {
        "cell_type": "code",
        "id": "b",
        "metadata": {"papermill": {"duration": 1.5, "status": "failed"}},
        "execution_count": 1,
        "source": ["import torch\n", "x = torch.zeros(2)"],
        "outputs": [
            {"output_type": "stream", "name": "stdout", "text": ["step 1 loss 0.5\n"]},
            FIELDS,
            {
                "output_type": "execute_result",
                "execution_count": 1,
                "metadata": {},
                "data": {"application/json": {"a": [1]}, "text/latex": "$x$"},
            },
            {
                "output_type": "error",
                "ename": "ValueError",
                "evalue": "bad",
                "traceback": ["Traceback (most recent call last)", "ValueError: bad"],
            },
            {
                "output_type": "display_data",
                "metadata": {},
                "data": {
                    "application/vnd.ocrlab.result+json": {
                        "schema": 1,
                        "name": "03",
                        "outcome": "FAIL",
                        "sentence": "it failed",
                        "metrics": {"hmean": {"value": 0.5}},
                        "ending": {
                            "status": "failed",
                            "exit_code": 1,
                            "exit_status": 1,
                            "cell": 1,
                            "verdict": {"causes": []},
                        },
                    }
                },
            },
        ],
    },
]
NOTEBOOK = {
    "nbformat": 4,
    "nbformat_minor": 5,
    "cells": CELLS,
    "metadata": {
        "kernelspec": {"name": "python3", "language": "python", "display_name": "Python"},
        "papermill": {"input_path": "x.ipynb", "start_time": "2026-11-20T10:00:00", "duration": 3.0},
        "ocrlab": {"redacted": 2},
    },
}


def notebooks(place: Path, dice: random.Random) -> Case:
    """One damaged executed notebook."""
    (place / "x.ipynb").write_bytes(damaged_json(NOTEBOOK, dice))
    return Case([["report", "html", "x.ipynb"], ["diagnose", "x.ipynb"], ["report", "bug", "x.ipynb", "--out", "bug"]])


LOG = """2026-11-20 10:00:00 INFO epoch 1 step 10 loss 0.52
 45%|####      | 45/100 [00:10<00:12,  4.5it/s]\r 46%|####      | 46/100
Traceback (most recent call last):
  File "/srv/job/train.py", line 12, in <module>
    loss = criterion(model(x), y)
  File "/srv/job/.venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1511, in _wrapped_call_impl
    return self._call_impl(*args, **kwargs)
RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x512 and 256x10)
[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 15.77 GiB.
Fatal Python error: Segmentation fault

Thread 0x00007f0000000000 (most recent call first):
  File "/srv/job/data.py", line 5 in __getitem__
Thread 4242 (idle): "MainThread"
    acquire (threading.py:327)
kernel: oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task_memcg=/x,task=python,pid=4242,uid=0
NVRM: Xid (PCI:0000:00:06): 79, pid=1035, name=python3, GPU has fallen off the bus.
"""


def logs(place: Path, dice: random.Random) -> Case:
    """One damaged log, also as one of three reports of a JSON-lines file."""
    bad = damaged(LOG.encode(), dice)
    (place / "x.log").write_bytes(bad)
    report = {"id": "b", "log": bad.decode("utf-8", "replace"), "context": "it stopped"}
    line = damaged_json(report, dice).replace(b"\n", b" ").replace(b"\r", b" ")
    rows = [json.dumps({"id": name, "log": LOG}).encode() for name in ("a", "c")]
    (place / "x.jsonl").write_bytes(b"\n".join((rows[0], line, rows[1])))

    def check(answers: list[tuple[int, str]]) -> str:
        lines = [json.loads(row) for row in answers[1][1].split("\n") if row]
        good = [row["id"] for row in lines if row["causes"]]
        return "" if {"a", "c"} <= {name for name in good if isinstance(name, str)} else f"verdicts of {good}"

    return Case(
        [["diagnose", "x.log"], ["diagnose", "--jsonl", "x.jsonl"], ["report", "bug", "x.log", "--out", "bug"]], check
    )


VERDICT: dict[str, Any] = {
    "schema": 1,
    "id": None,
    "status": "killed",
    "exit_code": None,
    "signal": "SIGKILL",
    "symptom": "host.oom_kill",
    "causes": [
        {
            "id": "host.oom_kill",
            "confidence": 0.93,
            "explanation": "it grew",
            "evidence": [{"file": "kernel_log.txt", "line": 1, "text": "oom-kill"}],
            "experiment": "ocrlab memory fit",
            "fix": "smaller",
            "edit": {"file": "a.py", "line": 3, "before": "x", "after": "y"},
            "proof": "open",
        }
    ],
    "ruled_out": [{"id": "loader.worker_crash", "why": "alive"}],
    "missing": ["cgroup counters"],
    "ranks": [],
}
FACTS: dict[str, Any] = {
    "oom_kills": 1,
    "pids": [4242],
    "main_pid": 4242,
    "exits": [{"pid": 4242, "role": "main", "exit_code": None, "signal": "SIGKILL"}],
    "run_seconds": 12.5,
    "ended_by": "outside",
    "heartbeat": {"step": 10, "phase": "train", "age": 1.5},
    "memory_peak_bytes": 10**9,
    "hang": {
        "id": "hang.deadlock",
        "confidence": 0.9,
        "pid": 4242,
        "why": "waits",
        "evidence": [{"file": "stacks.txt", "line": 1, "text": "acquire"}],
    },
    "memory": {"seconds": [1, 2], "tree": [1, 2], "shm": [0, 0], "group": {}, "processes": []},
    "ranks": [{"rank": 0, "pid": 4242, "end": "raised", "gpu": False}],
    "gpus": {"cards": [{"index": 0, "used": 1, "total": 2}]},
    "cpu_flags": ["avx2"],
    "gpu": {"name": "H100"},
    "torch": {"version": "2.8"},
}
PARTS: dict[str, Any] = {
    ".FAILURE": {
        "schema": 1,
        "status": "failure",
        "started": "2026-11-20T10:00:00+00:00",
        "ended": "2026-11-20T10:01:00+00:00",
        "metrics": {"hmean@0.5": 0.5},
        "error": {"type": "ValueError", "message": "bad", "where": "a.py:3 f", "traceback": LOG},
        "verdict": "user.code",
    },
    "environment.json": {
        "schema": 1,
        "gpu": False,
        "packages": {"torch": "2.8"},
        "cpu_name": "x",
        "memory_bytes": 1,
        "host": "h",
        "python": "3.11",
    },
    "flight/process.json": {"schema": 1, "pid": 4242, "host": "h", "command": ["python", "a.py"], "started": 1.0},
    "flight/program.json": {
        "schema": 1,
        "argv": ["python", "a.py"],
        "cwd": "/",
        "host": "h",
        "time": 1.0,
        "executable": "python",
        "environment": {},
    },
    "flight/findings.json": {"schema": 1, "findings": ["loss is NaN to the end"]},
    "flight/ranks/rank-0.json": {
        "schema": 1,
        "rank": 0,
        "pid": 4242,
        "end": "raised",
        "gpu": False,
        "error": {"type": "ValueError"},
    },
    "incident/replay.json": {"schema": 1, "answer": "step 3", "fault": {"kind": "nonfinite", "step": 3}},
    "incident/bisect.json": {"schema": 1, "answer": "lr", "trials": []},
    "incident/verdict.json": VERDICT,
    "incident/facts.json": FACTS,
}
CONFIG = """schema: 1
data: data
batch_size: 4
encoder: resnet18
optim:
  lr: 0.001
  weight_decay: 0.02
trainer: {max_steps: 10, precision: bf16}
post: {threshold: 0.3, box_threshold: 0.5}
evaluate:
  long_side: 960
"""
METRICS = "step,loss,hmean@0.5\n1,0.5,\n2,0.4,0.25\n"


def run_folder(place: Path) -> None:
    """Write a whole run folder that failed."""
    for name, content in PARTS.items():
        file = place / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content))
    (place / "config.yaml").write_text(CONFIG)
    (place / "metrics.csv").write_text(METRICS)
    lines = LOG.splitlines(keepends=True)
    for name, part in (("traceback.txt", lines[2:8]), ("stacks.txt", lines[9:15]), ("kernel_log.txt", lines[15:])):
        (place / "incident" / name).write_text("".join(part))
    (place / "incident/log_tail.txt").write_text(LOG)
    (place / "flight/ring-0-4242.bin").write_bytes(ring())


def ring() -> bytes:
    """Return a ring of the flight recorder with three steps."""
    global RING
    if not RING:
        with tempfile.TemporaryDirectory() as scratch, ProcessPoolExecutor(1) as child:  # a fork without torch is small
            RING = child.submit(recorded_ring, Path(scratch)).result()
    return RING


RING = b""


def recorded_ring(place: Path) -> bytes:
    """Record three steps of a training, and return the file that holds them."""
    import torch

    from ocrlab import record

    (place / "run").mkdir()
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with contextlib.redirect_stderr(io.StringIO()), record(place / "run", model, optimizer) as recorder:
        for batch in recorder.batches([torch.zeros(2, 4)] * 3):
            loss = model(batch).sum()
            recorder.loss(loss)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return next((place / "run/flight").glob("ring-*.bin")).read_bytes()


def verdicts(place: Path, dice: random.Random) -> Case:
    """A run folder whose verdict or facts are damaged."""
    run_folder(place / "runs/b")
    name, content = dice.choice((("verdict.json", VERDICT), ("facts.json", FACTS)))
    (place / "runs/b/incident" / name).write_bytes(damaged_json(content, dice))
    return Case([["diagnose", "runs/b"], ["runs", "runs", "--json"], ["report", "bug", "runs/b", "--out", "bug"]])


def run_folders(place: Path, dice: random.Random) -> Case:
    """Three run folders, of which one has a damaged file: a sentinel, settings, metrics, a log, a flight record."""
    for name in ("a", "b", "c"):
        run_folder(place / "runs" / name)
    files = [file for file in sorted((place / "runs/b").rglob("*")) if file.is_file()]
    for file in dice.sample(files, dice.choice((1, 1, 2))):
        content = PARTS.get(str(file.relative_to(place / "runs/b")))
        file.write_bytes(damaged_json(content, dice) if content else damaged(file.read_bytes(), dice))

    def check(answers: list[tuple[int, str]]) -> str:
        try:
            names = {run["name"] for run in json.loads(answers[1][1])["runs"]}
        except (ValueError, KeyError):
            return f"runs: no answer: {answers[1][1][:100]!r}"
        return "" if {"a", "c"} <= names else f"runs: {names}"

    commands = [
        ["diagnose", "runs/b"],
        ["runs", "runs", "--json"],
        ["runs", "runs"],
        ["report", "bug", "runs/b", "--out", "bug"],
    ]
    return Case([*commands, ["memory", "why", "runs/b"]], check)


def checkpoints(place: Path, dice: random.Random) -> Case:
    """A damaged checkpoint of a small detector: its bytes, its pickle, or what is stored in it."""
    import torch

    data = small_checkpoint()
    if dice.random() < 0.5 or isinstance(dice, Undamaged):
        (place / "x.ckpt").write_bytes(damaged(data, dice))
    else:
        content = torch.load(io.BytesIO(data), weights_only=True)
        for _ in range(dice.choice((1, 2))):
            weights = content.get("detector")
            if dice.random() < 0.5 and isinstance(weights, dict) and weights:
                name = dice.choice(list(weights))
                weights[name] = dice.choice(TENSORS)(weights[name])
            else:
                spots = [(node, key) for node in walk_dicts(content) for key in node]
                node, key = dice.choice(spots)
                node[key] = dice.choice((None, 7, -1, 1e308, float("nan"), "x", [], {}, [1], {"a": 1}, "\0", 10**30))
        torch.save(content, place / "x.ckpt")
    return Case([["load-checkpoint", "x.ckpt"]])


def walk_dicts(node: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the dicts of settings in a checkpoint, outermost first."""
    parts = [part for part in node.values() if isinstance(part, dict)]
    return [node, *(below for part in parts for below in walk_dicts(part))]


TENSORS: tuple[Callable[[Any], Any], ...] = (
    lambda t: t.to(__import__("torch").complex64),
    lambda t: t[..., None],
    lambda t: t.double() * 1e308,
    lambda t: t * float("nan"),
    lambda t: t.flatten()[:0],
    lambda t: t.to_sparse() if t.dim() else t,
    lambda t: t.bool(),
    lambda t: t.flatten()[:1].expand(1 << 40),  # a terabyte of one number
    lambda t: 7,
    lambda t: None,
    lambda t: t.to("meta"),
)
CHECKPOINT = b""


def small_checkpoint() -> bytes:
    """Return a checkpoint of the smallest detector."""
    global CHECKPOINT
    if not CHECKPOINT:
        from ocrlab import Config
        from ocrlab.inference import checkpoint
        from ocrlab.model.dbnet import Detector

        config = Config(encoder="resnet18_slim", width=32)
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch, "x.ckpt")
            model = Detector(config.encoder, config.decoder, config.width)
            checkpoint.save_detector(model, file, config, 1, {})
            CHECKPOINT = file.read_bytes()
    return CHECKPOINT


def configs(place: Path, dice: random.Random) -> Case:
    """Damaged settings: a YAML file, and words of a command line."""
    text = damaged(CONFIG.encode(), dice) if dice.random() < 0.6 else CONFIG.encode()
    if dice.random() < 0.4 and not isinstance(dice, Undamaged):
        key, value = (
            dice.choice(("batch_size", "optim.lr", "post", "data", "trainer.max_steps", "encoder")),
            dice.choice(LITERALS),
        )
        text += f"\n{key}: {value[:200_000]}\n".encode()
    (place / "x.yaml").write_bytes(text)
    (place / "runs/b").mkdir(parents=True)
    (place / "runs/b/config.yaml").write_bytes(text)
    (place / "runs/b/.FAILURE").write_text(json.dumps(PARTS[".FAILURE"]))
    key = dice.choice(
        ("batch_size", "optim.lr", "crop", "post.threshold", "trainer.max_steps", "encoder", "evaluate", "x.y.z", "")
    )
    value = dice.choice(
        (*(literal[:1000] for literal in LITERALS), "1e400", "99999999999", "[", "{", "!!python/object:os.system", "*a")
    )
    if isinstance(dice, Undamaged):
        key, value = "batch_size", "8"
    return Case([["load-config", "x.yaml"], ["load-config", "x.yaml", f"{key}={value}"], ["runs", "runs", "--json"]])


READERS: dict[str, Callable[[Path, random.Random], Case]] = {
    "annotations": annotations,
    "images": images,
    "shards": shards,
    "notebooks": notebooks,
    "logs": logs,
    "verdicts": verdicts,
    "run-folders": run_folders,
    "checkpoints": checkpoints,
    "configs": configs,
}

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # a fork has one thread
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # as the command does
    sys.exit(main())
