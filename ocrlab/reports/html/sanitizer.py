"""Strangers' HTML and CSS without what runs, fetches, or reaches out of its place; nh3 and tinycss2 parse it.

What is left has its styles taken out, to be put into the head of a page for this piece alone (`Piece.css`).
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
GONE = "data:,"  # what takes the place of an address: nothing is asked of anybody for it
FETCHING = {"url", "src", "image", "image-set", "-webkit-image-set", "cross-fade", "-webkit-cross-fade", "element"}
FETCHING |= {"expression", "paint"}
RULES = {"media", "supports", "container", "layer"}  # at-rules that hold rules

TAGS = """a abbr address article aside b bdi bdo blockquote br caption center cite code col colgroup dd del details dfn
div dl dt em figcaption figure font footer h1 h2 h3 h4 h5 h6 header hr i img ins kbd li main mark nav ol p picture pre q
rp rt ruby s samp section small span strike strong sub summary sup table tbody td tfoot th thead time tr tt u ul var wbr
svg g path rect circle ellipse line polyline polygon text tspan title desc defs clipPath mask pattern linearGradient
radialGradient stop marker symbol use image math mi mn mo ms mtext mspace mrow mfrac msqrt mroot msub msup msubsup
munder mover munderover mmultiscripts mprescripts mtable mtr mtd mpadded mphantom menclose mstyle merror""".split()
ATTRIBUTES = """class style id title lang dir role align valign width height alt src href colspan rowspan scope headers
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
WITH_WORDS = ("script", "style", "title", "textarea", "noscript", "iframe", "object", "template", "noembed", "select")


@dataclass(frozen=True)
class Piece:
    """A piece of HTML that is safe to show, and the style sheets that it brought; `ran` is True if it had scripts."""

    html: str
    css: tuple[str, ...] = ()
    ran: bool = False


def piece(html: str, alt: str = "", picture: Callable[[str], str] | None = None) -> Piece:
    """Return HTML without what runs or fetches; `alt` describes pictures that nothing describes.

    `picture` is given the address of each picture and returns one that may stand in its place (data: or nothing).
    """
    html_only, style_sheets = _split_styles(html)
    sheets = tuple(filter(None, (sheet(unescape_comment(match)) for match in style_sheets)))
    clean = _nh3(html_only)
    clean = IMAGE.sub(lambda match: _image(match, alt, picture), clean)
    clean = DRAWING.sub(lambda match: _describe_drawing(match, alt), clean)
    return Piece(flat(clean), sheets, re.search(r"<script\b", html, re.IGNORECASE) is not None)


def text(html: str, picture: Callable[[str], str] | None = None) -> str:
    """Return the HTML of somebody's prose without what runs, fetches or styles a page; headings stay headings."""
    clean = IMAGE.sub(lambda match: _image(match, "", picture), _nh3(_split_styles(html)[0]))
    return DRAWING.sub(lambda match: _describe_drawing(match, "drawing"), clean)


def _split_styles(html: str) -> tuple[str, list[str]]:
    """Return HTML without its style sheets, and these; none is looked for behind the last end: time is linear."""
    end = max((match.end() for match in STYLED.finditer(html)), default=0)
    return STYLE.sub("", html[:end]) + html[end:], STYLE.findall(html[:end])


def _nh3(html: str) -> str:
    import nh3

    clean: str = nh3.clean(
        html,
        tags=set(TAGS),
        clean_content_tags=set(WITH_WORDS) - set(TAGS),
        attributes={"*": set(ATTRIBUTES)},
        generic_attribute_prefixes={"aria-"},
        attribute_filter=_attribute,
        url_schemes={"http", "https", "mailto", "data"},
        strip_comments=True,
        link_rel="noopener noreferrer",
    )
    return clean


def _attribute(tag: str, name: str, value: str) -> str | None:
    """Return what an attribute may be, None where it goes."""
    if name == "style":
        return declarations(value) or None
    if name == "src":
        return value if PICTURE.match(value.strip()) else GONE + value
    if name in ("href", "xlink:href"):
        address = re.sub(r"[\x00-\x20]", "", value)
        if tag == "a":
            return value if LINK.match(address) and not address.startswith("//") else None
        return value if address.startswith("#") or (tag == "image" and PICTURE.match(address)) else None
    if (
        "(" in value
        and name not in ("alt", "title", "d", "transform", "value", "role")
        and not name.startswith("aria-")
    ):
        lowered = value.lower()
        if ("url" in lowered or "\\" in value or "image" in lowered) and not INSIDE.match(value):
            return None
    return value


def flat(html: str) -> str:
    """Return safe HTML whose headings are paragraphs that look like them: an output is no section of a page."""
    return HEADING.sub(lambda match: "</p" if match[1] else f'<p data-h="{match[2]}"', html)


def _image(tag: re.Match[str], alt: str, picture: Callable[[str], str] | None) -> str:
    """Return a picture with words for it; where it is not in this file, say so and link it."""
    attributes = {name: unescape(value) for name, value in ATTRIBUTE.findall(tag[1])}
    address = attributes.pop("src", "")
    if address.startswith(GONE):
        address = address.removeprefix(GONE)
        put = picture(address) if picture else ""
    else:
        put = address
    words = attributes.get("alt") or attributes.get("title") or alt
    if not whole(put):
        named = escape(address if len(address) < 300 else address[:300] + "…")
        web_address = re.match(r"https?://", address, re.IGNORECASE)
        where = f'<a href="{named}" rel="noopener noreferrer">{named}</a>' if web_address else f"<code>{named}</code>"
        return f'<span class="gone">{escape(words or "picture")}: not in this file, {where}</span>'
    attributes["alt"] = words or "picture without a description"
    rest = "".join(f' {name}="{escape(value)}"' for name, value in attributes.items())
    return f'<img src="{put}"{rest}>'


