"""The environment of a failure, in the order in which maintainers ask for it (torch.utils.collect_env)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ocrlab.hardware import host
from ocrlab.reports.bug_report.inputs import Sources
from ocrlab.reports.bug_report.markdown import Block, Code, Paragraph, Section, Table, code

LIBRARIES = ("torch", "torchvision", "lightning", "numpy", "opencv-python", "numba", "shapely", "ocrlab")
UNKNOWN = "unknown"


def section(found: Sources) -> Section:
    """Return what is known of the machine: written down by the run, else looked up where this is the machine."""
    known, whence = found.environment, "As the run wrote it down when it began."
    if not known and found.here:
        known = host.environment()
        whence = "The run wrote nothing down. This is the same machine, as it was found when this report was written."
        whence += " The packages are those of the Python that wrote it, which need not be the program's."
    facts = found.incident.facts
    if not known and not facts:
        return Section("Environment", [Paragraph("Unknown: nothing was written down, and it may have been elsewhere.")])
    whence = whence if known else "Only what was measured at the failure is known."
    packages = known.get("packages")
    installed: Mapping[str, Any] = packages if isinstance(packages, Mapping) else {}
    blocks: list[Block] = [Paragraph(whence), Table(["what", "value"], _rows(found, known, installed))]
    if installed:
        listed = "\n".join(f"{name}=={version}" for name, version in installed.items())
        blocks.append(Code(listed, "text", f"All {len(installed)} packages"))
    return Section("Environment", blocks)


def _rows(found: Sources, known: Mapping[str, Any], installed: Mapping[str, Any]) -> list[list[str]]:
    facts, machine = found.incident.facts, known.get("machine")
    chosen: Mapping[str, Any] = machine if isinstance(machine, Mapping) else {}
    libraries = [f"{name} {installed[name]}" for name in LIBRARIES if name in installed]
    pairs: list[tuple[str, object]] = [
        ("ocrlab", known.get("revision")),
        ("libraries", ", ".join(libraries)),
        ("device", chosen.get("device") or chosen.get("accelerator")),
        ("number format", ("bf16" if chosen["bf16"] else "fp32") if "bf16" in chosen else None),
        ("GPU", _gpu(facts)),
        ("OS", known.get("platform") or facts.get("platform")),
        ("libc", known.get("libc")),
        ("Python", known.get("python") or found.process.get("python")),
        ("CPU", known.get("cpu_name")),
        ("cores (physical)", f"{known.get('cores')} ({known.get('physical_cores')})" if known.get("cores") else None),
        ("CPU flags", " ".join(map(str, known.get("cpu_flags") or facts.get("cpu_flags") or ()))),
        ("memory", _gib(known.get("memory_bytes") or facts.get("memory_limit_bytes"))),
        ("most memory it used", _gib(facts.get("memory_peak_bytes"))),
        ("/dev/shm", _gib(known.get("shm_bytes") or facts.get("shm_free_bytes"))),
        ("free disk at the end", _gib(facts.get("disk_free_bytes"))),
        ("open files allowed", facts.get("fd_limit")),
    ]
    return [[name, code(value) if value else UNKNOWN] for name, value in pairs]


def _gpu(facts: Mapping[str, Any]) -> str | None:
    gpu, torch = facts.get("gpu"), facts.get("torch")
    parts = (
        [str(gpu[name]) for name in ("name", "capability", "driver") if gpu.get(name)] if isinstance(gpu, dict) else []
    )
    parts += [f"CUDA {torch['cuda']}"] if isinstance(torch, dict) and torch.get("cuda") else []
    return ", ".join(parts) or None


def _gib(value: object) -> str | None:
    if not isinstance(value, int | float) or value <= 0:
        return None
    return f"{value / 2**30:.1f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"
