"""The cell magic `%%isolated`, without a kernel: what it hands over, what comes back, what it survives."""

import os
import pickle
import sys
import types
from collections.abc import Iterator
from typing import Any

import IPython.display
import pytest

from ocrlab.errors import ConfigError, RunError
from ocrlab.notebook import display_hook, isolated_magic
from ocrlab.notebook.child_runner import ChildFailed


@pytest.fixture
def namespace() -> dict[str, Any]:
    return {"os": os, "n": 21, "kept": [1]}


def test_names_go_in_and_come_back(namespace: dict[str, Any], capsys: pytest.CaptureFixture) -> None:
    code = (
        "print('in the child')\nkept.append(2)\nhere = os.getpid()\nanswer = 2 * n\nstuck = (i for i in [])\nanswer + 1"
    )
    assert isolated_magic.run("--timeout 60", code, namespace) == 43
    assert namespace["answer"] == 42
    assert namespace["here"] != os.getpid()
    assert namespace["kept"] == [1]  # the child had a copy
    assert "stuck" not in namespace
    captured = capsys.readouterr()
    assert captured.out == "in the child\n"
    assert "stuck stayed in the child" in captured.err


def test_a_value_whose_module_the_notebook_lacks_is_shown_and_reported(namespace, monkeypatch, capsys):
    """`uuid` stands for pandas: its class is not known in the notebook, but well in the child."""
    monkeypatch.setattr(isolated_magic, "loads", _lacking)
    displayed: list[Any] = []
    monkeypatch.setattr(IPython.display, "display", lambda data, **more: displayed.append(data))
    assert (
        isolated_magic.run("", "import uuid\nfrom uuid import UUID\nname = uuid.UUID(int=7)\nname", namespace) is None
    )
    assert displayed == [{"text/plain": "UUID('00000000-0000-0000-0000-000000000007')"}]
    printed = capsys.readouterr().err
    assert "the value stayed in the child: it needs uuid" in printed
    assert "name stayed in the child: it needs uuid" in printed
    assert "UUID stayed" not in printed
    assert "name" not in namespace


def _lacking(data: bytes) -> Any:
    raise RunError("it needs uuid, which this notebook has not imported")


