"""How a failure is seen again: the exact command, where it was given, and what came of running it again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ocrlab.reports.bug_report.inputs import Sources
from ocrlab.reports.bug_report.markdown import Block, Bullets, Code, Paragraph, Table, code


def command(found: Sources) -> list[str] | None:
    """Return the words of the program that failed, without the watcher around it; None where nobody knows them."""
    words = found.process.get("command")
    if not (isinstance(words, list) and words and all(isinstance(word, str) for word in words)):
        return None
    ours = _ours(words)
    if ours is None:
        return None if any("ipykernel" in word for word in words) else list(words)
    if ours[:1] == ["watch"]:
        return ours[ours.index("--") + 1 :] if "--" in ours else None
    return ["ocrlab", *ours]


def _ours(words: Sequence[str]) -> list[str] | None:
    """Return the words behind `ocrlab`, None for another program."""
    for index, word in enumerate(words[1:3], 1):
        if Path(word).name == "ocrlab" or (word == "-m" and words[index + 1 : index + 2] == ["ocrlab"]):
            return list(words[index + (2 if word == "-m" else 1) :])
    return None


def blocks(found: Sources, verified: Mapping[str, Any]) -> list[Block]:
    """Return what to do to see it again."""
    if found.kind == "notebook":
        return _of_notebook(found)
    words = command(found)
    if words is None:
        told: list[Block] = [Paragraph("The command is unknown: no record of the process says how it was started.")]
        if found.config:
            told.append(
                Paragraph(f"Its settings are kept: {code(f'ocrlab train --config {found.path.name}/config.yaml')}.")
            )
    else:
        folder = found.process.get("folder")
        lines = [f"cd {shlex.quote(folder)}"] if isinstance(folder, str) else []
        watched = ["ocrlab", "watch", "--", *words] if words[:1] != ["ocrlab"] else words
        told = [Code("\n".join([*lines, shlex.join(watched)]), "sh")]
    items = []
    if found.config:
        items.append(
            f"{code('config.yaml')} in the run folder holds every setting. It is private and is not part of this."
        )
    if found.recorded:
        items.append(f"{code(f'ocrlab replay {found.path.name}')} makes only the step that failed again, and alone.")
    return [*told, *([Bullets(items)] if items else []), *_verified(verified)]


def _of_notebook(found: Sources) -> list[Block]:
    about = found.notebook.get("papermill")
    kept = about if isinstance(about, Mapping) else {}
    given = kept.get("parameters")
    words = ["ocrlab", "run", str(kept.get("input_path") or found.path.name)]
    for name, value in given.items() if isinstance(given, Mapping) else ():
        words += ["-p", str(name), str(value)]
    how = "" if kept else " Nothing says how it was executed; this is how it would be executed again."
    return [Code(shlex.join(words), "sh"), Paragraph(f"The notebook itself belongs to this report.{how}")]


def _verified(verified: Mapping[str, Any]) -> list[Block]:
    if not verified:
        return [Paragraph(f"Not verified: {code('ocrlab report bug RUN --verify')} runs the command again.")]
    if not verified.get("runs"):
        return [Paragraph(f"It could not be verified: {verified.get('why') or 'it is unknown why'}.")]
    same, count = verified["same"], len(verified["runs"])
    rows = [
        [str(index), "the same failure" if run["same"] else "another end", code(run["told"]), f"{run['seconds']:.1f}"]
        for index, run in enumerate(verified["runs"], 1)
    ]
    word = "run again" if count == 1 else f"run again {count} times"
    told = (
        f"Verified: {word}, and the same failure came {same} of {count} times (looked for: {code(verified['wanted'])})."
    )
    return [Paragraph(told), Table(["run", "what came", "in its words", "s"], rows)]
