"""`ocrlab evaluate`: what is scored on which pages, which settings, the figures; and the oracle."""

import csv
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ocrlab.cli import main, upper_bound
from ocrlab.cli.parser import Answer, Parser
from ocrlab.errors import ConfigError
from ocrlab.evaluation.metrics.page_scores import DatasetScores, judge

FIGURES = {f"{figure}@{at}" for figure in ("hmean", "precision", "recall") for at in (0.5, 0.7, 0.8)}
FIGURES |= {f"{name}_{figure}" for name in ("deteval", "cleval") for figure in ("hmean", "precision", "recall")}
ABOUT = {"schema", "pages", "seconds", "skipped", "data", "split", "worst", "hmean@0.5_low", "hmean@0.5_high"}
BOXES = [np.array([[0, 0], [50, 0], [50, 20], [0, 20]], float) + np.array((0, 40 * i)) for i in range(4)]


@pytest.fixture
def calls(calls, monkeypatch):
    """Let the stand-in for predict score seven pages of four boxes, of which it finds 0, 1, 2 ..."""

    def score(detector, data, split, *, exif, tick):
        calls.evaluate = SimpleNamespace(detector=detector, data=data, split=split, exif=exif)
        tick(1, 1)
        judged = {f"page{hits}": judge(BOXES, [False] * 4, None, BOXES[:hits]) for hits in range(7)}
        return DatasetScores(judged, 0, 1.5)

    monkeypatch.setattr(sys.modules["ocrlab.inference.scoring"], "score", score, raising=False)
    return calls


