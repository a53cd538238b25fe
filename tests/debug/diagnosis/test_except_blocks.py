"""What the source of a program says about a line of it."""

from __future__ import annotations

from pathlib import Path

from ocrlab.debug.diagnosis import hidden_errors

SOURCE = """import json
def train(path):
    try:
        model = build()
        losses.append(1)
        seen["a"] = 2
    except (KeyError, ValueError):
        report()
    except Exception as error:
        open(path, "w").write(str(error))
        raise
    for one in model.parts(1):
        one.go()
    try:
        json.dump({}, path)
    except:
        pass
"""


def program(folder: Path, text: str = SOURCE) -> str:
    file = folder / "train.py"
    file.write_text(text, encoding="utf-8")
    return str(file)


def test_handler_and_guarded_lines_differ(tmp_path: Path) -> None:
    file = program(tmp_path)
    inside = hidden_errors.handler_around(file, 10)
    assert inside is not None and (inside.line, inside.at, inside.catches, inside.broad) == (3, 9, ("Exception",), True)
    assert hidden_errors.handler_around(file, 4) is None and hidden_errors.handler_around(file, 12) is None


def test_what_takes_an_error_depends_on_its_classes(tmp_path: Path) -> None:
    file = program(tmp_path)
    narrow = hidden_errors.guarding_handler(file, 4, ["KeyError", "LookupError", "Exception", "BaseException"])
    broad = hidden_errors.guarding_handler(file, 4, ["OSError", "Exception", "BaseException"])
    assert narrow is not None and narrow.at == 7 and not narrow.broad
    assert broad is not None and broad.at == 9 and broad.makes == {"model", "losses", "seen"}
    assert hidden_errors.guarding_handler(file, 10, ["OSError", "Exception"]) is None


def test_only_a_handler_that_takes_all_and_goes_on_is_silent(tmp_path: Path) -> None:
    assert [handler.at for handler in hidden_errors.silent_handlers(program(tmp_path))] == [16]


def test_names_are_those_of_the_statement_and_not_of_its_block(tmp_path: Path) -> None:
    file = program(tmp_path)
    assert hidden_errors.names_read(file, 12) == {"one", "model"}
    assert hidden_errors.names_read(file, 13) == {"one"}


def test_what_is_no_source_says_nothing(tmp_path: Path) -> None:
    for file in (str(tmp_path / "gone.py"), str(tmp_path), program(tmp_path, "def (:\n"), "<string>", "a\0b"):
        assert (
            hidden_errors.handler_around(file, 1) is None
            and hidden_errors.silent_handlers(file) == []
            and hidden_errors.names_read(file, 1) == set()
        )
        assert hidden_errors.source_line(file, 9) == ""
