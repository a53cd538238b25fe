"""What a card can do at most: dense TFLOP/s by number format, from the makers' data sheets, without sparsity."""

from __future__ import annotations

import re

# (name in CUDA's device name, half precision on tensor cores with fp32 sums, TF32, FP32); the first match counts.
# NVIDIA's data sheets and architecture papers of Volta, Turing, Ampere, Ada, Hopper, Blackwell; boost clock.
CARDS: tuple[tuple[str, float, float, float], ...] = (
    (r"B200", 2250, 1100, 75),
    (r"H200|GH200|H100.*(SXM|HBM3|80GB HBM3)", 989, 495, 67),
    (r"H100 NVL", 835, 418, 60),
    (r"H100", 756, 378, 51),
    (r"H800", 989, 495, 67),
    (r"H20\b", 148, 74, 44),
    (r"A100|A800", 312, 156, 19.5),
    (r"A30\b", 165, 82, 10.3),
    (r"A40\b", 150, 75, 37.4),
    (r"A10G", 70, 35, 31.5),
    (r"A10\b", 125, 62.5, 31.2),
    (r"L40S", 362, 183, 91.6),
    (r"L40\b", 181, 90.5, 90.5),
    (r"L4\b", 121, 60, 30.3),
    (r"T4\b", 65, 0, 8.1),
    (r"V100", 125, 0, 15.7),
    (r"P100", 21.2, 0, 10.6),
    (r"RTX 6000 Ada", 364, 182, 91.1),
    (r"RTX A6000", 155, 77, 38.7),
    (r"RTX A5000", 111, 55, 27.8),
    (r"RTX A4000", 76, 38, 19.2),
    (r"RTX 5090", 210, 105, 105),
    (r"RTX 5080", 113, 56, 56),
    (r"RTX 4090", 165, 83, 82.6),
    (r"RTX 4080", 97, 49, 48.7),
    (r"RTX 4070 Ti", 80, 40, 40.1),
    (r"RTX 4070", 58, 29, 29.1),
    (r"RTX 4060 Ti", 44, 22, 22.1),
    (r"RTX 4060", 30, 15, 15.1),
    (r"RTX 3090 Ti", 80, 40, 40),
    (r"RTX 3090", 71, 35.6, 35.6),
    (r"RTX 3080 Ti", 68, 34, 34.1),
    (r"RTX 3080", 59.5, 29.8, 29.8),
    (r"RTX 3070", 40.6, 20.3, 20.3),
    (r"RTX 3060 Ti", 32.4, 16.2, 16.2),
    (r"RTX 3060", 25.5, 12.7, 12.7),
    (r"RTX 2080 Ti", 53.8, 0, 13.4),
)


def peak(name: str, dtype: str, tf32: bool = False) -> float | None:
    """Return the most FLOP/s of a card by its CUDA name for a number format; None where nobody wrote it down here."""
    for pattern, half, tensor, single in CARDS:
        if re.search(pattern, name):
            if dtype in ("bfloat16", "float16"):
                return half * 1e12
            if dtype == "float32":
                return (tensor if tf32 and tensor else single) * 1e12
            return None
    return None
