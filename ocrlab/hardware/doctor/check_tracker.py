"""Step 10, second half: the way to the tracker's server, only where tracking is on."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from ocrlab.hardware.doctor.check_spec import PROBES, Answers, Options, Probe, fail, ok, warn
from ocrlab.records import Check

SERVER = "https://api.wandb.ai"
OFF = ("disabled", "offline", "dryrun")
WAIT = 5.0  # seconds; a server that needs longer to accept a connection holds up every login
SLOW = 2.0  # seconds


def asks(options: Options) -> list[Probe]:
    """Return the ask of the tracker's server."""
    host, port, through = target(os.environ)
    arguments = {"address": host, "port": port, "timeout": WAIT}
    return [
        Probe(10, "tracker network", PROBES / "resource_limits.py", "network",
            lambda answers, facts: judge(host, port, through, answers), WAIT + 5, arguments, own=True,
            skip=lambda facts: off(os.environ, Path.home() / ".netrc"), hang="tracker.network"),
    ]  # fmt: skip


def off(environment: Mapping[str, str], netrc: Path) -> str | None:
    """Return why no tracker is used, or None where one is: by WANDB_MODE, by a key, or by a login that wandb kept."""
    mode = environment.get("WANDB_MODE", "").lower()
    if mode in OFF or environment.get("WANDB_DISABLED", "").lower() in ("1", "true"):
        return f"tracking is off (WANDB_MODE={mode or 'disabled'})"
    try:
        login = "wandb" in netrc.read_text(encoding="utf-8", errors="replace")
    except OSError:
        login = False
    if mode or environment.get("WANDB_API_KEY") or environment.get("WANDB_BASE_URL") or login:
        return None
    return "tracking is off: neither WANDB_MODE nor a key is set"


def target(environment: Mapping[str, str]) -> tuple[str, int, str]:
    """Return host and port to connect to, and whose they are: the server's or the proxy's in front of it."""
    server = urlsplit(environment.get("WANDB_BASE_URL") or SERVER)
    names = (f"{server.scheme}_proxy", f"{server.scheme}_proxy".upper())
    proxy = next((environment[name] for name in names if environment.get(name)), "")
    if proxy:
        place = urlsplit(proxy if "//" in proxy else f"//{proxy}")
        return place.hostname or "", place.port or 3128, f"the proxy for {server.hostname}"
    return server.hostname or "", server.port or (443 if server.scheme == "https" else 80), "the server"


def judge(host: str, port: int, through: str, answers: Answers) -> Iterator[Check]:
    """Yield the finding on the connection."""
    [answer] = answers
    label, where = "tracker network", f"{host}:{port} ({through})"
    do = "WANDB_MODE=offline, and `wandb sync` afterwards; or set https_proxy"
    if "error" in answer:
        observed = f"{where} cannot be reached: {answer['error']}"
        yield fail(label, observed, "a connection, or tracking offline", do, "tracker.network")
    elif answer["seconds"] > SLOW:
        yield warn(label, f"{where} took {answer['seconds']:.1f} s to answer", f"{SLOW:.0f} s", do, "tracker.network")
    else:
        yield ok(label, f"{where} answers in {answer['seconds']:.2f} s")