def test_the_answer_holds_every_figure(calls, capsys):
    assert main(["evaluate", "--checkpoint", "c.ckpt", "data=receipts", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    sized = {name for name in record if "/" in name}
    assert record.keys() - sized == FIGURES | ABOUT | {"checkpoint"}
    assert {name.split("/")[1] for name in sized} == {"small", "medium", "large"}
    assert (record["schema"], record["pages"], record["split"], record["data"]) == (1, 7, "val", "receipts")
    assert record["hmean@0.5"] == pytest.approx(2 * (18 / 28) / (1 + 18 / 28))
    assert [row["page"] for row in record["worst"]] == ["page0", "page1", "page2", "page3", "page4"]
    assert calls.load.checkpoint == Path("c.ckpt")


def test_people_get_tables_by_protocol_by_size_and_of_the_worst_pages(calls, capsys):
    assert main(["evaluate", "--checkpoint", "c.ckpt", "data=receipts"]) == 0
    stdout = capsys.readouterr().out
    lines = stdout.splitlines()
    assert lines[0].split() == ["IoU", "hmean", "precision", "recall"]
    assert [line.split()[0] for line in lines[1:6]] == ["0.5", "0.7", "0.8", "DetEval", "CLEval"]
    assert "95 % interval" in stdout and "16 to 32 px  28" in stdout
    at = next(i for i, line in enumerate(lines) if line.startswith("worst pages"))
    assert [line.split()[0] for line in lines[at + 1 : at + 6]] == [f"page{i}" for i in range(5)]
    assert lines[-3] == "7 pages in 1.5 s"
    assert lines[-1] == "next: ocrlab predict PAGES --checkpoint c.ckpt"


def test_settings_are_laid_over_those_of_the_checkpoint(calls):
    words = ["data=d", "split=test", "post.threshold=0.4", "evaluate.long_side=960", "trainer.accelerator=cpu"]
    assert main(["evaluate", "--checkpoint", "c.ckpt", *words, "runtime.threads=2"]) == 0
    config = calls.evaluate.detector.config
    assert (config.post.threshold, config.evaluate.long_side, config.crop) == (0.4, 960, 256)
    assert (calls.evaluate.data, calls.evaluate.split, calls.evaluate.exif) == ("d", "test", True)
    assert (calls.load.device, calls.threads) == ("cpu", 2)
    assert main(["evaluate", "--checkpoint", "c.ckpt", "data=d", "exif=false", "--split", "dev"]) == 0
    assert (calls.evaluate.exif, calls.evaluate.split) == (False, "dev")


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_a_line_for_each_page_is_written_and_nothing_overwritten(ending, calls, tmp_path, capsys):
    file = tmp_path / f"pages.{ending}"
    words = ["evaluate", "--checkpoint", "c.ckpt", "data=d", "--per-image", str(file)]
    assert main(words) == 0
    lines = file.read_text(encoding="utf-8").splitlines()
    rows = list(csv.DictReader(lines)) if ending == "csv" else [json.loads(line) for line in lines]
    assert [row["page"] for row in rows] == [f"page{hits}" for hits in range(7)]
    assert (float(rows[3]["missed"]), float(rows[3]["recall@0.5"])) == (1, 0.75)
    calls.load = None
    assert main(words) == 2 and calls.load is None
    assert "exists already" in capsys.readouterr().err
    assert file.read_text(encoding="utf-8").splitlines() == lines


@pytest.mark.parametrize(("words", "message"), [
    (["--checkpoint", "c"], "data=DIR"),
    (["data=d", "--checkpoint", "c", "--predictions", "p"], "--checkpoint and --predictions"),
    (["data=d", "--checkpoint", "c", "--oracle", "d"], "--checkpoint and --oracle"),
    (["data=d", "--checkpoint", "c", "--shrink", "0.5"], "--shrink belongs to --oracle"),
    (["data=d", "--predictions", "p", "--shape", "quad"], "--shape belongs to --oracle"),
    (["data=d", "--predictions", "p", "post.threshold=0.4"], "no effect on predictions"),
    (["data=d", "--checkpoint", "c", "--per-image", "pages.txt"], ".jsonl or .csv"),
    (["data=d", "--checkpoint", "c", "--per-image", "nowhere/pages.csv"], "no folder nowhere"),
    (["--checkpoint", "c", "data=d", "encoder=resnet18"], "no effect on a finished detector"),
    (["--checkpoint", "c", "data=d", "val_split=test"], "no effect"),
    (["--checkpoint", "c", "data=d", "hardware=cpu_2core"], "no effect"),
    (["--checkpoint", "c", "data=d", "post.treshold=1"], "The nearest is post.threshold"),
    (["--checkpoint", "c", "data=d", "post.threshold=2"], "from 0 to 1"),
    (["--checkpoint", "c", "data=d", "page.jpg"], "key=value"),
    (["--checkpoint", "c", "data="], "not empty"),
    (["--checkpoint", "c", "data=d", "split="], "split"),
])  # fmt: skip
def test_wrong_use_is_refused_before_anything_is_loaded(words, message, calls, capsys):
    assert main(["evaluate", *words]) == 2
    assert message in capsys.readouterr().err
    assert calls.load is None


def test_predictions_are_scored_without_a_detector(calls, shared, tmp_path, capsys):
    from ocrlab.data.formats import reader

    for sample in reader.load(shared / "data" / "sroie", "val").samples:
        reader.write_icdar(tmp_path / f"res_{sample.name}.txt", sample.polygons)
    words = ["evaluate", "--predictions", str(tmp_path), f"data={shared / 'data' / 'sroie'}", "--json"]
    assert main(words) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["hmean@0.5"], record["pages"], record["predictions"]) == (1, 63, str(tmp_path))
    assert calls.load is None
    (tmp_path / "res_007.txt").rename(tmp_path / "res_7.txt")
    assert main(words) == 1
    assert "belong to no page" in json.loads(capsys.readouterr().out)["error"]["message"]


def test_the_data_are_looked_at_before_a_network_is_loaded(calls, tmp_path, capsys):
    assert main(["evaluate", "--checkpoint", "c.ckpt", f"data={tmp_path}"]) == 1
    assert "has no split 'val'" in capsys.readouterr().err
    assert calls.load is None


@pytest.fixture
def data(tmp_path: Path, root: Path) -> Path:
    """Return a folder with two pages: lines, two of which touch, one that is too small, and one that does not count."""
    import cv2
    import numpy as np

    for name in ("images", "gts"):
        (tmp_path / "val" / name).mkdir(parents=True)
    lines = [(20, 20 + 60 * i, 300 + 30 * i, 50 + 60 * i, "word") for i in range(5)]
    lines += [
        (20, 400, 120, 440, "one"), (60, 400, 160, 440, "two"), (500, 20, 530, 22, "dot"),
        (400, 400, 500, 440, "###"),
    ]  # fmt: skip
    for page in ("a", "b"):
        cv2.imwrite(str(tmp_path / "val" / "images" / f"{page}.png"), np.full((480, 640, 3), 255, np.uint8))
        text = "".join(f"{x},{y},{u},{y},{u},{v},{x},{v},{word}\n" for x, y, u, v, word in lines)
        (tmp_path / "val" / "gts" / f"gt_{page}.txt").write_text(text, encoding="utf-8")
    return tmp_path


def answer(*words: str) -> Answer:
    parser = Parser("ocrlab evaluate", "scores", "")
    parser.add_argument("settings", nargs="*")
    upper_bound.arguments(parser)
    return upper_bound.run(parser.parse_args(words))


GRID = ("--long-side", "640", "--shrink", "0.5", "--unclip", "exact", "1.5")


def test_the_config_is_always_a_row_and_marked(data: Path) -> None:
    record = answer("evaluate.long_side=320", "targets.shrink_ratio=0.5", "post.unclip=2", "--oracle", str(data), *GRID)
    rows = [line.split() for line in record.text.splitlines() if line[:3] in ("320", "640")]
    assert len(rows) == 6 and [row[:3] for row in rows if "config" in row] == [["320", "0.5", "2.0"]]
    assert sum("best" in row for row in rows) == 1
    assert record.record["config"]["unclip"] == 2 and record.record["best"]["unclip"] == "exact"
    assert record.status == 0


def test_the_record_is_json_with_every_row_and_all_lost_boxes(data: Path) -> None:
    half = ("evaluate.long_side=640", "targets.shrink_ratio=0.5")
    record = json.loads(json.dumps(answer(*half, "--oracle", str(data), *GRID).record))
    about = {"schema": 1, "pages": 2, "boxes": 16, "split": "val", "shape": "quad", "skipped": 0}
    assert {key: record[key] for key in about} == about
    settings = [(row["long_side"], row["shrink_ratio"], row["unclip"]) for row in record["rows"]]
    assert settings == [(640, 0.5, "exact"), (640, 0.5, 1.5)]
    mine = record["config"]
    assert [box["page"] for box in mine["vanished"]] == ["a", "b"] and mine["vanished"][0]["index"] == 7
    assert [[box["index"] for box in group] for group in mine["merged"]] == [[5, 6], [5, 6]]
    assert mine["hmean@0.8"] == pytest.approx(2 * 10 / (16 + 12)) and record["warning"] is None


@pytest.mark.parametrize(("words", "ratio"), [("--config mine.yaml", 0.6), ("--shape polygon", 0.7)])
def test_a_config_and_a_shape_are_taken(data: Path, monkeypatch: pytest.MonkeyPatch, words: str, ratio: float) -> None:
    monkeypatch.chdir(data)
    Path("mine.yaml").write_text("targets: {shrink_ratio: 0.6}\npost: {shape: polygon}\n", encoding="utf-8")
    record = answer("--oracle", ".", *words.split(), *GRID).record
    assert (record["config"]["shrink_ratio"], record["shape"]) == (ratio, "polygon")


def test_a_wrong_config_is_warned_of_with_what_to_try(data: Path) -> None:
    settings = ("evaluate.long_side=640", "targets.shrink_ratio=0.4", "post.unclip=1.5")
    record = answer(*settings, "--oracle", str(data), *GRID)
    warning = record.record["warning"]
    assert warning.startswith("WARNING") and "hmean@0.7" in warning and "post.unclip=exact" in warning
    assert re.search(r"Unclip 1.5 costs, in hmean@0.7 against exact: 0\.[1-9]\d with shrink 0.4, ", record.text)


@pytest.mark.parametrize(
    "words", [("--unclip", "tight"), ("--shrink", "1.5"), ("--long-side", "9"), ("--shape", "oval")]
)
def test_wrong_words_are_refused(data: Path, words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError):
        answer("--oracle", str(data), *words)
