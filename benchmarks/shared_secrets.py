"""Which of 58 forms of secrets and names stand in what is shared of a crash and of a notebook that fails?

    python benchmarks/shared_secrets.py --seed 7

A program prints each form and raises with some of them, under `ocrlab watch`; a notebook prints, displays and raises
them, under `ocrlab run`; `ocrlab report bug` writes of both, `ocrlab diagnose` answers. Looked for is every value in
all of it, also without colours and with HTML and JSON read. Texts that only look like a secret must stay as they are.
"""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook
from secret_forms import INNOCENT, Form, forms
from table import figure, judged, markdown, page, parser, publish

PRIVATE = {"config.yaml", ".RUNNING", ".SUCCESS", ".FAILURE", "flight", "checkpoints"}  # never handed on
COLOURS = re.compile(r"\x1b\[[0-9;]*m|\\u001b\[[0-9;]*m")
RAISED = ("hugging face", "database", "option", "colours", "TRACKER_API_KEY")
PROGRAM = """
import json, sys
texts = json.load(open("forms.json"))
for text in [*texts["shown"], *texts["innocent"]]:
    print(text, flush=True)
error = RuntimeError("no space: " + " | ".join(texts["raised"]))
error.add_note(texts["note"])
raise error
"""
DISPLAYED = """
import html
from IPython.display import HTML, Markdown, display
display(HTML("<pre>" + html.escape("\\n".join(texts["shown"])) + "</pre>"), Markdown("\\n\\n".join(texts["shown"])))
texts["shown"]
"""


def main() -> int:
    """Print the table; end with 1 where a form is found, or an innocent text is changed."""
    options = parser(__doc__)
    options.add_argument("--seed", type=int, default=20261124, help="of the values (20261124)")
    args = options.parse_args()
    all_forms = forms(args.seed)
    with tempfile.TemporaryDirectory(prefix="ocrlab-bench-") as folder:
        place = Path(folder)
        run(all_forms, place)
        texts = dict(shared(place))
    leaks = {form.name: sorted(name for name, text in texts.items() if shows_secret(form, text)) for form in all_forms}
    leaks = {name: where for name, where in leaks.items() if where}
    whole = [text for name, text in texts.items() if name.endswith(("log_tail.txt", "mine.ipynb"))]
    changed = [innocent for innocent in INNOCENT if not all(innocent in read(text) for text in whole)]
    rows: list[tuple[object, ...]] = [
        (f"forms found in {len(texts)} files and answers", len(leaks), 0),
        (f"innocent texts changed, of {len(INNOCENT)}", len(changed), 0),
    ]
    for what, number, must in rows:
        figure(str(what), number, "number", limit=f"<= {must}")
    leak_lines = "".join(f"\n{name}: {', '.join(where)}" for name, where in leaks.items())
    met = not leaks and not changed
    body = f"{len(all_forms)} forms, seed {args.seed}.\n\n{markdown(('what', 'number', 'must'), rows)}\n{leak_lines}\n"
    publish("secrets", page("Secrets in what is shared", f"{body}\n{judged(met)}"), args)
    return int(not met)


def run(every: list[Form], place: Path) -> None:
    """Let a program and a notebook show all of it and fail, and have them reported."""
    shown = {form.name: form.shown for form in every}
    texts = {"shown": list(shown.values()), "innocent": INNOCENT, "raised": [shown[name] for name in RAISED]}
    (place / "forms.json").write_text(json.dumps(texts | {"note": shown["pem"]}))
    (place / "train.py").write_text(PROGRAM)
    source, _, end = PROGRAM.partition("error =")
    cells = [new_code_cell(cell_source.strip()) for cell_source in (source, DISPLAYED, f"error ={end}")]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(new_notebook(cells=cells, metadata=kernel), place / "mine.ipynb")
    variables = dict(pair for form in every for pair in form.variables)
    environment = {**os.environ, **variables, "IPYTHONDIR": str(place / "flight"), "JUPYTER_PREFER_ENV_PATH": "1"}

    def ocrlab(*words: str, answer: str = "") -> None:
        command = [sys.executable, "-m", "ocrlab", *words]
        done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
        if answer:
            (place / "out" / answer).write_text(done.stdout + done.stderr)

    ocrlab("watch", "--run-dir", "out/run", "--", sys.executable, "train.py")
    ocrlab("run", "mine.ipynb", "--out", "out")
    ocrlab("report", "bug", "out/run", "--json", answer="bug.json")
    ocrlab("report", "bug", *map(str, (place / "out").glob("*-mine.ipynb")), answer="bug-notebook.txt")
    ocrlab("diagnose", "out/run", "--json", answer="diagnose.json")


def shared(place: Path) -> Iterator[tuple[str, str]]:
    """Yield every text that may be handed on, by its name."""
    for path in sorted((place / "out").rglob("*")):
        inside = path.relative_to(place / "out")
        if path.is_file() and not set(inside.parts) & PRIVATE:
            yield str(inside), path.read_text(errors="replace")


def shows_secret(form: Form, text: str) -> bool:
    """Return whether something that a form hides stands in a text, in any reading of it."""
    once = html.unescape(re.sub(r"</?(?:span|b|i|em|strong)\b[^>]*>", "", COLOURS.sub("", text)))
    readings = [text, COLOURS.sub("", text), once, html.unescape(once)]
    readings += [read(text_form) for text_form in readings]
    return any(value in reading for value in form.hidden for reading in readings)


def read(text: str) -> str:
    """Return a text with the escapes of JSON read."""
    return COLOURS.sub("", text).replace('\\"', '"').replace("\\\\", "\\")


if __name__ == "__main__":
    sys.exit(main())
