"""A GPU generation against what a torch wheel was built for, from names and versions that stand in a log.

Compute capabilities: NVIDIA's list of CUDA GPUs. What wheels hold: pytorch/RELEASE.md and torch.cuda.get_arch_list().
"""

from __future__ import annotations

import re

OF_A_CARD = r"(?i:\b(?:gpus?|cards?|nvidia)\b|显卡)[^\n]{0,40}?(?<![\d.])"  # before a bare number of a card
# Compute capability; first CUDA and first torch that serve it; first CUDA whose wheels no longer do; names.
CARDS: tuple[tuple[float, float, tuple[int, int], float, str], ...] = (
    (12.0, 12.8, (2, 7), 99.0, r"\b(?:RTX|GeForce)[ -]?(?:RTX )?(?:PRO )?50[5-9]0"),
    (12.0, 12.8, (2, 7), 99.0, r"\bRTX PRO [456]000[^\n]{0,12}Blackwell"),
    (12.0, 12.8, (2, 7), 99.0, r"\bsm_?12[01]\b|\bGB10\b|DGX Spark"),
    (10.0, 12.8, (2, 7), 99.0, r"\bG?B[23]00\b|\bsm_?10[03]a?\b"),
    (9.0, 11.8, (2, 0), 99.0, r"\b[GH]H[12]00\b|\bH[128]00\b|\bH20\b|\bsm_?90a?\b"),
    (8.9, 11.1, (1, 7), 99.0, r"\bRTX[ -]?40[5-9]0|\b4090(?:ti|d)?\b|\bL4\b|\bL40S?\b|\bRTX \d000 Ada|\bsm_?89\b"),
    (8.6, 11.0, (1, 7), 99.0, r"\b(?:RTX[ -]?)30[5-9]0|\b30[5-9]0 ?[Tt]i\b|\b3090\b|\bA10G?\b|\bA40\b"),
    (8.6, 11.0, (1, 7), 99.0, r"\bRTX A\d000|\bsm_?86\b"),
    (8.6, 11.0, (1, 7), 99.0, rf"{OF_A_CARD}30[5-9]0\b"),
    (8.0, 11.0, (1, 7), 99.0, r"\bA100\b|\bA30\b|\bA800\b|\bsm_?80\b"),
    (7.5, 10.0, (1, 0), 99.0, r"\bRTX[ -]?20[678]0|\b2080 ?[Tt]i\b|\bGTX[ -]?16[56]0|\bTesla T4\b"),
    (7.5, 10.0, (1, 0), 99.0, r"\bTITAN RTX|\bsm_?75\b"),
    (7.0, 9.0, (0, 3), 13.0, r"\bV100\b|\bTITAN V\b|\bsm_?70\b"),
    (6.0, 0.0, (0, 0), 12.8, r"\bGTX[ -]?10[5-8]0|\b1080 ?[Tt]i\b|\bP100\b|\bP40\b|\bTITAN X[Pp]?\b|\bsm_?6[01]\b"),
    (5.0, 0.0, (0, 0), 12.8, r"\bGTX[ -]?9[5-8]0|\bM40\b|\bM60\b|\bsm_?5[02]\b"),
    (3.5, 0.0, (0, 0), 12.0, r"\bK[1248]0\b|\bGTX[ -]?7[5-8]0|\bsm_?3[057]\b"),
)

TORCH = re.compile(r"(?i)\b(?:py)?torch(?:\.__version__|[ _-]?version)?[\s:=|'\"()>-]{0,6}v?(\d)\.(\d{1,2})")
WHEEL = re.compile(r"\+cu(\d{2})(\d)\b|\bcu(1[0-3]\d)\b")
CUDA = re.compile(
    r"(?i)(?:cuda used to build pytorch|torch\.version\.cuda|pytorch-cuda|cudatoolkit|nvidia/cuda)"
    r"[\s:='\"]{0,4}(\d+\.\d)"
)
NAMED = re.compile(
    r"(?i)\bcuda(?:[ _-]?(?:toolkit|version))?[ /:=-]{1,3}v?([789]|1[0-3])(?:\.(\d))?\b(?!\d)"
)  # may be the driver's
TENSORFLOW = re.compile(
    r"(?i)\btensorflow(?:[-_]gpu)?(?: version)?(?: \([^)\n]{1,40}\))?[\s:=]{1,4}v?(\d)\.(\d{1,2})\b"
)


def mismatch(text: str) -> tuple[str, int] | None:
    """Return why the GPU named in a text cannot run the torch named in it, and where it is named; None where it can."""
    torch = min(((int(match[1]), int(match[2])) for match in TORCH.finditer(text) if int(match[1]) < 4), default=None)
    named = min((float(f"{match[1]}.{match[2] or 0}") for match in NAMED.finditer(text)), default=None)
    cuda = _cuda_of_wheel(text)
    for capability, needs_cuda, needs_torch, dropped, names in CARDS:
        card = re.search(names, text)
        if card is None:
            continue
        card_text = f"{card[0].strip()} (compute capability {capability})"
        if cuda is not None and cuda < needs_cuda:
            return f"{card_text} needs CUDA {needs_cuda}, the log names CUDA {cuda}", card.start()
        if cuda is None and named is not None and named < int(needs_cuda):
            return f"{card_text} needs CUDA {needs_cuda}, the log names CUDA {named}", card.start()
        if torch is not None and torch < needs_torch:
            needed, old = (".".join(map(str, version)) for version in (needs_torch, torch))
            return f"{card_text} needs torch {needed}, the log names torch {old}", card.start()
        if cuda is not None and cuda >= dropped:
            return f"{card_text} was dropped from wheels for CUDA {dropped}, the log names CUDA {cuda}", card.start()
        return None
    return None


def _cuda_of_wheel(text: str) -> float | None:
    """Return the CUDA version of the wheel, as its name (+cu118) or a version list says it."""
    wheel, named, flow = WHEEL.search(text), CUDA.search(text), TENSORFLOW.search(text)
    if wheel:
        digits = (wheel[1] or "") + (wheel[2] or "") or wheel[3]
        return int(digits[:-1]) + int(digits[-1]) / 10
    if named:
        return float(named[1])
    # The CUDA that TensorFlow's wheels were built for; 2.4 was the first for CUDA 11.
    return 10.1 if flow and (int(flow[1]), int(flow[2])) < (2, 4) else None
