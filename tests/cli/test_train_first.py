"""What is looked at before torch: where a new run finds and puts things, as its config will say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ocrlab.cli import main, train_preflight
from ocrlab.config.schema import load
from ocrlab.errors import ConfigError, DataError


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("data: there\nruns: mine\n", []),
        ("data: there\nval_split: test\n", ["+data=here", "weights=a.ckpt", "crop=64"]),
        ("weights: b.ckpt\n", ["weights=none", "data='quoted place'", "data=last"]),
    ],
)
def test_it_reads_the_places_as_the_config_does(text: str, words: list[str], tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    config = load(file, words)
    wanted = {name: getattr(config, name) or "" for name in train_preflight.DEFAULTS}
    assert train_preflight.read_places(file, words) == wanted


def test_a_value_that_is_no_text_is_left_to_the_child(tmp_path: Path) -> None:
    train_preflight.check_places(train_preflight.read_places(None, ["data=[a, b]"]))
    with pytest.raises(ConfigError, match="No such file"):
        train_preflight.read_places(tmp_path / "none.yaml", [])


def test_a_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(DataError, match=f"{tmp_path}/pages does not exist"):
        train_preflight.check_places(train_preflight.read_places(None, ["data=~/pages"]))
    for split in ("train", "val"):
        for kind in ("images", "gts"):
            (tmp_path / "pages" / split / kind).mkdir(parents=True)
    train_preflight.check_places(train_preflight.read_places(None, ["data=~/pages"]))


def test_a_wrong_setting_is_reported_before_data_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "data=missing", "trainer.max_steps=x"]) == 2
    assert "trainer.max_steps=x" in capsys.readouterr().err
    assert main(["train", "data=missing", "trainer.max_steps=1"]) == 2
    assert "Data folder missing does not exist" in capsys.readouterr().err


def test_an_unusable_place_for_runs_is_reported_before_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ocrlab.run_folder.watcher_link.watched", lambda: False)  # as a person's command is not
    (tmp_path / "file").write_text("")
    for split in ("train", "val"):
        for kind in ("images", "gts"):
            (tmp_path / "pages" / split / kind).mkdir(parents=True)
    assert main(["train", "data=pages", "runs=file/deep"]) == 2
    stderr = capsys.readouterr().err
    assert "runs leads through a file" in stderr and "ocrlab watch" not in stderr


def test_it_costs_no_heavy_import() -> None:
    code = "import sys\nfrom ocrlab.cli import train_preflight\n"
    code += "train_preflight.check_places(train_preflight.read_places(None, ['data=data_samples']))\n"
    code += "print(sorted({'torch', 'numpy', 'cv2', 'pydantic'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.stdout == "[]\n", done.stderr
