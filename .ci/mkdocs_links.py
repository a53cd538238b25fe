"""Links of the pages that lead out of docs/: the site shows the path, as the file is only in the repository."""

from __future__ import annotations

import re


def on_page_markdown(markdown: str, **_kwargs: object) -> str:
    """Return the page with such links as text."""
    return re.sub(r"\[([^\]]+)\]\(\.\./([^)]+)\)", r"\1 (`\2`)", markdown)
