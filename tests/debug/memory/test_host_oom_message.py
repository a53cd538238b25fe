from __future__ import annotations

import numpy as np
import pytest

from ocrlab.debug.memory.host_oom_message import refused


def test_torch_numpy_and_python() -> None:
    text = "MemoryError\nDefaultCPUAllocator: can't allocate memory: you tried to allocate 21474836480 bytes. Error 12"
    [refusal] = refused(text)
    assert (refusal.request, refusal.shape) == (20 << 30, "")
    assert refused("MemoryError")[0].request is None
    assert refused("nothing of it") == []


def test_the_message_of_this_numpy() -> None:
    with pytest.raises(MemoryError) as caught:
        np.empty((1 << 30, 1 << 12))
    [refusal] = refused(f"numpy._core._exceptions._ArrayMemoryError: {caught.value}")
    assert refusal.request == 1 << 45
    assert refusal.shape == "(1073741824, 4096)"
