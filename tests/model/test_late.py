"""torchvision is imported without torch.compile's front end, which comes when it is wanted."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAMS = {
    "finding text needs none of it": """
        from ocrlab import Detector
        Detector.load().detect(numpy.zeros((64, 64, 3), numpy.uint8))
        assert "torch._dynamo" not in sys.modules
    """,
    "torchvision asks the real one": """
        import ocrlab.model.encoder
        assert "torch._dynamo" not in sys.modules
        answer = sys.modules["torchvision.ops.roi_align"].is_compile_supported("cpu")
        import torch._dynamo.utils as real
        assert answer is real.is_compile_supported("cpu") and hasattr(real, "__file__")
    """,
    "any other name is the real one's": """
        from ocrlab.model.late import later
        with later():
            from torch._dynamo.utils import counters
        import torch._dynamo.utils as real
        assert counters is real.counters
    """,
    "what is there already stays": """
        import torch._dynamo.utils as real
        from ocrlab.model.late import later
        with later():
            assert sys.modules["torch._dynamo.utils"] is real
        assert sys.modules["torch._dynamo.utils"] is real
    """,
    "a torchvision that fails leaves no stand-in": """
        from ocrlab.model.late import later
        try:
            with later():
                raise RuntimeError("operator torchvision::nms does not exist")
        except RuntimeError:
            assert "torch._dynamo.utils" not in sys.modules
    """,
    "compiling works as before": """
        import ocrlab.model.encoder, torch
        assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item() == 2
    """,
}


@pytest.mark.parametrize("what", PROGRAMS)
def test_in_a_process_of_its_own(what: str) -> None:
    lines = [line[8:] for line in PROGRAMS[what].strip("\n").split("\n")]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(["import sys, numpy", *lines])], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
