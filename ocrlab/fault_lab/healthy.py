"""Programs that are slow and well: whoever says of one of these that it hangs is wrong."""

from __future__ import annotations

import heapq
import http.server
import importlib
import random
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from ocrlab.fault_lab.fault import Fault
from ocrlab.fault_lab.setup import folder, torch
from ocrlab.run_folder import heartbeat

LONG = 14.0  # seconds: more than twice the silence that the benchmark allows


def busy(seconds: float) -> int:
    """Compute for a while."""
    steps, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        steps += sum(range(10_000)) > 0
    return steps


def load() -> int:
    return busy(0.5)


def forward(page: int) -> int:
    return page + busy(0.7)


def backward(loss: int) -> int:
    return loss + busy(0.6)


def quiet_epoch() -> None:
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        backward(forward(load()))
    print("epoch done")


def import_models() -> None:
    place = folder() / "modelzoo"
    place.mkdir()
    names = [f"net{index:02d}" for index in range(14)]
    (place / "__init__.py").write_text("".join(f"from . import {name}\n" for name in names))
    for name in names:
        text = (
            "import time\n\n\ndef table_{0}():\n    end = time.monotonic() + {1}\n    while time.monotonic() < end:\n"
        )
        (place / f"{name}.py").write_text(text.format(name, LONG / 14) + f"        pass\n\n\ntable_{name}()\n")
    sys.path.insert(0, str(place.parent))
    importlib.import_module("modelzoo")


def build_kernels() -> None:
    place = folder()
    source = "constexpr unsigned long mix(unsigned long seed, int rounds) {\n"
    source += "    for (int i = 0; i < rounds; ++i) seed = seed * 6364136223846793005ul + 1;\n    return seed;\n}\n"
    (place / "kernels.cpp").write_text(source + "static_assert(mix(7, 2500000) != 0);\n")
    limits = ["-fconstexpr-ops-limit=2000000000", "-fconstexpr-loop-limit=2000000000"]
    command = ["c++", "-std=c++17", *limits, "-c", "kernels.cpp", "-o", "kernels.o"]
    subprocess.run(command, cwd=place, check=True)


def write_slowly() -> None:
    with (folder() / "scan.raw").open("wb", buffering=0) as file:
        for _ in range(7):
            file.write(b"\0")
            time.sleep(LONG / 7)


def beat() -> None:
    for step in range(7):
        heartbeat.beat(step=step, phase="wait")
        time.sleep(LONG / 7)


def sort_index() -> None:
    """Sort more than fits: in pieces that are merged again."""
    end = time.monotonic() + LONG
    pieces: list[list[float]] = []
    while time.monotonic() < end:
        pieces.append(sort_piece(read_piece()))
        if len(pieces) > 3:
            pieces = [merge(pieces)[:200_000]]
    print(len(merge(pieces)))


def read_piece() -> list[float]:
    return [random.random() for _ in range(500_000)]


def sort_piece(piece: list[float]) -> list[float]:
    return sorted(piece)


def merge(pieces: list[list[float]]) -> list[float]:
    return list(heapq.merge(*pieces))


class Scans:
    """Pages of three seconds each."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        time.sleep(LONG / 5)
        return index


def load_scans() -> None:
    from torch.utils.data import DataLoader

    scans: Any = Scans()
    pages: Any = DataLoader(scans, batch_size=1, num_workers=1)
    print(sum(int(page) for page in pages))


def train_logging_rarely() -> None:
    net = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])
    optimizer = torch.optim.AdamW(net.parameters())
    end, step = time.monotonic() + LONG, 0
    while time.monotonic() < end:
        loss = net(torch.rand(256, 256)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
    print(f"step {step} loss {loss.item():.4f}")


class Mirror(http.server.BaseHTTPRequestHandler):
    """A server of weights on a slow line."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "14000")
        self.end_headers()
        for _ in range(14):
            self.wfile.write(bytes(1000))
            time.sleep(LONG / 14)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def fetch_weights() -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Mirror) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}/weights.pt"
        with urllib.request.urlopen(address) as answer, (folder() / "weights.pt").open("wb") as file:
            while piece := answer.read(1000):
                file.write(piece)
                file.flush()


def convert() -> None:
    code = "import time\nwith open('pages.log', 'w') as log:\n    for page in range(7):\n"
    code += f"        print('page', page, file=log, flush=True)\n        time.sleep({LONG / 7})\n"
    subprocess.run([sys.executable, "-c", code], cwd=folder(), check=True)


def wait_for_queue() -> None:
    place: Path = folder() / "status"
    for poll in range(7):
        place.write_text(f"pending, poll {poll}\n")
        time.sleep(LONG / 7)


FAULTS = tuple(
    Fault(name, does, "healthy", (), run, needs)
    for name, does, run, needs in (
        ("quiet_epoch", "an epoch without a word", quiet_epoch, ()),
        ("slow_import", "an import that works for long", import_models, ()),
        ("slow_build", "a compiler at work", build_kernels, ("compiler",)),
        ("slow_write", "a byte every two seconds", write_slowly, ()),
        ("heartbeat", "waits, and says so by a heartbeat", beat, ()),
        ("slow_sort", "sorts in pieces", sort_index, ()),
        ("slow_loader", "a page every three seconds", load_scans, ()),
        ("rare_words", "a line every many steps", train_logging_rarely, ()),
        ("slow_download", "a slow line", fetch_weights, ()),
        ("slow_program", "waits for a program that works", convert, ()),
        ("slow_queue", "polls, and writes what it saw", wait_for_queue, ()),
    )
)
