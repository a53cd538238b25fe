"""`ocrlab kernel` and `ocrlab export`."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ocrlab.cli import main
from ocrlab.errors import ConfigError


def test_a_broken_limit_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernel", "--block", "32,64", "--capability", "8.6"]) == 1
    out = capsys.readouterr().out
    assert "threads per block" in out
    assert "at most 1024" in out
    assert main(["kernel", "--block", "32,32", "--capability", "sm_86"]) == 0


def test_limits_alone_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernel", "--capability", "9.0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["limits"]["shared_per_block"] == 227 * 1024


def test_the_compilers_figures_are_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "build.log"
    log.write_text(
        "ptxas info    : Compiling entry function 'k' for 'sm_86'\n"
        "    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads\n"
        "ptxas info    : Used 128 registers, 384 bytes smem, 380 bytes cmem[0]\n"
    )
    assert main(["kernel", "--block", "1024", "--ptxas", str(log), "--capability", "8.6"]) == 1
    out = capsys.readouterr().out
    assert "131072: cudaErrorLaunchOutOfResources (701)" in out
    assert "8 bytes of registers live in local memory" in out


def test_wrong_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernel", "--block", "1,2,3,4", "--capability", "8.6"]) == 2
    assert main(["kernel", "--block", "-1", "--capability", "8.6"]) == 2
    assert main(["kernel", "--capability", "1.0"]) == 2
    assert main(["kernel", "--ncu", str(tmp_path / "none.csv")]) == 2
    assert "none.csv cannot be read" in capsys.readouterr().err


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


@pytest.mark.parametrize(
    ("words", "message"),
    [(["onnx"], "--out"), (["tflite", "--out", "m"], "tflite"), (["onnx", "--out", "m", "crop=64"], "no effect")],
)
def test_wrong_use_of_export(exports, words, message, capsys):
    assert main(["export", *words]) == 2
    assert message in capsys.readouterr().err
    assert exports == []
