"""How a failure is seen again: the exact command, where it was given, and what came of running it again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ocrlab.reports.bug_report.inputs import Sources
from ocrlab.reports.bug_report.markdown import Block, Bullets, Code, Paragraph, Table, code


def command(sources: Sources) -> list[str] | None:
    """Return the words of the program that failed, without the watcher around it; None where nobody knows them."""
    words = sources.process.get("command")
    if not (isinstance(words, list) and words and all(isinstance(word, str) for word in words)):
        return None
    arguments = _ours(words)
    if arguments is None:
        return None if any("ipykernel" in word for word in words) else list(words)
    if arguments[:1] == ["watch"]:
        return arguments[arguments.index("--") + 1 :] if "--" in arguments else None
    return ["ocrlab", *arguments]


def _ours(words: Sequence[str]) -> list[str] | None:
    """Return the words behind `ocrlab`, None for another program."""
    for index, word in enumerate(words[1:3], 1):
        if Path(word).name == "ocrlab" or (word == "-m" and words[index + 1 : index + 2] == ["ocrlab"]):
            return list(words[index + (2 if word == "-m" else 1) :])
    return None


def blocks(sources: Sources, verification: Mapping[str, Any]) -> list[Block]:
    """Return what to do to see it again."""
    if sources.kind == "notebook":
        return _of_notebook(sources)
    words = command(sources)
    if words is None:
        content: list[Block] = [Paragraph("The command is unknown: no record of the process says how it was started.")]
        if sources.config:
            content.append(
                Paragraph(f"Its settings are kept: {code(f'ocrlab train --config {sources.path.name}/config.yaml')}.")
            )
    else:
        folder = sources.process.get("folder")
        lines = [f"cd {shlex.quote(folder)}"] if isinstance(folder, str) else []
        watched = ["ocrlab", "watch", "--", *words] if words[:1] != ["ocrlab"] else words
        content = [Code("\n".join([*lines, shlex.join(watched)]), "sh")]
    items = []
    if sources.config:
        items.append(
            f"{code('config.yaml')} in the run folder holds every setting. It is private and is not part of this."
        )
    if sources.recorded:
        items.append(f"{code(f'ocrlab replay {sources.path.name}')} makes only the step that failed again, and alone.")
    return [*content, *([Bullets(items)] if items else []), *_verified(verification)]


def _of_notebook(sources: Sources) -> list[Block]:
    about = sources.notebook.get("papermill")
    execution = about if isinstance(about, Mapping) else {}
    parameters = execution.get("parameters")
    words = ["ocrlab", "run", str(execution.get("input_path") or sources.path.name)]
    for name, value in parameters.items() if isinstance(parameters, Mapping) else ():
        words += ["-p", str(name), str(value)]
    how = "" if execution else " Nothing says how it was executed; this is how it would be executed again."
    return [Code(shlex.join(words), "sh"), Paragraph(f"The notebook itself belongs to this report.{how}")]


def _verified(verification: Mapping[str, Any]) -> list[Block]:
    if not verification:
        return [Paragraph(f"Not verified: {code('ocrlab report bug RUN --verify')} runs the command again.")]
    if not verification.get("runs"):
        return [Paragraph(f"It could not be verified: {verification.get('why') or 'it is unknown why'}.")]
    same, count = verification["same"], len(verification["runs"])
    rows = [
        [str(index), "the same failure" if run["same"] else "another end", code(run["told"]), f"{run['seconds']:.1f}"]
        for index, run in enumerate(verification["runs"], 1)
    ]
    word = "run again" if count == 1 else f"run again {count} times"
    text = f"Verified: {word}, and the same failure came {same} of {count} times"
    text += f" (looked for: {code(verification['wanted'])})."
    return [Paragraph(text), Table(["run", "what came", "in its words", "s"], rows)]
