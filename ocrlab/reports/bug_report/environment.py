"""The environment of a failure, in the order in which maintainers ask for it (torch.utils.collect_env)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ocrlab.hardware import host
from ocrlab.reports.bug_report.inputs import Sources
from ocrlab.reports.bug_report.markdown import Block, Code, Paragraph, Section, Table, code

LIBRARIES = ("torch", "torchvision", "lightning", "numpy", "opencv-python", "numba", "shapely", "ocrlab")
UNKNOWN = "unknown"


def section(sources: Sources) -> Section:
    """Return what is known of the machine: written down by the run, else looked up where this is the machine."""
    environment, origin = sources.environment, "As the run wrote it down when it began."
    if not environment and sources.here:
        environment = host.environment()
        origin = "The run wrote nothing down. This is the same machine, as it was found when this report was written."
        origin += " The packages are those of the Python that wrote it, which need not be the program's."
    facts = sources.incident.facts
    if not environment and not facts:
        return Section("Environment", [Paragraph("Unknown: nothing was written down, and it may have been elsewhere.")])
    origin = origin if environment else "Only what was measured at the failure is known."
    packages = environment.get("packages")
    installed: Mapping[str, Any] = packages if isinstance(packages, Mapping) else {}
    blocks: list[Block] = [Paragraph(origin), Table(["what", "value"], _rows(sources, environment, installed))]
    if installed:
        listed = "\n".join(f"{name}=={version}" for name, version in installed.items())
        blocks.append(Code(listed, "text", f"All {len(installed)} packages"))
    return Section("Environment", blocks)


def _rows(sources: Sources, environment: Mapping[str, Any], installed: Mapping[str, Any]) -> list[list[str]]:
    facts, machine = sources.incident.facts, environment.get("machine")
    chosen: Mapping[str, Any] = machine if isinstance(machine, Mapping) else {}
    libraries = [f"{name} {installed[name]}" for name in LIBRARIES if name in installed]
    pairs: list[tuple[str, object]] = [
        ("ocrlab", environment.get("revision")),
        ("libraries", ", ".join(libraries)),
        ("device", chosen.get("device") or chosen.get("accelerator")),
        ("number format", ("bf16" if chosen["bf16"] else "fp32") if "bf16" in chosen else None),
        ("GPU", _gpu(facts)),
        ("OS", environment.get("platform") or facts.get("platform")),
        ("libc", environment.get("libc")),
        ("Python", environment.get("python") or sources.process.get("python")),
        ("CPU", environment.get("cpu_name")),
        (
            "cores (physical)",
            f"{environment.get('cores')} ({environment.get('physical_cores')})" if environment.get("cores") else None,
        ),
        ("CPU flags", " ".join(map(str, environment.get("cpu_flags") or facts.get("cpu_flags") or ()))),
        ("memory", _gib(environment.get("memory_bytes") or facts.get("memory_limit_bytes"))),
        ("most memory it used", _gib(facts.get("memory_peak_bytes"))),
        ("/dev/shm", _gib(environment.get("shm_bytes") or facts.get("shm_free_bytes"))),
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
