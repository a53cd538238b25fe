"""What a card can do at most: dense TFLOP/s by number format, without sparsity; only cards whose figures are certain.

Sources: NVIDIA's data sheets of V100, T4, A100, A30, A40, L4, L40, L40S, H100 and RTX A4000, and its white papers of
Ampere GA102, Ada and Blackwell. Half precision is that with sums in fp32. Of GeForce cards below those in the white
papers NVIDIA publishes only the rate with sums in fp16: they have no figure.
"""

from __future__ import annotations

import re

HALF, BF16, TF32, FP32 = "float16", "bfloat16", "tf32", "float32"
ALL = (HALF, BF16, TF32, FP32)
# (the full name of the card in CUDA, its formats, their TFLOP/s at boost clock)
CARDS: tuple[tuple[str, tuple[str, ...], tuple[float, ...]], ...] = (
    (r"NVIDIA (H200|H100 80GB HBM3)", ALL, (989, 989, 494, 67)),
    (r"NVIDIA H100 NVL", ALL, (835, 835, 417, 60)),
    (r"NVIDIA H100 PCIe", ALL, (756, 756, 378, 51)),
    (r"(NVIDIA )?A100-(SXM|PCIE|PCIe|PG509).*|NVIDIA A100 80GB PCIe", ALL, (312, 312, 156, 19.5)),
    (r"NVIDIA A30", ALL, (165, 165, 82, 10.3)),
    (r"NVIDIA A40", ALL, (149.7, 149.7, 74.8, 37.4)),
    (r"NVIDIA A10", ALL, (125, 125, 62.5, 31.2)),
    (r"NVIDIA L40S", ALL, (362, 362, 183, 91.6)),
    (r"NVIDIA L40", ALL, (181, 181, 90.5, 90.5)),
    (r"NVIDIA L4", ALL, (121, 121, 60, 30.3)),
    (r"(NVIDIA |Tesla )T4", (HALF, FP32), (65, 8.1)),
    (r"(NVIDIA |Tesla )V100-SXM2-\d+GB", (HALF, FP32), (125, 15.7)),
    (r"NVIDIA RTX 6000 Ada Generation", ALL, (364, 364, 182, 91.1)),
    (r"NVIDIA RTX A6000", ALL, (154.8, 154.8, 77.4, 38.7)),
    (r"NVIDIA RTX A4000", ALL, (76.7, 76.7, 38.3, 19.2)),
    (r"NVIDIA GeForce RTX 5090", ALL, (209.5, 209.5, 104.8, 104.8)),
    (r"NVIDIA GeForce RTX 4090", ALL, (165.2, 165.2, 82.6, 82.6)),
    (r"NVIDIA GeForce RTX 4080", ALL, (97.5, 97.5, 48.7, 48.7)),
    (r"NVIDIA GeForce RTX 3090", ALL, (71, 71, 35.6, 35.6)),
    (r"NVIDIA GeForce RTX 3070", ALL, (40.6, 40.6, 20.3, 20.3)),
)


def peak(name: str, dtype: str, tf32: bool = False) -> float | None:
    """Return the most FLOP/s of a whole card by its CUDA name for a number format; None where that is not certain.

    A laptop's card of the same name is slower, and so is a slice of one (MIG): neither has a figure.
    """
    for pattern, formats, most in CARDS:
        if re.fullmatch(pattern, name) and "MIG" not in name:
            rates = dict(zip(formats, most, strict=True))
            rate = rates.get(TF32, rates[FP32]) if dtype == FP32 and tf32 else rates.get(dtype)
            return None if rate is None else rate * 1e12
    return None
