"""From a notebook's file and texts of parameters to a name of its own, before a kernel starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from ocrlab.errors import ConfigError, DataError
from ocrlab.reports.notebooks import pipeline

TYPED = 'name: str = "x"  # of this notebook\nn: int = 3  # how many (things; 1..5)\nlr: float = 0.1\nkinds: list = []'


@pytest.fixture
def write(tmp_path: Path):
    """Return a function that writes a notebook with a parameters cell and further cells."""

    def make(parameters: str, *others: str) -> Path:
        cells = [new_code_cell(parameters, metadata={"tags": ["parameters"]}), *map(new_code_cell, others)]
        path = tmp_path / "mine.ipynb"
        nbformat.write(new_notebook(cells=cells), str(path))
        return path

    return make


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("8", "str", "8"),
        ("8", "int", 8),
        ("1e-3", "float", 0.001),
        ("true", "bool", True),
        ("[a, 2]", "list", ["a", 2]),
        ("{a: 1}", "dict", {"a": 1}),
        ("null", "Optional[int]", None),
        ("a: b: c", "int", "a: b: c"),
        ("words", "", "words"),
    ],
)
def test_a_text_is_read_as_its_type_wants_it(text: str, kind: str, value: Any) -> None:
    assert pipeline.read(text, kind) == value
    assert type(pipeline.read(text, kind)) is type(value)


def test_parameters_stand_in_the_notebook(write: Any) -> None:
    prepared = pipeline.prepare(write(TYPED, "print(n)"), [("name", "5"), ("n", "4"), ("lr", "1e-2"), ("kinds", "[a]")])
    [injected] = [c for c in prepared.notebook.cells if "injected-parameters" in c.metadata.get("tags", [])]
    space: dict[str, Any] = {}
    exec(injected.source, space)
    assert (space["name"], space["n"], space["lr"], space["kinds"]) == ("5", 4, 0.01, ["a"])
    assert not prepared.ours


def test_everything_that_is_wrong_is_reported_at_once(write: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        pipeline.prepare(write(TYPED), [("n", "9"), ("nmae", "x"), ("api_key", "hunter2")])
    for part in ("n=9 cannot be used", "Unknown parameter: nmae. Did you mean name?", "api_key looks like a secret"):
        assert part in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_our_own_notebooks_take_every_setting_and_check_it(root: Path) -> None:
    path = root / "notebooks" / "03_train.ipynb"
    assert pipeline.prepare(path, [("encoder", "resnet50")]).ours
    with pytest.raises(ConfigError, match="encoder"):
        pipeline.prepare(path, [("encoder", "resnet5000")])


def test_parameters_without_types_are_taken_but_secrets_never(write: Any) -> None:
    path = write("n = 3")
    prepared = pipeline.prepare(path, [("n", "4")])
    assert "n = 4" in prepared.notebook.cells[1].source
    with pytest.raises(ConfigError, match="secret"):
        pipeline.prepare(path, [("db_password", "x")])


def test_parameters_of_somebody_elses_notebook_are_checked_against_its_cell(write: Any) -> None:
    path = write("n = 3\nlr = 0.1\nname = 'x'\npath: Path = None\nk: int | None = None\nlate = f()\na, b = 1, 2")
    good = [("n", "4"), ("lr", "1"), ("name", "5"), ("path", "here"), ("k", "null"), ("late", "[1]"), ("b", "7")]
    injected = pipeline.prepare(path, good).notebook.cells[1].source
    assert all(line in injected for line in ('name = "5"', "k = None", "late = [1]", "b = 7"))
    with pytest.raises(ConfigError) as caught:
        pipeline.prepare(path, [("n", "abc"), ("nn", "5"), ("k", "1.5"), ("lr", "fast")])
    for part in ("n='abc' cannot be used", "Unknown parameter: nn. Did you mean n?", "k=1.5", "lr='fast'"):
        assert part in str(caught.value)


def test_without_a_parameters_cell_none_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "plain.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell("n = 3")]), str(path))
    assert pipeline.prepare(path, []).notebook.cells
    with pytest.raises(ConfigError, match="no parameters cell for n"):
        pipeline.prepare(path, [("n", "4")])


def test_what_is_no_notebook_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no notebook"):
        pipeline.prepare(tmp_path / "none.ipynb", [])
    (tmp_path / "mk.py").write_text("print()")
    with pytest.raises(ConfigError, match=r"mk.py is not a notebook"):
        pipeline.prepare(tmp_path / "mk.py", [])
    (tmp_path / "text.ipynb").write_text("hello")
    with pytest.raises(DataError, match="not a notebook"):
        pipeline.prepare(tmp_path / "text.ipynb", [])


def test_no_name_is_taken_twice(write: Any, tmp_path: Path) -> None:
    prepared = pipeline.prepare(write(TYPED), [])
    names = {pipeline.reserve(prepared, tmp_path / "out") for _ in range(3)}
    assert len(names) == 3
    assert sorted(tmp_path.glob("out/*")) == sorted(names)  # and nothing temporary stays
    assert all(nbformat.read(str(name), as_version=4).cells for name in names)


def test_a_file_system_without_links_is_good_enough(write, tmp_path, monkeypatch):
    """A USB stick, a network's drive: no hard links there, and a name must still be nobody else's."""

    def refused(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", refused)
    prepared = pipeline.prepare(write(TYPED), [])
    names = [pipeline.reserve(prepared, tmp_path / "out") for _ in range(2)]
    assert names[0] != names[1]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(path.name for path in names)
    assert all(path.stat().st_size for path in names)


def test_a_folder_that_cannot_be_written_is_reported(write: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="Nothing can be written"):
        pipeline.reserve(pipeline.prepare(write(TYPED), []), tmp_path / "file")
