"""Colours and matplotlib settings that every plot shares."""

from __future__ import annotations

from typing import Any

INK, MUTED, LINE, ACCENT = "#1f2933", "#5f6b7a", "#d8dee6", "#2563a8"
GOOD, BAD, VIOLET = "#00805a", "#c8450c", "#8a5bb5"  # also distinguishable for the colour-blind
STYLE: Any = {
    "font.size": 10,
    "text.color": INK,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelcolor": MUTED,
    "axes.labelsize": 9,
    "axes.edgecolor": LINE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}
