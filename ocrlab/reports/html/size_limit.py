"""What keeps a report small: pictures made smaller and texts cut, only as far as it takes."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import dataclass
from functools import lru_cache

DATA = re.compile(r"data:image/(png|jpeg|gif|webp|avif|bmp);base64,([A-Za-z0-9+/=]+)")
SHOWN = 40_000  # bytes; a smaller picture is left as it is
MANY = 10**9


@dataclass(frozen=True)
class Limits:
    """How much of one output is shown: characters of text and of HTML, pixels of a picture's long side, its quality."""

    text: int = MANY
    html: int = MANY
    pixels: int = MANY
    quality: int = 0  # of WebP, 0 for pictures as they are


STEPS = (
    Limits(),
    Limits(text=400_000, pixels=1600, quality=85),
    Limits(text=100_000, html=600_000, pixels=1100, quality=70),
    Limits(text=20_000, html=200_000, pixels=720, quality=55),
    Limits(text=4_000, html=40_000, pixels=400, quality=35),
    Limits(text=500, html=4_000, pixels=160, quality=20),
)


def pictures(html: str, limits: Limits) -> str:
    """Return HTML whose large pictures are within `limits`; one that cannot be read stays."""
    if not limits.quality:
        return html
    return DATA.sub(lambda match: smaller(match[0], match[2], limits.pixels, limits.quality), html)


@lru_cache(maxsize=512)
def smaller(address: str, code: str, pixels: int, quality: int) -> str:
    """Return a picture's address with at most `pixels` on the long side, or the same where that is no smaller."""
    from PIL import Image

    if len(code) < SHOWN * pixels // 1600:
        return address
    try:
        with Image.open(io.BytesIO(base64.b64decode(code))) as image:
            image.thumbnail((pixels, pixels), Image.Resampling.LANCZOS)
            data = io.BytesIO()
            image.convert("RGBA" if "A" in image.getbands() or "transparency" in image.info else "RGB").save(
                data, "webp", quality=quality, method=4
            )
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return address
    reduced = f"data:image/webp;base64,{base64.b64encode(data.getvalue()).decode('ascii')}"
    return reduced if len(reduced) < len(address) else address