@functools.lru_cache(maxsize=512)
def whole(address: str) -> bool:
    """Tell whether an address holds a picture itself, in base64 that can be read."""
    if not PICTURE.match(address):
        return False
    about, _, data = address.partition(",")
    with contextlib.suppress(ValueError):
        return not about.endswith(";base64") or bool(base64.b64decode(data, validate=True))
    return False


def _describe_drawing(tag: re.Match[str], alt: str) -> str:
    """Return the tag of a drawing that says of itself what it is; one that is hidden from readers stays so."""
    attributes = dict(ATTRIBUTE.findall(tag[1]))
    if attributes.get("aria-hidden") == "true":
        return tag[0]
    words = (
        f' aria-label="{escape(alt or "drawing")}"' if not ({"aria-label", "aria-labelledby"} & set(attributes)) else ""
    )
    role = "" if "role" in attributes else ' role="img"'
    return f"{tag[0][:-1]}{role}{words}>"


def unescape_comment(css: str) -> str:
    """Return CSS without the marks of an HTML comment, in which old pages put it."""
    return re.sub(r"<!--|-->", " ", css)


@functools.lru_cache(maxsize=256)
def sheet(css: str) -> str:
    """Return a style sheet without what fetches, every rule closed, so that it can stand inside another rule."""
    import tinycss2

    return _escape_css(_rules(tinycss2.parse_stylesheet(css, skip_comments=True, skip_whitespace=True)))


@functools.lru_cache(maxsize=4096)
def declarations(css: str) -> str:
    """Return the declarations of a style attribute without those that fetch."""
    import tinycss2

    nodes = tinycss2.parse_blocks_contents(css, skip_comments=True, skip_whitespace=True)
    return _escape_css(
        ";".join(_declaration(node) for node in nodes if node.type == "declaration" and not _fetches(node.value))
    )


def _rules(rules: Iterable[Any]) -> str:
    import tinycss2

    parts = []
    for rule in rules:
        if rule.type == "qualified-rule" and not _fetches(rule.prelude) and not _escapes_scope(rule.prelude):
            inside = tinycss2.parse_blocks_contents(rule.content, skip_comments=True, skip_whitespace=True)
            safe = [_declaration(node) for node in inside if node.type == "declaration" and not _fetches(node.value)]
            parts.append(f"{tinycss2.serialize(rule.prelude).strip()}{{{';'.join(safe)}}}")
        elif rule.type == "at-rule" and rule.lower_at_keyword in RULES and rule.content is not None:
            inner = tinycss2.parse_rule_list(rule.content, skip_comments=True, skip_whitespace=True)
            parts.append(f"@{rule.lower_at_keyword} {tinycss2.serialize(rule.prelude).strip()}{{{_rules(inner)}}}")
    return "\n".join(parts)


def _escapes_scope(prelude: Iterable[Any]) -> bool:
    """Tell whether a selector, once it stands inside another rule, means what is outside: `header:not(&)`, `~ *`."""
    first = True
    for token in prelude:
        if token.type == "literal" and (token.value == "&" or (first and token.value in ("+", "~", ">", "||"))):
            return True
        inside = getattr(token, "arguments", None) or getattr(token, "content", None) or ()
        if token.type in ("function", "[] block", "() block", "{} block") and _within(inside):
            return True
        first = token.type == "literal" and token.value == "," if token.type != "whitespace" else first
    return False


def _within(tokens: Iterable[Any]) -> bool:
    """Tell whether `&` stands anywhere in the arguments of a selector."""
    for token in tokens:
        inside = getattr(token, "arguments", None) or getattr(token, "content", None) or ()
        if (token.type == "literal" and token.value == "&") or (not isinstance(inside, str) and _within(inside)):
            return True
    return False


def _declaration(declaration: Any) -> str:
    import tinycss2

    value = tinycss2.serialize(declaration.value).strip()
    return f"{declaration.name}:{value}{'!important' if declaration.important else ''}"


def _fetches(tokens: Iterable[Any]) -> bool:
    """Tell whether a value asks for anything: an address that is no picture in itself, or what nobody can judge."""
    for token in tokens:
        if token.type == "url" and not (PICTURE.match(token.value) or token.value.startswith("#")):
            return True
        if token.type == "error":
            return True
        if token.type == "function":
            words = [inner.value for inner in token.arguments if inner.type == "string"]
            inside = words and all(PICTURE.match(word) or word.startswith("#") for word in words)
            if token.lower_name in FETCHING and not (token.lower_name == "url" and inside):
                return True
            if _fetches(token.arguments):
                return True
        if token.type in ("{} block", "[] block", "() block") and _fetches(token.content):
            return True
    return False


def _escape_css(css: str) -> str:
    """Return CSS that cannot end the element that it stands in."""
    return css.replace("<", "\\3c ")
