"""A tracker whose server is not there, or stays silent; the real client talks to it."""

from __future__ import annotations

import importlib
import os
import socket
import threading

from ocrlab.fault_lab.fault import Fault
from ocrlab.fault_lab.setup import folder


def start(port: int, timeout: float) -> None:
    """Start a run on the server at a port of this machine, as a training does before its first step."""
    place = str(folder())
    os.environ.update(WANDB_BASE_URL=f"http://127.0.0.1:{port}", WANDB_API_KEY="0123456789" * 4, WANDB_DIR=place)
    os.environ.update(WANDB_CACHE_DIR=place, WANDB_CONFIG_DIR=place, WANDB_DATA_DIR=place, WANDB_CONSOLE="off")
    wandb = importlib.import_module("wandb")
    run = wandb.init(project="receipts", settings=wandb.Settings(init_timeout=timeout))
    run.log({"loss": 1.0})


def silent_server() -> tuple[socket.socket, int]:
    """Return a server that takes every connection and never says a word, and its port."""
    server = socket.create_server(("127.0.0.1", 0))
    connections: list[socket.socket] = []

    def accept() -> None:
        while True:
            connections.append(server.accept()[0])

    threading.Thread(target=accept, name="proxy", daemon=True).start()
    return server, server.getsockname()[1]


def track_through_proxy() -> None:
    server, port = silent_server()
    with server:
        start(port, timeout=3600)


def track_offline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    start(port, timeout=4)


TRACKER = ("hang.tracker", "tracker.network")
FAULTS = (
    Fault("tracker_silent", "wandb.init at a silent server", "hung", TRACKER, track_through_proxy, ("wandb",)),
    Fault("tracker_refused", "a server that is not there", "failed", TRACKER[::-1], track_offline, ("wandb",)),
)
