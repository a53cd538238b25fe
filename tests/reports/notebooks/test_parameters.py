"""The parameters cell: what papermill lets through is refused here, in one message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ocrlab.errors import ConfigError
from ocrlab.reports.notebooks import parameters

CELL = """
name: str = "03_train"  # of the run
batch_size: int = 4  # crops (crops; 1..)
lr: float = 0.002
encoder: str = "resnet18"  # backbone (name; resnet18|resnet50)
limit: float = 0.85  # that passes (share; 0..1)
scale: tuple[float, float] = (0.6, 1.4)
threads: Optional[int] = None  # (cores; ..64)
overrides: list = []
""".strip()
SETUP = "from ocrlab import notebook\nlab = notebook.setup(globals())"


def check(injected: str = "", cell: str = CELL, also: tuple[str, ...] = ()) -> dict[str, Any]:
    """Run the cells as papermill would, without Optional and annotations getting in the way, and check."""
    from typing import Optional

    cells = ["", cell, *([f"# Parameters\n{injected}\n"] if injected else []), SETUP]
    namespace: dict[str, Any] = {"Optional": Optional}
    for source in cells[:-1]:
        exec(source, namespace)
    return parameters.check(cells, namespace, also)


def test_defaults_pass_and_come_back() -> None:
    assert check() == {
        "name": "03_train",
        "batch_size": 4,
        "lr": 0.002,
        "encoder": "resnet18",
        "limit": 0.85,
        "scale": (0.6, 1.4),
        "threads": None,
        "overrides": [],
    }


def test_a_comment_gives_help_unit_and_limits() -> None:
    declared = {p.name: p for p in parameters.read(CELL)}
    assert declared["batch_size"].low == 1
    assert declared["batch_size"].high is None
    assert (declared["limit"].low, declared["limit"].high) == (0, 1)
    assert (declared["threads"].low, declared["threads"].high) == (None, 64)
    assert declared["encoder"].choices == ("resnet18", "resnet50")
    assert declared["name"].help == "of the run"
    assert declared["lr"].help == ""


@pytest.mark.parametrize(
    ("injected", "message"),
    [
        ('batch_size = "eight"', r"batch_size='eight' cannot be used. Needed: a whole number at least 1"),
        ("batch_size = True", "batch_size=True cannot be used"),
        ("batch_size = 4.0", r"batch_size=4\.0 cannot be used"),
        ("batch_size = 0", "a whole number at least 1"),
        ("lr = False", "a number"),
        ("lr = float('nan')", "lr=nan"),
        ("name = 3", "name=3 cannot be used. Needed: text"),
        ('encoder = "vgg16"', "one of resnet18, resnet50"),
        ("limit = 1.5", "a number at least 0 and at most 1"),
        ("scale = [0.5]", r"values \(a number, a number\)"),
        ("scale = 0.5", "scale=0.5"),
        ("threads = 65", "a whole number or None at most 64"),
        ("""overrides = '["augment.rotate=2"]'""", r"-y 'overrides: \[\.\.\.\]'"),
    ],
)
def test_wrong_types_and_ranges_are_refused(injected: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(injected)


def test_an_unknown_name_gets_the_nearest_right_name() -> None:
    with pytest.raises(ConfigError, match="Unknown parameter: bach_size. Did you mean batch_size?"):
        check("bach_size = 8")
    with pytest.raises(ConfigError, match="Unknown parameter: zzz. It has name, batch_size"):
        check("zzz = 8")


def test_a_setting_may_be_injected_without_standing_in_the_cell() -> None:
    assert check("crop = 640", also=("crop",))["crop"] == 640
    with pytest.raises(ConfigError, match="Did you mean crop?"):
        check("crops = 640", also=("crop",))


@pytest.mark.parametrize("name", ["wandb_api_key", "password", "hf_token", "dbPassword", "aws_secret_access_key"])
def test_a_parameter_named_like_a_secret_is_refused_without_its_value(name: str) -> None:
    for cell, injected in ((CELL, f'{name} = "hunter2hunter2"'), (f'{CELL}\n{name}: str = "hunter2hunter2"', "")):
        with pytest.raises(ConfigError, match="looks like a secret") as caught:
            check(injected, cell)
        assert "environment" in str(caught.value)
        assert "hunter2" not in str(caught.value)


def test_the_cell_that_ran_last_counts() -> None:
    cells = ["", CELL, SETUP, "x = 1\nbach_size = 2", "%matplotlib inline", "batch_size: int = 2", SETUP]
    assert parameters.check(cells, {"batch_size": 2, "x": 1}) == {"batch_size": 2}


def test_without_a_parameters_cell_there_is_a_word_on_it() -> None:
    with pytest.raises(ConfigError, match="parameters cell has not run"):
        parameters.check(["", "import os", SETUP], {})


def test_without_history_the_annotations_do() -> None:
    """nbval runs every cell without storing it."""
    from typing import Optional

    namespace: dict[str, Any] = {"Optional": Optional}
    exec(CELL, namespace)
    values = parameters.check([""], namespace)
    assert list(values) == ["name", "batch_size", "lr", "encoder", "limit", "scale", "threads", "overrides"]
    assert parameters.changed([""], namespace, values) == {}
    with pytest.raises(ConfigError, match="lr='x' cannot be used"):
        parameters.check([""], namespace | {"lr": "x"})
    with pytest.raises(ConfigError, match=r"scale=\(1,\) cannot be used"):
        parameters.check([""], namespace | {"scale": (1,)})


@pytest.mark.parametrize("line", ["a = 1", "a: int | None = 1", 'a: Literal["x"] = "x"', "a: int", "a: int = 1 + b"])
def test_lines_that_papermill_cannot_read_are_refused(line: str) -> None:
    with pytest.raises(ConfigError, match="Parameter a "):
        parameters.read(line)


@pytest.mark.parametrize(
    ("kind", "value", "fits"),
    [
        ("list[int]", [1, 2], True),
        ("list[int]", [1, "2"], False),
        ("dict[str, float]", {"a": 1}, True),
        ("dict[str, float]", {"a": "b"}, False),
        ("tuple[int, ...]", (1, 2, 3), True),
        ("tuple[int, ...]", (1, "2"), False),
        ("tuple", [1, "2"], True),
        ("Optional[str]", None, True),
        ("Optional[str]", 1, False),
        ("bool", 1, False),
        ("dict", {}, True),
    ],
)
def test_types(kind: str, value: object, fits: bool) -> None:
    assert (parameters.find_problem(parameters.Parameter("x", kind, None), value) is None) is fits


def test_a_path_that_leads_nowhere_is_refused_before_a_kernel_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = parameters.read(
        'data: str = ""  # folder with train/ (path)\n'
        'checkpoint: str = "receipts"  # receipts: the included one; or a .ckpt (path)\n'
        "compared: list = []  # run folders (paths)\n"
        'python: str = ""  # interpreter (path)\n'
        'runs: str = ""  # where runs go (path, made if need be)\n'
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    good = {"data": "a", "checkpoint": "receipts", "compared": ["a", str(tmp_path)], "python": "python3", "runs": "new"}
    parameters.check_paths(declared, good)
    parameters.check_paths(declared, {"data": "", "compared": []})
    with pytest.raises(ConfigError, match=r"data='nowhere' names nothing that is there. Needed: folder with train/"):
        parameters.check_paths(declared, {"data": "nowhere"})
    with pytest.raises(ConfigError, match=r"(?s)2 settings.*checkpoint='newst'.*compared='b'"):
        parameters.check_paths(declared, {"checkpoint": "newst", "compared": ["a", "b"]})
