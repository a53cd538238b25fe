"""Decoding with the decoder's warnings made visible."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ocrlab.data.audit import page_image


def test_messages_of_the_decoder_are_captured(draw: Callable[..., Any], tmp_path: Path, capfd: Any) -> None:
    page = draw(1)
    page.write(tmp_path, "p", suffix=".jpg")
    file = tmp_path / "train" / "images" / "p.jpg"
    data = bytearray(file.read_bytes())
    assert page_image.decode(file)[2] == []
    file.write_bytes(data[:-2] + b"\x00" * 33 + data[-2:])  # as in a receipt that a scanner spoilt
    image, header, messages = page_image.decode(file)
    assert any("extraneous bytes" in line for line in messages)
    assert image.shape == (header.height, header.width, 3)
    print("the error stream is whole again", file=sys.stderr)
    assert "whole again" in capfd.readouterr().err
