"""Strangers' HTML and CSS without what runs, fetches, or reaches out of its place; nh3 and tinycss2 parse it.

The styles of what is left are taken out, to be put into the head of a page for this piece alone (`Piece.css`).
"""

from __future__ import annotations

import base64
import contextlib
import functools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from html import escape, unescape
from typing import Any

STYLE = re.compile(r"<style\b[^<>]*>(.*?)</style[^<>]*>", re.IGNORECASE | re.DOTALL)
STYLED = re.compile(r"</style[^<>]*>", re.IGNORECASE)
IMAGE = re.compile(r"<img((?:\s[\w:-]+=\"[^\"]*\")*)\s*/?>")
ATTRIBUTE = re.compile(r"\s([\w:-]+)=\"([^\"]*)\"")
HEADING = re.compile(r"<(/?)h([1-6])(?=[\s>])")
DRAWING = re.compile(r"<svg(?=[\s>])((?:\s[\w:-]+=\"[^\"]*\")*)>")
PICTURE = re.compile(r"data:image/(?:png|jpe?g|gif|webp|avif|bmp|svg\+xml)[;,]", re.IGNORECASE)
LINK = re.compile(r"(?:https?:|mailto:)|#|(?![\w+.-]*:|//|\\)", re.IGNORECASE)
INSIDE = re.compile(r"""\s*url\(\s*["']?#[\w:.-]+["']?\s*\)[\w\s#().,%-]*$""", re.IGNORECASE)
GONE = "data:,"  # takes the place of an address: nothing is asked of anybody for it
FETCHING = frozenset(
    "url src image image-set -webkit-image-set cross-fade -webkit-cross-fade element expression paint".split()
)
RULES = {"media", "supports", "container", "layer"}  # at-rules that hold rules
ESCAPES_SCOPE = re.compile(r"&|(?:^|,)\s*[+~>|]")  # a selector that means what is outside of its rule, once nested
BLOCKS = ("{} block", "[] block", "() block")

TAGS = frozenset(
    """a abbr address article aside b bdi bdo blockquote br caption center cite code col colgroup dd del details dfn
div dl dt em figcaption figure font footer h1 h2 h3 h4 h5 h6 header hr i img ins kbd li main mark nav ol p picture pre q
rp rt ruby s samp section small span strike strong sub summary sup table tbody td tfoot th thead time tr tt u ul var wbr
svg g path rect circle ellipse line polyline polygon text tspan title desc defs clipPath mask pattern linearGradient
radialGradient stop marker symbol use image math mi mn mo ms mtext mspace mrow mfrac msqrt mroot msub msup msubsup
munder mover munderover mmultiscripts mprescripts mtable mtr mtd mpadded mphantom menclose mstyle merror""".split()
)
ATTRIBUTES = frozenset(
    """class style id title lang dir role align valign width height alt src href colspan rowspan scope headers
open datetime start type reversed value cite color bgcolor border cellpadding cellspacing tabindex
x y x1 y1 x2 y2 cx cy r rx ry fx fy d dx dy points viewBox preserveAspectRatio transform rotate fill fill-opacity
fill-rule stroke stroke-width stroke-opacity stroke-dasharray stroke-dashoffset stroke-linecap stroke-linejoin
stroke-miterlimit opacity color clip-path clip-rule mask marker-start marker-mid marker-end markerWidth markerHeight
markerUnits refX refY orient offset stop-color stop-opacity gradientUnits gradientTransform spreadMethod patternUnits
patternTransform patternContentUnits clipPathUnits maskUnits text-anchor dominant-baseline font-size font-family
font-weight font-style letter-spacing vector-effect visibility display overflow xlink:href pathLength textLength
lengthAdjust shape-rendering mathvariant stretchy fence form lspace rspace columnalign rowalign rowspacing columnspacing
displaystyle scriptlevel linethickness accent accentunder minsize maxsize symmetric separator movablelimits depth
voffset notation xmlns""".split()
)
TEXTS = frozenset("alt title d transform value role".split())  # attributes in which `url(` fetches nothing
WITH_CONTENT = frozenset("script style textarea noscript iframe object template noembed select".split())


