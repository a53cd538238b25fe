"""A replay switches compilation off for the rest of its process; here the process goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _compilation_as_before() -> Iterator[None]:
    yield
    torch.compiler.set_stance("default")
