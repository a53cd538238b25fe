"""Addresses of private networks: IPv4, IPv6, of network cards; not the versions that look like them.

Ranges: RFC 1918 (10, 172.16-31, 192.168), RFC 3927 (169.254), RFC 6598 (100.64-127), RFC 4193 (fc00::/7), RFC 4291
(fe80::/10). What everybody has (127.0.0.1, 0.0.0.0, ::1) names nobody and stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ocrlab.redaction.text_spans import Span, begins_word

ADDRESS = "(address)"
PART = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
HOST = {
    "10.": rf"10(?:\.{PART}){{3}}",
    "192.168.": rf"192\.168(?:\.{PART}){{2}}",
    "172.": rf"172\.(?:1[6-9]|2\d|3[01])(?:\.{PART}){{2}}",
    "169.254.": rf"169\.254(?:\.{PART}){{2}}",
    "100.": rf"100\.(?:6[4-9]|[7-9]\d|1[01]\d|12[0-7])(?:\.{PART}){{2}}",
    "ip-1": rf"ip-(?:10-{PART}|192-168|172-(?:1[6-9]|2\d|3[01]))(?:-{PART}){{2}}",  # names of machines in a cloud
}
IPV4 = tuple((start, re.compile(rf"{pattern}(?![\w-]|\.\d)")) for start, pattern in HOST.items())
IPV6 = re.compile(
    r"[fF](?:[cdCD][0-9a-fA-F]{2}|[eE][89abAB][0-9a-fA-F])(?::[0-9a-fA-F]{0,4}){2,7}(?:%\w{1,15})?(?![\w:])"
)
CARD = re.compile(r"[0-9a-fA-F]{2}(?:(?::[0-9a-fA-F]{2}){5}|(?:-[0-9a-fA-F]{2}){5})(?![\w:-])")
NOBODY = ("00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff", "00-00-00-00-00-00", "ff-ff-ff-ff-ff-ff")

# curand 10.3.5.147, TensorRT 10.0.1.6 and cublas 10.2.2.89 are versions; what stands before them says so.
VERSION = re.compile(
    r"(?:[=<>~!]=\s?|\.so\.|[A-Za-z0-9]-|_|\bv|\b(?:version|release|build|driver|toolkit|ver|rev|tag)s?\b[\"')\]]?[:=]?\s{0,4}[\"']?"
    r"|\b(?:cuda|cudnn|cublas|cufft|curand|cusparse|cusolver|cupti|cutlass|nvjitlink|nvrtc|nccl|nvtx|nvidia|lib|tensorrt|trt"
    r"|onnx|[\w-]{1,30}-cu\d\d)[\w.-]{0,40}[\"')\]]?[,:=]?\s{1,40}[\"'(]?v?)$",
    re.IGNORECASE,
)


def spans(text: str) -> Iterator[Span]:
    """Yield private addresses; the port after one stays."""
    for start, pattern in IPV4:
        if start in text:
            for match in pattern.finditer(text):
                if begins_word(text, match.start(), "._") and not _version(text, match.start()):
                    yield match.start(), match.end(), ADDRESS
    if ":" in text:
        for match in IPV6.finditer(text):
            if begins_word(text, match.start(), ":.-_") and match.group().count("::") <= 1:
                yield match.start(), match.end(), ADDRESS
    for match in CARD.finditer(text):
        card = match.group().lower()
        is_card = ":" in card or any(letter in "abcdef" for letter in card)  # 26-11-22-09-57-31 is a time
        if is_card and card not in NOBODY and begins_word(text, match.start(), ":.-_"):
            yield match.start(), match.end(), ADDRESS


def _version(text: str, at: int) -> bool:
    line = text.rfind("\n", 0, at) + 1
    return VERSION.search(text[max(line, at - 90) : at]) is not None
