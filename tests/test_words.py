"""Texts that people read: phrases that are never used, and how long the README, table cells and sentences may be."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
# Spelt so that this file does not contain what it looks for.
PHRASES = re.compile(
    r"\bme" + r"nd(?:s|ed|ing)?\b|\bof ou" + r"rs\b|\bit is sa" + r"id\b|\bto" + r"ld of\b|\bspea" + r"ks? for\b"
    r"|(?<!here )\b(?:is|are|was|were) no (?!longer|more|such)\w",
    re.IGNORECASE,
)


def without_code(text: str) -> str:
    return re.sub(r"^(```+).*?^\1", "", text, flags=re.MULTILINE | re.DOTALL)


def prose(text: str) -> list[str]:
    """Return the paragraphs of a page: no code, no table, no list, no heading."""
    paragraphs = re.split(r"\n\s*\n", without_code(text))
    return [part for part in paragraphs if not re.match(r"\s*(\||[-*] |\d+\. |#|<|!|:::)", part)]


def texts() -> list[Path]:
    files = [*PAGES, ROOT / "CHANGELOG.md", ROOT / "Makefile", *(ROOT / "notebooks").glob("*.ipynb")]
    files += [path for folder in ("benchmarks", "tests") for path in (ROOT / folder).rglob("*.py")]
    return files + [path for suffix in ("py", "toml", "css", "html") for path in (ROOT / "ocrlab").rglob(f"*.{suffix}")]


def test_no_fixed_phrase_that_reads_like_a_translation() -> None:
    phrases = []
    for path in texts():
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".ipynb":
            text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
        phrases += [f"{path.relative_to(ROOT)}: {match[0]}" for match in PHRASES.finditer(text)]
    assert phrases == []


def test_the_readme_is_short_and_shows_a_verdict_early() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(without_code(text).split()) <= 900
    [line, *_] = [number for number, line in enumerate(text.splitlines(), 1) if line.startswith("![")]
    assert line <= 40


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_table_cells_and_sentences_are_short(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    rows = re.findall(r"^\s*\|(.*?)\|?$", without_code(text), re.MULTILINE)
    cells = [cell for row in rows for cell in row.split(" | ")]
    assert [cell for cell in cells if len(cell.split()) > 25] == []
    sentences = [part for block in prose(text) for part in re.split(r"(?<=[.?!])\s+", " ".join(block.split()))]
    assert [sentence for sentence in sentences if len(sentence.split()) > 30] == []


def test_the_changelog_of_a_version_fits_on_a_page() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    for version in re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]:
        assert len([line for line in version.splitlines()[1:] if line.strip()]) <= 60, version.splitlines()[0]