def test_figures_and_displayed_things_appear(namespace: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    displayed: list[tuple[Any, Any]] = []
    monkeypatch.setattr(IPython.display, "display", lambda data, **more: displayed.append((data, more)))
    code = (
        "from IPython.display import HTML\nimport matplotlib.pyplot as plt\n"
        "display(HTML('<b>rich</b>'))\nplt.plot([1, 2])\nplt.show()\nplt.plot([2, 1])\nfig = plt.gcf()\nfig"
    )
    assert isolated_magic.run("", code, namespace) is None
    html, *figures = [data for data, _ in displayed]
    assert html["text/html"] == "<b>rich</b>"
    assert [figure["image/png"][:8] for figure in figures] == ["iVBORw0K"] * 2  # PNG in base64, each of them once


def test_magics_in_the_cell_and_an_exit_are_refused_in_a_single_line(namespace: dict[str, Any]) -> None:
    for code in ("!echo shell", "x = 1\n%time y = 2", "files = !ls"):
        with pytest.raises(ConfigError, match="An isolated cell is plain Python"):
            isolated_magic.run("", code, namespace)
    with pytest.raises(RunError, match="The cell ended the process itself; nothing came back") as caught:
        isolated_magic.run("", "import sys\nsys.exit()", namespace)
    assert caught.value._render_traceback_() == [f"RunError: {caught.value}"]


def test_the_kernel_survives_and_the_names_stay(namespace: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    views: list[Any] = []
    monkeypatch.setattr(IPython.display, "display", views.append)
    with pytest.raises(ChildFailed, match="SIGABRT"):
        isolated_magic.run("", "answer = 1\nos.abort()", namespace)
    assert "answer" not in namespace
    assert "native.abort" in views[0].html


def test_functions_and_classes_of_the_notebook_go_by_their_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a cell uses, and what that uses, in the order in which the notebook defined it."""
    import linecache

    source = "class Box:\n    pass\ndef helper():\n    return Box()\ndef outer():\n    return helper()\n"
    linecache.cache["<cell>"] = (len(source), None, source.splitlines(True), "<cell>")
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    main.__file__ = "<cell>"
    exec(compile(source, "<cell>", "exec"), main.__dict__)
    call, left = isolated_magic.gather("outer()", main.__dict__)
    assert [text.splitlines()[0] for text in call["sources"]] == ["class Box:", "def helper():", "def outer():"]
    assert (call["values"], left) == ({}, {})


def test_what_cannot_be_handed_over_is_named_and_unused_names_are_not_touched(namespace: dict[str, Any]) -> None:
    with open(os.devnull) as file:
        call, left = isolated_magic.gather("file.read(n)", namespace | {"file": file, "unused": file})
    assert list(left) == ["file"]
    assert list(call["values"]) == ["n"]


def test_nothing_is_imported_into_the_notebook_by_a_value_that_comes_back() -> None:
    data = pickle.dumps(types.SimpleNamespace(a=1)).replace(b"types", b"typez")
    with pytest.raises(RunError, match="it needs typez, which this notebook has not imported"):
        isolated_magic.loads(data)


def test_it_is_registered_by_load_ext_and_by_importing_the_notebook_package() -> None:
    import ocrlab

    magics: dict[str, Any] = {}
    shell = types.SimpleNamespace(
        user_ns={},
        events=types.SimpleNamespace(register=lambda *_: None),
        register_magic_function=lambda function, kind, name: magics.update({(kind, name): function}),
    )
    ocrlab.load_ipython_extension(shell)
    assert ("cell", "isolated") in magics


def test_what_is_too_large_is_left_out_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display_hook, "LARGEST", 10)
    assert display_hook.bounded({"text/html": "x" * 11, "text/plain": "short"}) == {"text/plain": "short"}
    bundle = display_hook.bounded({"text/html": "x" * 11})
    assert "text/html of more than" in bundle["text/plain"]


def test_a_value_looks_as_in_a_notebook_and_a_broken_value_has_its_repr() -> None:
    class Rich:
        def _repr_html_(self) -> str:
            return "<b>rich</b>"

    assert display_hook.formatted(Rich())[0]["text/html"] == "<b>rich</b>"
    assert display_hook.formatted([1, 2])[0] == {"text/plain": "[1, 2]"}
    assert not display_hook.is_figure(Rich())


CELLS = ("import torch\nfrom torch import nn", "model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))")
FAILS = "model(torch.rand(4, 1, 32, 32))"


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    interactiveshell = pytest.importorskip("IPython.core.interactiveshell")
    interactiveshell.InteractiveShell.clear_instance()
    shell = interactiveshell.InteractiveShell.instance()
    monkeypatch.setattr("ocrlab.notebook.explained_errors.SECONDS", 60.0)  # machines that run tests are loaded
    shell.run_line_magic("load_ext", "ocrlab")
    yield shell
    interactiveshell.InteractiveShell.clear_instance()


def run(shell: Any, *cells: str) -> None:
    for cell in cells:
        shell.run_cell(cell, store_history=True)


def test_the_explanation_follows_the_traceback(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run(shell, *CELLS, FAILS)
    shown = capsys.readouterr().out
    assert shown.index("RuntimeError") < shown.index("Why: ")
    assert "1024 features" in shown
    assert "Linear(784, 10)" in shown
    assert "cell 2" in shown  # where the layer is made


def test_it_can_be_switched_off(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_line_magic("explain_errors", "off")
    run(shell, *CELLS, FAILS)
    assert "Why: " not in capsys.readouterr().out


def test_an_unknown_failure_and_an_interrupt_show_nothing(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run(shell, "raise RuntimeError('of the program itself')", "raise KeyboardInterrupt", "x = 1")
    assert "Why: " not in capsys.readouterr().out