@dataclass(frozen=True)
class Piece:
    """A piece of HTML that is safe to show, and the style sheets that it brought; `ran` is True if it had scripts."""

    html: str
    css: tuple[str, ...] = ()
    ran: bool = False


def piece(html: str, alt: str = "") -> Piece:
    """Return HTML of an output without what runs or fetches; `alt` describes pictures that nothing describes."""
    rest, style_sheets = _split_styles(html)
    sheets = tuple(filter(None, (sheet(re.sub(r"<!--|-->", " ", css)) for css in style_sheets)))
    return Piece(flat(_described(rest, alt, alt)), sheets, re.search(r"<script\b", html, re.IGNORECASE) is not None)


def text(html: str, picture: Callable[[str], str] | None = None) -> str:
    """Return the HTML of somebody's prose without what runs, fetches or styles a page; headings stay headings.

    `picture` is given the address of each picture and returns one that may stand in its place (data: or nothing).
    """
    return _described(_split_styles(html)[0], "", "drawing", picture)


def flat(html: str) -> str:
    """Return safe HTML whose headings are paragraphs that look like them: an output is not a section of a page."""
    return HEADING.sub(lambda match: "</p" if match[1] else f'<p data-h="{match[2]}"', html)


def _split_styles(html: str) -> tuple[str, list[str]]:
    """Return HTML without its style sheets, and these; after the last end none is looked for: time is linear."""
    end = max((match.end() for match in STYLED.finditer(html)), default=0)
    return STYLE.sub("", html[:end]) + html[end:], STYLE.findall(html[:end])


def _described(html: str, alt: str, drawing: str, picture: Callable[[str], str] | None = None) -> str:
    """Return clean HTML in which each picture has a description."""
    import nh3

    clean: str = nh3.clean(
        html,
        tags=set(TAGS),
        clean_content_tags=set(WITH_CONTENT),
        attributes={"*": set(ATTRIBUTES)},
        generic_attribute_prefixes={"aria-"},
        attribute_filter=_attribute,
        url_schemes={"http", "https", "mailto", "data"},
        strip_comments=True,
        link_rel="noopener noreferrer",
    )
    clean = IMAGE.sub(lambda match: _image(match, alt, picture), clean)
    return DRAWING.sub(lambda match: _drawing(match, drawing), clean)


def _attribute(tag: str, name: str, value: str) -> str | None:
    """Return what an attribute may be, None if it has to go."""
    if name == "style":
        return _cached_declarations(value) or None
    if name == "src":
        return value if PICTURE.match(value.strip()) else GONE + value
    if name in ("href", "xlink:href"):
        address = re.sub(r"[\x00-\x20]", "", value)
        if tag == "a":
            return value if LINK.match(address) and not address.startswith("//") else None
        return value if address.startswith("#") or (tag == "image" and PICTURE.match(address)) else None
    if "(" in value and name not in TEXTS and not name.startswith("aria-") and not INSIDE.match(value):
        lowered = value.lower()
        return None if "url" in lowered or "image" in lowered or "\\" in value else value
    return value


def _image(tag: re.Match[str], alt: str, picture: Callable[[str], str] | None) -> str:
    """Return a picture with a description; if it is not in this file, say so and link it."""
    attributes = {name: unescape(value) for name, value in ATTRIBUTE.findall(tag[1])}
    address = attributes.pop("src", "")
    data = address
    if address.startswith(GONE):
        address = address.removeprefix(GONE)
        data = picture(address) if picture else ""
    words = attributes.get("alt") or attributes.get("title") or alt
    if not whole(data):
        named = escape(address if len(address) < 300 else address[:300] + "…")
        on_the_web = re.match(r"https?://", address, re.IGNORECASE)
        where = f'<a href="{named}" rel="noopener noreferrer">{named}</a>' if on_the_web else f"<code>{named}</code>"
        return f'<span class="gone">{escape(words or "picture")}: not in this file, {where}</span>'
    attributes["alt"] = words or "picture without a description"
    rest = "".join(f' {name}="{escape(value)}"' for name, value in attributes.items())
    return f'<img src="{data}"{rest}>'


