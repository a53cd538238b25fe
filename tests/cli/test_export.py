"""`ocrlab export`: which detector, which settings go along, the answer."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ocrlab.cli import main
from ocrlab.errors import ConfigError


@pytest.fixture
def exports(calls, monkeypatch, tmp_path) -> list[SimpleNamespace]:
    """Replace the exporter by one that writes down what it was asked for."""
    monkeypatch.chdir(tmp_path)
    asked: list[SimpleNamespace] = []

    def to_onnx(detector, out):
        if out.exists():
            raise ConfigError("Nothing is overwritten", got=str(out))
        asked.append(SimpleNamespace(config=detector.config, out=out))
        out.write_bytes(b"onnx")
        return 2e-5

    monkeypatch.setattr(sys.modules["ocrlab.inference.onnx_export"], "to_onnx", to_onnx, raising=False)
    return asked


def test_the_answer_is_the_file(exports, calls, capsys):
    words = ["--checkpoint", "best.ckpt", "--out", "m.onnx", "post.threshold=0.25", "--json"]
    assert main(["export", "onnx", *words]) == 0
    output = capsys.readouterr()
    record = json.loads(output.out)
    assert (record["out"], record["bytes"], record["difference"], record["schema"]) == ("m.onnx", 4, 2e-5, 1)
    assert (calls.load.checkpoint, calls.load.device) == (Path("best.ckpt"), "cpu")
    assert exports[0].config.post.threshold == 0.25, "what the file's metadata then say"
    assert "detector: as asked" in output.err


def test_in_words(exports, capsys):
    assert main(["export", "onnx", "--out", "m.onnx"]) == 0
    assert "m.onnx" in capsys.readouterr().out
    assert main(["export", "onnx", "--out", "m.onnx"]) == 2
    assert "overwritten" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [(["onnx"], "--out"), (["tflite", "--out", "m"], "tflite"), (["onnx", "--out", "m", "crop=64"], "no effect")],
)
def test_wrong_use(exports, words, message, capsys):
    assert main(["export", *words]) == 2
    assert message in capsys.readouterr().err
    assert exports == []
