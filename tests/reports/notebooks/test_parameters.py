"""Parameters: what papermill lets through is refused here, in one message, before a kernel starts."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from ocrlab.errors import ConfigError, DataError
from ocrlab.reports.notebooks import parameters, parameters_to_config, pipeline

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
        "name": "03_train", "batch_size": 4, "lr": 0.002, "encoder": "resnet18", "limit": 0.85,
        "scale": (0.6, 1.4), "threads": None, "overrides": [],
    }  # fmt: skip


def test_a_comment_gives_help_unit_and_limits() -> None:
    declared = {p.name: p for p in parameters.read(CELL)}
    assert declared["batch_size"].low == 1
    assert declared["batch_size"].high is None
    assert (declared["limit"].low, declared["limit"].high) == (0, 1)
    assert (declared["threads"].low, declared["threads"].high) == (None, 64)
    assert declared["encoder"].choices == ("resnet18", "resnet50")
    assert declared["name"].help == "of the run"
    assert declared["lr"].help == ""


@pytest.mark.parametrize(("injected", "message"), [
    ('batch_size = "eight"', r"batch_size='eight' cannot be used. Needed: a whole number at least 1"),
    ("batch_size = True", "batch_size=True cannot be used"),
    ("batch_size = 4.0", r"batch_size=4\.0 cannot be used"),
    ("batch_size = 0", "a whole number at least 1"),
    ("lr = False", "a number"),
    ("lr = float('nan')", "lr=nan"),
    ("name = 3", "name=3 cannot be used. Needed: text"),
    ('encoder = "vgg16"', "one of resnet18, resnet50"),
    ("limit = 1.5", "a number at least 0 and at most 1"),
    ("scale = [0.5]", r"tuple\[float, float\]"),
    ("scale = 0.5", "scale=0.5"),
    ("threads = 65", r"Optional\[int\] at most 64"),
    ("""overrides = '["augment.rotate=2"]'""", r"-y 'overrides: \[\.\.\.\]'"),
])  # fmt: skip
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


@pytest.mark.parametrize(
    ("kind", "value", "fits"),
    [
        ("list[int]", [1, 2], True), ("list[int]", [1, "2"], False), ("dict[str, float]", {"a": 1}, True),
        ("dict[str, float]", {"a": "b"}, False), ("tuple[int, ...]", (1, 2, 3), True),
        ("tuple[int, ...]", (1, "2"), False), ("tuple", [1, "2"], True), ("Optional[str]", None, True),
        ("Optional[str]", 1, False), ("bool", 1, False), ("dict", {}, True),
    ],
)  # fmt: skip
def test_types(kind: str, value: object, fits: bool) -> None:
    assert (parameters.find_problem(parameters.Parameter("x", kind, None), value) is None) is fits


def test_a_path_that_leads_nowhere_is_refused_before_a_kernel_starts(tmp_path, monkeypatch):
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


def test_parameters_become_a_config(tmp_path: Path) -> None:
    values = {
        "name": "x", "data": "", "lr": 0.01, "max_steps": 7, "limit": 0.5,
        "overrides": ["augment.rotate=2", "lr=0.5"],
    }  # fmt: skip
    config = parameters_to_config.configure(values | {"runs": str(tmp_path)})
    assert (config.name, config.optim.lr, config.trainer.max_steps, config.augment.rotate) == ("x", 0.5, 7, 2)
    assert config.runs == str(tmp_path)


def test_empty_folders_are_those_of_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    monkeypatch.chdir(tmp_path)
    config = parameters_to_config.configure({"data": ""})
    assert config.data == str(root / "data_samples")
    assert config.runs == str(root / "runs")


def test_without_a_checkout_data_must_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameters_to_config, "homes", list)
    monkeypatch.chdir(tmp_path)
    assert parameters_to_config.runs() == tmp_path / "runs"
    with pytest.raises(ConfigError, match="ocrlab samples make"):
        parameters_to_config.configure({"data": ""})


def test_a_notebook_is_watched() -> None:
    trainer = parameters_to_config.configure({"data": "", "max_steps": 300}).trainer
    assert (trainer.log_every, trainer.val_every, trainer.val_pages) == (5, 100, 16)
    config = parameters_to_config.configure(
        {"data": "", "max_steps": 300, "val_every": 300, "overrides": ["trainer.val_pages=none"]}
    )
    assert (config.trainer.val_every, config.trainer.val_pages) == (300, None)


def test_a_slip_of_the_pen_and_a_wrong_value_are_refused() -> None:
    with pytest.raises(ConfigError, match="Did you mean batch_size?"):
        parameters_to_config.configure({"data": "", "batchsize": 4})
    with pytest.raises(ConfigError, match="a whole number from 1 to"):
        parameters_to_config.configure({"data": "", "batch_size": 0})
    with pytest.raises(ConfigError, match="crop"):
        parameters_to_config.configure({"data": "", "crop": 100})


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


@pytest.mark.parametrize(("text", "kind", "value"), [
    ("8", "str", "8"), ("8", "int", 8), ("1e-3", "float", 0.001), ("true", "bool", True),
    ("[a, 2]", "list", ["a", 2]), ("{a: 1}", "dict", {"a": 1}), ("null", "Optional[int]", None),
    ("a: b: c", "int", "a: b: c"), ("words", "", "words"),
])  # fmt: skip
def test_a_text_is_read_as_its_type_wants_it(text: str, kind: str, value: Any) -> None:
    assert pipeline.read(text, kind) == value
    assert type(pipeline.read(text, kind)) is type(value)


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


def test_a_folder_that_cannot_be_written_is_reported(write: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="Nothing can be written"):
        pipeline.reserve(pipeline.prepare(write(TYPED), []), tmp_path / "file")