@functools.lru_cache(maxsize=512)
def whole(address: str) -> bool:
    """Return whether an address holds a picture itself, in base64 that can be read."""
    if not PICTURE.match(address):
        return False
    about, _, data = address.partition(",")
    with contextlib.suppress(ValueError):
        return not about.endswith(";base64") or bool(base64.b64decode(data, validate=True))
    return False


def _drawing(tag: re.Match[str], alt: str) -> str:
    """Return the tag of a drawing with a description; one that is hidden from readers stays hidden."""
    attributes = dict(ATTRIBUTE.findall(tag[1]))
    if attributes.get("aria-hidden") == "true":
        return tag[0]
    role = "" if "role" in attributes else ' role="img"'
    described = "aria-label" in attributes or "aria-labelledby" in attributes
    label = "" if described else f' aria-label="{escape(alt or "drawing")}"'
    return f"{tag[0][:-1]}{role}{label}>"


@functools.lru_cache(maxsize=256)
def sheet(css: str) -> str:
    """Return a style sheet without what fetches, every rule closed, so that it can stand inside another rule."""
    import tinycss2

    return _escape_css(_rules(tinycss2.parse_stylesheet(css, skip_comments=True, skip_whitespace=True)))


def declarations(css: str | Iterable[Any]) -> str:
    """Return the declarations of a style attribute, or of a rule, without those that fetch."""
    import tinycss2

    parts = []
    for node in tinycss2.parse_blocks_contents(css, skip_comments=True, skip_whitespace=True):
        if node.type == "declaration" and not _fetches(node.value):
            value = tinycss2.serialize(node.value).strip()
            parts.append(f"{node.name}:{value}{'!important' if node.important else ''}")
    return _escape_css(";".join(parts))


_cached_declarations = functools.lru_cache(maxsize=4096)(declarations)


def _rules(rules: Iterable[Any]) -> str:
    import tinycss2

    parts = []
    for rule in rules:
        prelude = tinycss2.serialize(getattr(rule, "prelude", ())).strip()
        if rule.type == "qualified-rule" and not _fetches(rule.prelude) and not ESCAPES_SCOPE.search(prelude):
            parts.append(f"{prelude}{{{declarations(rule.content)}}}")
        elif rule.type == "at-rule" and rule.lower_at_keyword in RULES and rule.content is not None:
            inner = tinycss2.parse_rule_list(rule.content, skip_comments=True, skip_whitespace=True)
            parts.append(f"@{rule.lower_at_keyword} {prelude}{{{_rules(inner)}}}")
    return "\n".join(parts)


def _fetches(tokens: Iterable[Any]) -> bool:
    """Return whether a value requests anything: an address that is not an embedded picture, or an unclear value."""
    for token in tokens:
        if token.type == "error" or (token.type == "url" and not _is_inside(token.value)):
            return True
        inner = getattr(token, "arguments", ()) or (token.content if token.type in BLOCKS else ())
        if token.type == "function" and token.lower_name in FETCHING:
            addresses = [part.value for part in inner if part.type == "string"]
            if token.lower_name != "url" or not addresses or not all(map(_is_inside, addresses)):
                return True
        if _fetches(inner):
            return True
    return False


def _is_inside(address: str) -> bool:
    return bool(PICTURE.match(address)) or address.startswith("#")


def _escape_css(css: str) -> str:
    """Return CSS that cannot end the element that it stands in."""
    return css.replace("<", "\\3c ")
