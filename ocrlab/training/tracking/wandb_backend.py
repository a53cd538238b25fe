"""wandb's side of tracking, in the tracker's process; the only file that knows wandb, and only when it is used."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ocrlab.errors import RunError


def begin(first: Mapping[str, Any]) -> Run:
    """Start or go on with the run of that id, online or offline; raises what wandb raises."""
    import wandb

    values = {
        "root_dir": os.environ["WANDB_DIR"],
        "init_timeout": first["deadline"] / 3,
        "console": "off",
        "silent": True,
        "disable_git": True,
        "save_code": False,
        "host": "",
        "username": "",
        "program": "ocrlab",
        "x_disable_meta": True,  # command line, host and user
        "x_disable_machine_info": True,
        "x_stats_pid": os.getppid(),
        "x_transaction_log_flush_interval": 2.0,  # seconds; what is not written when it is killed cannot be sent later
    }
    settings = {key: value for key, value in values.items() if key in wandb.Settings.model_fields}
    wanted = {"project": first["project"], "name": first["name"], "config": first["config"]}
    if first["mode"] == "online":
        wanted["resume"] = "allow"  # offline nobody can tell whether there is one; `wandb sync` puts it together
    return Run(wandb.init(**wanted, id=first["id"], mode=first["mode"], settings=wandb.Settings(**settings)))


class Run:
    """A wandb run."""

    def __init__(self, run: Any) -> None:
        self.run = run
        files = getattr(run, "dir", None)
        self.sync = os.path.relpath(Path(files).parent, os.environ["WANDB_DIR"]) if files else None

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        """Log one row; a step that the server knows already is left out by wandb."""
        self.run.log(dict(metrics), step=step)

    def artifact(self, file: Path, sha256: str, about: Mapping[str, Any]) -> None:
        """Log a file with its SHA-256; raises RunError where the file has another one by now."""
        import wandb

        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        if digest != sha256:
            raise RunError("The checkpoint changed on its way to the tracker", got=digest, need=sha256)
        artifact = wandb.Artifact(f"detector-{self.run.id}", type="model", metadata={**about, "sha256": sha256})
        # Not copied to a cache of the user's: it lies in the run folder, also for the day that it is sent.
        # The server gets its path: relative to the working folder, which is the run folder, it reveals nothing.
        artifact.add_file(os.path.relpath(file), name=file.name, policy="immutable")
        self.run.log_artifact(artifact, aliases=["best"])

    def finish(self, status: str, name: str | None, metrics: Mapping[str, Any]) -> None:
        """Name and tag the run, and wait until everything is sent."""
        self.run.summary.update(dict(metrics))
        self.run.name = name or self.run.name
        others = [tag for tag in self.run.tags or () if not tag.startswith("status:")]  # of before it was resumed
        self.run.tags = (*others, f"status:{status}")
        self.run.finish(exit_code=0 if status == "completed" else 1)
