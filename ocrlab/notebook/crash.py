"""The sections of the crash notebook: the fault lab, a fault being caught, its verdict, the truth, what is known."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from html import escape
from pathlib import Path

from ocrlab.config.aliases import nearest
from ocrlab.debug.diagnosis import catalogue, load_input
from ocrlab.debug.diagnosis.classify import classify
from ocrlab.debug.watch.supervisor import Options
from ocrlab.errors import ConfigError
from ocrlab.fault_lab import FAULTS
from ocrlab.fault_lab.fault import Fault
from ocrlab.notebook import child_runner
from ocrlab.notebook.lab_session import Lab
from ocrlab.records import Verdict
from ocrlab.reports import verdict_view
from ocrlab.reports.html import tables
from ocrlab.reports.view import View, heading

CSS = """
.ocrlab pre.known { font: 12.5px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: pre-wrap;
  margin: 4px 0; padding: 12px 16px; border-radius: 4px; background: rgba(95, 107, 122, .1); }
"""
DECIDED = 0.8  # confidence from which a cause counts as named, where nobody planted it
ENDS = {
    "failed": "ends with an error",
    "killed": "dies of a signal",
    "hung": "hangs",
    "healthy": "is healthy, but slow",
}


@dataclass(frozen=True)
class Caught:
    """A failure that was provoked or opened: its verdict, the fault (None for an incident), its folder."""

    verdict: Verdict
    fault: Fault | None
    folder: str

    @property
    def right(self) -> bool | None:
        """True if the first cause is one of those that were planted; None where nobody planted one."""
        if self.fault is None:
            return None
        first = self.verdict.causes[0].id if self.verdict.causes else None
        return first in (self.fault.causes or [None])  # a healthy program has no cause


def faults() -> View:
    """Return the names of all faults, by family."""
    families: dict[str, list[str]] = {}
    for fault in FAULTS.values():
        families.setdefault(fault.family, []).append(fault.name)
    fail = [fault for fault in FAULTS.values() if fault.ends != "healthy"]
    gpu, healthy = sum("gpu" in fault.needs for fault in fail), len(FAULTS) - len(fail)
    finding = f"{len(fail)} programs that really fail ({gpu} need a GPU) and {healthy} healthy ones"
    return tables.table(("family", "faults"), [(family, ", ".join(some)) for family, some in families.items()], finding)


def caught(lab: Lab, fault: str, start_method: str, incident: str, silence: float) -> Caught:
    """Plant a fault and watch it, or open an incident: a log, a run folder, an executed notebook.

    Raises ConfigError for an unknown fault, or one that this machine cannot provoke, and DataError.
    """
    if incident:
        return Caught(classify(load_input.read_incident(str(Path(incident).expanduser()))), None, incident)
    if fault not in FAULTS:
        near = nearest(fault, list(FAULTS))
        raise ConfigError(f"There is no fault {fault!r}", do=f"Did you mean {near}?" if near else "See the table above")
    command = [sys.executable, "-m", "ocrlab.fault_lab", fault]
    command += ["--start-method", start_method] if start_method else []
    folder = Path(lab.config.runs) / f"{time.strftime('%Y%m%d-%H%M%S')}-{fault}"
    ended = child_runner.follow(command, Options(folder, silence=silence, on_hang="kill"))
    return Caught(ended.verdict or Verdict(None, ended.status), FAULTS[fault], str(ended.folder or folder))


def verdict(caught: Caught) -> View:
    """Return the verdict: cause, evidence, what was ruled out, the next experiment, the fix."""
    return verdict_view.view(caught.verdict, folder=caught.folder)


def compared(caught: Caught) -> View:
    """Return what was planted beside what was named."""
    named = caught.verdict.causes[0] if caught.verdict.causes else None
    named_text = f"{named.id}, {100 * named.confidence:.0f} % sure" if named else "no cause"
    if caught.fault is None:
        note = "Nobody planted this one, so only you can say whether it is right."
        return View(heading(f"Named: {named_text}", note), named_text)
    fault = caught.fault
    code = f"exit status {caught.verdict.exit_code}" if caught.verdict.exit_code is not None else ""
    ended = ", ".join(filter(None, (caught.verdict.status, caught.verdict.signal or code)))
    rows = [
        ("the program", f"{fault.name}: {fault.does}; it {ENDS[fault.ends]}"),
        ("planted", " or ".join(fault.causes) or "nothing: it is healthy"),
        ("named", named_text),
        ("it ended", ended),
    ]
    finding = "The cause that was planted is the cause that was named" if caught.right else "Another cause was planted"
    return tables.table(("", "what"), rows, finding)


def knowledge(caught: Caught, about: str = "") -> View:
    """Return what is known of a cause (default: the one that was named), or of all causes; raises ConfigError."""
    name = about or (caught.verdict.causes[0].id if caught.verdict.causes else "")
    text = catalogue.explain(name, signatures=False) if name else catalogue.listing()
    title = f"What is known of {name}" if name else "All causes"
    return View(f'<style>{CSS}</style>{heading(title)}<pre class="known">{escape(text)}</pre>', text)


def judge(lab: Lab, caught: Caught) -> None:
    """Judge what was named: against what was planted, or where nobody planted it by how sure the verdict is."""
    sure = caught.verdict.causes[0].confidence if caught.verdict.causes else 0.0
    if caught.right is None:
        lab.outcome("confidence of the cause", sure, limit=DECIDED, warn=0.4)
    else:
        lab.outcome("share of planted causes named first", float(caught.right), limit=1.0)
