"""A notebook by somebody who means harm: its report runs nothing, asks for nothing, and cannot leave its place."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from ocrlab.reports.html import document

pytestmark = pytest.mark.browser
TAKEN = "document.title='taken'"
PARTS = {
    "script": f"<script>{TAKEN}</script><SCRIPT SRC=http://evil.invalid/s.js></SCRIPT>",
    "handler": f'<img src=x onerror="{TAKEN}"><p onmouseover={TAKEN} onclick={TAKEN}>t</p>'
    f"<details ontoggle={TAKEN} open>",
    "picture": '<img src="http://evil.invalid/1.png" srcset="http://evil.invalid/2.png 2x" alt="remote">',
    "frame": f'<iframe src="//evil.invalid/f"></iframe><iframe srcdoc="<script>top.{TAKEN}</script>"></iframe>',
    "link": f'<a href="javascript:{TAKEN}">a</a> <a href="&#106;ava\tscript:{TAKEN}">b</a>'
    '<a href="//evil.invalid">c</a>',
    "data": f'<a href="data:text/html,<script>{TAKEN}</script>">d</a><img src="data:text/html,x">',
    "object": '<object data="//evil.invalid/o"></object><embed src="//evil.invalid/e"><audio src="//evil.invalid/a">',
    "head": '<link rel="stylesheet" href="//evil.invalid/l.css"><link rel="preconnect" href="//evil.invalid">',
    "refresh": '<meta http-equiv="refresh" content="0;url=http://evil.invalid/"><base href="http://evil.invalid/">',
    "form": f'<form action="http://evil.invalid/"><input autofocus onfocus="{TAKEN}"><button formaction=x>s</form>',
    "svg": f'<svg onload="{TAKEN}"><script>{TAKEN}</script><image href="http://evil.invalid/i.png"/>'
    '<use href="http://evil.invalid/u.svg#a"/><rect fill="url(//evil.invalid/p.svg#a)" width="9" height="9"/></svg>',
    "svg link": f'<svg><a xlink:href="javascript:{TAKEN}"><text>t</text></a>'
    '<animate attributeName="href" values="x"/></svg>',
    "foreign": f"<svg><foreignObject><iframe srcdoc='<script>top.{TAKEN}</script>'></iframe></foreignObject></svg>",
    "mutation": f'<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;img src=1 onerror={TAKEN}&gt;">',
    "noscript": f'<noscript><p title="</noscript><img src=x onerror={TAKEN}>"></noscript>',
    "style": "<style>@import url(http://evil.invalid/i.css); body { background: url(http://evil.invalid/b.png) }\n"
    "* { background-image: url('http://evil.invalid/s.png') } @font-face { font-family: x; src: url(//evil.invalid/f) }"
    "p { background: u\\72l(http://evil.invalid/q); cursor: image-set('http://evil.invalid/c' 1x), auto }</style>",
    "style attribute": '<p style="background:url(http://evil.invalid/a);--x:url(//evil.invalid/b);color:var(--x)">t',
    "end of style": f'<style>p::before {{ content: "\\3c /style\\3e \\3c script\\3e {TAKEN}\\3c /script" }}</style>',
    "old attributes": '<table background="http://evil.invalid/t.png"><tr><td background="http://evil.invalid/u">1</table>',
}
TOUCH = """document.querySelectorAll('main a, main p, main img, main svg').forEach((one) => {
one.dispatchEvent(new MouseEvent('mouseover', { bubbles: true }));
if (!/^https?:/.test(one.href ?? '')) one.dispatchEvent(new MouseEvent('click', { bubbles: true })); })"""
ABOVE = '<div style="position:fixed;inset:0;z-index:9999;background:red">in front</div>'
GREEDY = "<style>} } } header, .outcome { display: none !important } body { visibility: hidden }</style>"
GREEDY += (
    "<style>header:not(&), .outcome:not(&), ~ * { display: none !important }</style>"  # & is the output's own class
)
CLOSING = "</div></section></main></body></html><p>after</p>"


def examine(browser: Any, notebook: Any, tmp_path: Path) -> dict[str, Any]:
    """Open the report of a notebook, press and touch what can be, and return what the browser saw."""
    page = tmp_path / "page.html"
    page.write_text(document.page(notebook, "mine", tmp_path), encoding="utf-8")
    browser.open(page)
    findings = browser.examine()
    browser.run(TOUCH)
    return findings | {"requests": browser.requests(), "complaints": browser.complaints(), "now": browser.driver.title}


def quiet(findings: dict[str, Any], title: str) -> None:
    assert all(findings[name] == [] for name in ("requests", "complaints", "scripts", "handlers")), findings
    assert (findings["now"], findings["titles"]) == (title, 1)


def bundle(data: dict[str, Any], number: int = 1, **about: Any) -> Any:
    output = new_output("display_data", data=data, metadata=about)
    return new_code_cell("x", outputs=[output], execution_count=number)


@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_an_output_or_of_prose_does_no_harm(browser: Any, name: str, tmp_path: Path) -> None:
    cells = [
        new_markdown_cell(f"# Mine\n\n{PARTS[name]}\n\n## more {PARTS[name]}"),
        bundle({"text/html": PARTS[name]}),
        bundle({"text/markdown": PARTS[name]}, 2),
    ]
    quiet(examine(browser, new_notebook(cells=cells), tmp_path), "Mine")


def test_every_other_place_for_a_script(browser: Any, tmp_path: Path) -> None:
    script = f'"></pre></title></style><script>{TAKEN}</script><img src=x onerror="{TAKEN}">'
    svg = f"<svg xmlns='http://www.w3.org/2000/svg' onload='x()'><image href='http://evil.invalid/i'/>{PARTS['script']}</svg>"
    cells = [
        new_markdown_cell("# Mine\n\n[a](javascript:x) ![b](http://evil.invalid/m.png) ![c](file:///etc/hostname)"),
        new_markdown_cell(f"## $\\href{{javascript:x}}{{a}}$ $\\text{{{script}}}$"),
        new_code_cell(script, outputs=[new_output("stream", name="stdout", text=f"{script}\x1b]0;x\x07")]),
        bundle({"text/plain": script}, 2),
        bundle({"image/svg+xml": svg, "text/plain": script}, 3),
        bundle({"image/png": script}, 4, **{"image/png": {"alt": script, "width": script}}),
        bundle({"text/latex": script}, 5),
        bundle({"application/json": {script: script}}, 6),
        bundle({"application/javascript": TAKEN, script: "x"}, 7),
        bundle({"application/vnd.ocrlab.result+json": {"name": script, "outcome": script}, "text/html": script}, 8),
        new_code_cell("x", outputs=[new_output("error", ename=script, evalue=script, traceback=[script])]),
    ]
    notebook = new_notebook(
        cells=cells, metadata={"kernelspec": {"name": "x", "display_name": "x", "language": script}}
    )
    notebook.metadata["papermill"] = {"input_path": script, "start_time": script, "duration": script}
    for cell in notebook.cells[2:]:
        cell.metadata["papermill"] = {"status": script, "duration": script}
    quiet(examine(browser, nbformat.from_dict(notebook), tmp_path), "Mine")


def test_the_outcome_can_be_neither_hidden_nor_covered(browser: Any, tmp_path: Path) -> None:
    parts = {"text/html": GREEDY + ABOVE + CLOSING}
    cells = [
        new_markdown_cell(f"# Mi<b style='position:fixed;inset:0'>n</b>e\n\n{GREEDY}{ABOVE}{CLOSING}"),
        bundle(parts),
        new_markdown_cell("## Last"),
    ]
    quiet(examine(browser, new_notebook(cells=cells), tmp_path), "Mine")
    browser.look(1200, 900)
    top = "const box = document.querySelector('.outcome').getBoundingClientRect();"
    top += "return document.elementFromPoint(box.x + 300, box.y + 20).closest('.outcome') !== null"
    assert browser.run(top)
    assert browser.run("return document.querySelector('footer').checkVisibility()")
    assert browser.run("return document.querySelector('#Last').closest('main') !== null")


def test_files_outside_the_folder_are_not_taken_in(browser: Any, tmp_path: Path) -> None:
    (tmp_path / "secret.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'><text>hunter2</text></svg>")
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "link.svg").symlink_to(tmp_path / "secret.svg")
    (inner / "own.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg' width='7' height='7'/>")
    places = ("../secret.svg", str(tmp_path / "secret.svg"), "link.svg", "x/../../secret.svg", "own.svg")
    prose = "# Mine\n\n" + " ".join(f"![p]({place})" for place in places)
    text = document.page(new_notebook(cells=[new_markdown_cell(prose)]), "mine", inner)
    assert text.count("not in this file") == 4
    assert text.count("data:image/svg+xml;base64,") == 1
