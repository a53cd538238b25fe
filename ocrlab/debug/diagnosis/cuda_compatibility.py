"""A GPU generation against what a torch wheel was built for, from names and versions that stand in a log.

Compute capabilities: NVIDIA's list of CUDA GPUs. What wheels hold: pytorch/RELEASE.md and torch.cuda.get_arch_list().
"""

from __future__ import annotations

import re
from dataclasses import dataclass

OF_A_CARD = r"(?i:\b(?:gpus?|cards?|nvidia)\b|显卡)[^\n]{0,40}?(?<![\d.])"  # before a bare number of a card
CARDS = (
    (re.compile(r"\b(?:RTX|GeForce)[ -]?(?:RTX )?(?:PRO )?50[5-9]0|\bRTX PRO [456]000[^\n]{0,12}Blackwell"), 12.0),
    (re.compile(r"\bsm_?12[01]\b|\bGB10\b|DGX Spark"), 12.0),
    (re.compile(r"\bG?B[23]00\b|\bsm_?10[03]a?\b"), 10.0),
    (re.compile(r"\b[GH]H[12]00\b|\bH[128]00\b|\bH20\b|\bsm_?90a?\b"), 9.0),
    (re.compile(r"\bRTX[ -]?40[5-9]0|\b4090(?:ti|d)?\b|\bL4\b|\bL40S?\b|\bRTX \d000 Ada|\bsm_?89\b"), 8.9),
    (re.compile(r"\b(?:RTX[ -]?)30[5-9]0|\b30[5-9]0 ?[Tt]i\b|\b3090\b|\bA10G?\b|\bA40\b|\bRTX A\d000|\bsm_?86\b"), 8.6),
    (re.compile(rf"{OF_A_CARD}30[5-9]0\b"), 8.6),
    (re.compile(r"\bA100\b|\bA30\b|\bA800\b|\bsm_?80\b"), 8.0),
    (re.compile(r"\bRTX[ -]?20[678]0|\b2080 ?[Tt]i\b|\bGTX[ -]?16[56]0|\bTesla T4\b|\bTITAN RTX|\bsm_?75\b"), 7.5),
    (re.compile(r"\bV100\b|\bTITAN V\b|\bsm_?70\b"), 7.0),
    (re.compile(r"\bGTX[ -]?10[5-8]0|\b1080 ?[Tt]i\b|\bP100\b|\bP40\b|\bTITAN X[Pp]?\b|\bsm_?6[01]\b"), 6.0),
    (re.compile(r"\bGTX[ -]?9[5-8]0|\bM40\b|\bM60\b|\bsm_?5[02]\b"), 5.0),
    (re.compile(r"\bK[1248]0\b|\bGTX[ -]?7[5-8]0|\bsm_?3[057]\b"), 3.5),
)
NEEDS_CUDA = ((12.0, 12.8), (10.0, 12.8), (9.0, 11.8), (8.9, 11.1), (8.6, 11.0), (8.0, 11.0), (7.5, 10.0), (7.0, 9.0))
NEEDS_TORCH = ((12.0, 2.07), (10.0, 2.07), (9.0, 2.00), (8.0, 1.07), (7.5, 1.00), (7.0, 0.03))
# The first wheels without a generation: by their CUDA, and by torch where CUDA does not say.
DROPPED_BY_CUDA = ((3.5, 12.0), (5.0, 12.8), (6.0, 12.8), (7.0, 13.0))
DROPPED_BY_TORCH = ((3.5, 1.03),)

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


@dataclass(frozen=True)
class Mismatch:
    """A card that the wheel cannot serve: the reason in words, and where the card is named."""

    why: str
    offset: int


def mismatch(text: str) -> Mismatch | None:
    """Return why the GPU named in a text cannot run the torch named in it; None where they fit or one is not named."""
    torch, cuda, named = _torch(text), _cuda(text), _named(text)
    if torch is None and cuda is None and named is None:
        return None
    for pattern, capability in CARDS:
        card = pattern.search(text)
        if card:
            why = _against(capability, torch, cuda, named)
            return Mismatch(f"{card[0].strip()} (compute capability {capability}) {why}", card.start()) if why else None
    return None


def _against(capability: float, torch: float | None, cuda: float | None, named: float | None) -> str | None:
    needs_cuda = next((need for least, need in NEEDS_CUDA if capability >= least), 0.0)
    needs_torch = next((need for least, need in NEEDS_TORCH if capability >= least), 0.0)
    gone_cuda = next((limit for most, limit in DROPPED_BY_CUDA if capability <= most), 99.0)
    gone_torch = next((limit for most, limit in DROPPED_BY_TORCH if capability <= most), 99.0)
    if cuda is not None and cuda < needs_cuda:
        return f"needs CUDA {needs_cuda}, the log names CUDA {cuda}"
    if cuda is None and named is not None and named < int(needs_cuda):
        return f"needs CUDA {needs_cuda}, the log names CUDA {named}"
    if torch is not None and torch < needs_torch:
        return f"needs torch {_version(needs_torch)}, the log names torch {_version(torch)}"
    if cuda is not None and cuda >= gone_cuda:
        return f"was dropped from wheels for CUDA {gone_cuda}, the log names CUDA {cuda}"
    if torch is not None and torch >= gone_torch:
        return f"was dropped from wheels of torch {_version(gone_torch)}"
    return None


def _torch(text: str) -> float | None:
    """Return the lowest torch version that a text names as major + minor / 100."""
    versions = [int(match[1]) + int(match[2]) / 100 for match in TORCH.finditer(text) if int(match[1]) < 4]
    return min(versions, default=None)


def _named(text: str) -> float | None:
    """Return the lowest CUDA version that a text names at all: the toolkit's or the driver's."""
    return min((float(f"{match[1]}.{match[2] or 0}") for match in NAMED.finditer(text)), default=None)


def _cuda(text: str) -> float | None:
    """Return the CUDA version of the wheel, as its name (+cu118) or a version list says it."""
    for match in WHEEL.finditer(text):
        digits = (match[1] or "") + (match[2] or "") or match[3]
        return int(digits[:-1]) + int(digits[-1]) / 10
    named = CUDA.search(text)
    if named:
        return float(named[1])
    flow = TENSORFLOW.search(text)  # the CUDA that its wheels were built for; 2.4 was the first for CUDA 11
    return (10.1 if (int(flow[1]), int(flow[2])) < (2, 4) else None) if flow else None


def _version(value: float) -> str:
    return f"{int(value)}.{round(value % 1 * 100)}"
