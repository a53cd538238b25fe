"""Markdown as HTML: formulas as MathML, pictures from the notebook and its folder, headings in order."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape, unescape
from pathlib import Path
from typing import Any

from ocrlab import safe_read
from ocrlab.reports.html import sanitizer

HEADING = re.compile(r"<h([1-6])(?:\s[^>]*)?>(.*?)</h\1>", re.DOTALL)
TASK = re.compile(r'<input class="task-list-item-checkbox" type="checkbox" disabled( checked)?/?>')
KINDS = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".gif": "gif", ".webp": "webp", ".svg": "svg+xml"}
LARGEST = 1_500_000  # bytes of a picture from the notebook's folder
FORMULA = re.compile(r"^\s*(?:\$\$?|\\\[|\\\()(.*?)(?:\$\$?|\\\]|\\\))\s*$", re.DOTALL)


@dataclass
class Headings:
    """The headings of a page in order: one of the first level, none that skips a level, each with a name of its own."""

    title: str = ""  # inner HTML, of the first heading of the first level
    last: int = 1
    names: set[str] = field(default_factory=set)
    listed: list[tuple[str, str]] = field(default_factory=list)  # (name, text) of those of the second level

    def put(self, html: str) -> str:
        """Return HTML with its headings in their place on the page; the title is taken out."""
        return HEADING.sub(self._place, html)

    def _place(self, match: re.Match[str]) -> str:
        level, inner = int(match[1]), match[2].strip()
        if level == 1 and not self.title:
            self.title = inner
            return ""
        self.last = level = max(min(level, self.last + 1), 2)
        words = plain(inner)
        wanted = name = re.sub(r"\s+", "-", words) or "section"  # as Jupyter forms them
        number = 1
        while name in self.names:
            number += 1
            name = f"{wanted}-{number}"
        self.names.add(name)
        if level == 2:
            self.listed.append((name, words))
        link = f'<a class="here" href="#{escape(name)}" aria-label="link to {escape(words)}">#</a>'
        return f'<h{level} id="{escape(name)}">{inner} {link}</h{level}>'


def plain(html: str) -> str:
    """Return the words of HTML."""
    return unescape(re.sub(r"<[^>]*>", "", html)).strip()


def markdown(source: str, attachments: Mapping[str, Any], folder: Path | None) -> str:
    """Return Markdown as HTML that is safe to show; pictures come from `attachments` and from files in `folder`."""
    from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

    class Renderer(IPythonRenderer):  # type: ignore[misc]
        def block_math(self, body: str) -> str:
            return formula(body, display=True)

        def inline_math(self, body: str) -> str:
            return formula(body)

        def latex_environment(self, name: str, body: str) -> str:
            return formula(f"\\begin{{{name}}}{body}\\end{{{name}}}", display=True)

        def block_mermaidjs(self, code: str) -> str:
            return f"<pre>{escape(code)}</pre>"

        def _embed_image_or_attachment(self, src: str) -> str:
            return _picture(src, attachments, folder) or src

    html = MarkdownWithMath(renderer=Renderer(escape=False, exclude_anchor_links=True)).render(source)
    html = TASK.sub(lambda match: "☑ " if match[1] else "☐ ", html)
    return sanitizer.text(html, lambda address: _picture(address, attachments, folder))


def formula(tex: str, display: bool = False) -> str:
    """Return a formula as MathML, which needs no script; one that cannot be read stays as it was written."""
    from latex2mathml.converter import convert

    match = FORMULA.match(tex)
    body = (match[1] if match else tex).strip()
    try:
        return str(convert(body, display="block" if display else "inline"))
    except Exception:  # its parser raises all kinds; the source is always there to be shown
        return f'<code class="tex">{escape(body)}</code>'


def _picture(address: str, attachments: Mapping[str, Any], folder: Path | None) -> str:
    """Return the data: address of a picture that lies in the notebook or in its folder, "" if there is none."""
    if address.startswith("attachment:"):
        bundle = attachments.get(address.removeprefix("attachment:"), {})
        pictures = (f"data:{kind};base64,{''.join(data)}" for kind, data in bundle.items() if "image/" in kind)
        return next(pictures, "")
    kind = KINDS.get(Path(address).suffix.lower())
    if folder is None or kind is None or re.match(r"[a-z][a-z0-9+.-]*:|//", address, re.IGNORECASE):
        return ""
    try:
        path = (folder / address).resolve()
        if not path.is_relative_to(folder.resolve()) or path.stat().st_size > LARGEST:
            return ""
        return f"data:image/{kind};base64,{base64.b64encode(safe_read.read(path)).decode('ascii')}"
    except (OSError, ValueError):
        return ""
