"""A real browser that can reach nothing but this machine, and that tells what it asked for and complained about.

`browser` opens a file or a URL, in the light or the dark scheme, at any width; `serve` gives a folder a URL, and
`program` starts a server of somebody else's (JupyterLab, voila) and waits until it answers.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless=new",
    "--no-sandbox",  # a container's root may not make one
    "--disable-gpu",
    "--disable-dev-shm-usage",  # 64 MB of shared memory in a container
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
CHECKS = Path(__file__).with_name("checks.js")
WITHIN = 30  # seconds for a page, and for a script in it
LOCAL = ("data:", "blob:", "about:")  # schemes for which nothing is asked of anybody


class Browser:
    """One window of Chromium; `driver` is selenium's, for what is not here."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.sent: list[dict[str, Any]] = []  # Network events since the last `open`

    def open(self, page: Path | str, *, width: int = 1200, height: int = 900, scheme: str = "light") -> None:
        """Open a file or URL, in a window of this size in pixels of CSS and a scheme: light or dark."""
        self.driver.get("about:blank")
        self.look(width, height, scheme)
        self.events()
        self.driver.get_log("browser")
        self.sent.clear()
        self.driver.get(page.resolve().as_uri() if isinstance(page, Path) else page)

    def look(self, width: int = 1200, height: int = 900, scheme: str = "light", media: str = "") -> None:
        """Show the page at this size and in this scheme; `media` is "print", or "" for the screen."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        wanted = {"media": media, "features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", wanted)

    def run(self, script: str, *args: Any) -> Any:
        """Return what a script returns: the body of a function, which finds `args` in `arguments`."""
        return self.driver.execute_script(script, *args)

    def find(self, css: str) -> list[Any]:
        """Return the elements that a selector finds."""
        return list(self.driver.find_elements("css selector", css))

    def wait(self, script: str, seconds: float = WITHIN) -> Any:
        """Return what a script returns as soon as that is true; fails after `seconds`."""
        end = time.monotonic() + seconds
        while not (value := self.run(script)):
            assert time.monotonic() < end, f"not within {seconds:g} s: {script}"
            time.sleep(0.05)
        return value

    def events(self) -> list[dict[str, Any]]:
        """Return the events of the network since the page was opened."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        self.sent += [event for event in messages if event["method"].startswith("Network.")]
        return self.sent

    def requests(self) -> list[str]:
        """Return every URL that was asked for since `open`, also in vain, except the page itself and data: URLs."""
        urls = [
            event["params"]["request"]["url"]
            for event in self.events()
            if event["method"] == "Network.requestWillBeSent"
        ]
        here = self.driver.current_url.partition("#")[0]
        return [url for url in urls if not url.startswith(LOCAL) and url.partition("#")[0] != here]

    def complaints(self) -> list[str]:
        """Return what the console says since `open` or since it was asked last, from warnings upwards."""
        levels = ("WARNING", "SEVERE")
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in levels]

    def examine(self) -> dict[str, Any]:
        """Return what `checks.js` finds on the page as it stands, everything that is folded opened and in sight."""
        self.run('document.querySelectorAll("details").forEach((folded) => { folded.open = true; })')
        about = self.run(
            "return [innerWidth, matchMedia('(prefers-color-scheme: dark)').matches, matchMedia('print').matches]"
        )
        height = min(self.run("return document.documentElement.scrollHeight"), 200_000)
        self.look(about[0], height, "dark" if about[1] else "light", "print" if about[2] else "")
        findings: dict[str, Any] = self.run(CHECKS.read_text(encoding="utf-8"))
        return findings


@pytest.fixture(scope="session")
def _chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Start one Chromium for all tests; it keeps nothing in anybody's home."""
    from selenium import webdriver

    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and chromedriver):
        pytest.skip("not installed: chromium and chromedriver")
    home = tmp_path_factory.mktemp("chromium")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={home / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(chromedriver, env=os.environ | {"HOME": str(home)})
    driver = webdriver.Chrome(options, service)
    driver.set_page_load_timeout(WITHIN)
    driver.set_script_timeout(WITHIN)
    yield Browser(driver)
    driver.quit()


@pytest.fixture
def browser(_chromium: Browser) -> Iterator[Browser]:
    """Return the browser on an empty page; afterwards its page is gone, and with it what the page still ran."""
    _chromium.driver.get("about:blank")
    yield _chromium
    _chromium.driver.get("about:blank")


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Return a function that starts a server of its own and returns its URL as soon as it answers.

    `{port}` in its words becomes a free port; it ends, with every process that it started, when the test does.
    """
    with contextlib.ExitStack() as stack:

        def start(words: Sequence[str], path: str = "/", seconds: float = 60, **options: Any) -> str:
            port = free_port()
            log = tmp_path / f"server-{port}.txt"
            with log.open("wb") as out:
                child = subprocess.Popen(
                    [word.replace("{port}", str(port)) for word in words], stdin=subprocess.DEVNULL,
                    stdout=out, stderr=subprocess.STDOUT, start_new_session=True, **options,
                )  # fmt: skip
            stack.callback(_end, child)
            url, end = f"http://127.0.0.1:{port}{path}", time.monotonic() + seconds
            while not _answers(url):
                assert child.poll() is None, f"it ended with {child.returncode}\n{log.read_text(errors='replace')}"
                assert time.monotonic() < end, f"no answer in {seconds:g} s\n{log.read_text(errors='replace')}"
                time.sleep(0.1)
            return url

        yield start


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except urllib.error.HTTPError as error:
        return error.code < 500
    except OSError:
        return False


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a server and its session: politely first, so that its kernels end too."""
    for number, seconds in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(seconds)


@pytest.fixture
def notebooks(root: Path, tmp_path: Path) -> Path:
    """Return a copy of the notebooks, which a test may change, in a folder without samples or runs beside it."""
    return Path(
        shutil.copytree(root / "notebooks", tmp_path / "copy" / "notebooks", ignore=shutil.ignore_patterns(".*"))
    )


@pytest.fixture
def jupyter(root: Path, tmp_path: Path) -> dict[str, str]:
    """Return the environment of a Jupyter that has nobody's settings, finds our kernel, and writes only here."""
    places = {name: str(tmp_path / "jupyter" / name.lower()) for name in ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR")}
    settings = tmp_path / "jupyter" / "config_dir" / "lab" / "user-settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    asked = {"fetchNews": "false", "checkForUpdates": False}  # else a question covers the page
    (settings / "notification.jupyterlab-settings").write_text(json.dumps(asked), encoding="utf-8")
    ours = {"PYTHONPATH": str(root), "PYDEVD_DISABLE_FILE_VALIDATION": "1", "JUPYTER_PREFER_ENV_PATH": "1"}
    return os.environ | {f"JUPYTER_{name}": place for name, place in places.items()} | ours


@pytest.fixture
def lab(program: Callable[..., str], jupyter: dict[str, str]) -> Callable[..., str]:
    """Return a function that starts JupyterLab on a folder and returns its URL."""

    def start(folder: Path, **more: str) -> str:
        words = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--port", "{port}"]
        words += ["--IdentityProvider.token=", "--ServerApp.port_retries=0", str(folder)]
        return program(words, "/api", env=jupyter | more).removesuffix("/api")

    return start


@pytest.fixture
def run_all() -> Callable[..., str]:
    """Return a function that runs a notebook from top to bottom by JupyterLab's menu, and returns its outcome."""

    def run(browser: Browser, url: str, name: str, seconds: float = 240) -> str:
        browser.open(f"{url}/lab/tree/{name}", width=1400, height=1000)
        browser.wait(READY, 120)
        end = time.monotonic() + seconds
        # JupyterLab may say "idle" too early: what is run then is dropped, or it asks which kernel it shall be.
        for _ in range(5):
            browser.run(ACCEPTED)
            for kind, words in ((".lm-MenuBar-item", "Run"), (".lm-Menu-item", "Run All Cells")):
                browser.wait(ITEM % (kind, words)).click()
            with contextlib.suppress(AssertionError):
                browser.wait(BEGUN, 20)
                break
        while not (word := browser.run(OUTCOME)):
            assert time.monotonic() < end, f"{name} said nothing in {seconds:g} s: {browser.run(STANDS)}"
            time.sleep(0.5)  # a page that is asked more often has less time for the notebook
        for kind, words in ((".lm-MenuBar-item", "File"), (".lm-Menu-item", "Save Notebook")):
            browser.wait(ITEM % (kind, words)).click()
        browser.wait(SAVED)
        return str(word)

    return run


ITEM = """return [...document.querySelectorAll('%s')].find(
    one => (one.querySelector('.lm-Menu-itemLabel, .lm-MenuBar-itemLabel') ?? one).textContent == '%s')"""
READY = "return document.querySelector('.jp-Notebook-ExecutionIndicator')?.dataset.status == 'idle'"
ACCEPTED = "document.querySelectorAll('.jp-Dialog .jp-mod-accept').forEach(one => one.click())"
BEGUN = """return document.querySelector('.outcome') != null
    || [...document.querySelectorAll('.jp-InputPrompt')].some(one => one.textContent.includes('*'))"""
STANDS = """return [
        ...document.querySelectorAll('.jp-Dialog, .jp-InputPrompt, .jp-Notebook-ExecutionIndicator-tooltip')
    ].map(one => one.textContent).join(' ') + document.querySelector('.jp-Notebook')?.textContent.slice(0, 3000)"""
SAVED = "return !document.querySelector('.lm-DockPanel-tabBar .jp-mod-dirty')"
# JupyterLab takes off the page what is out of sight, the outcome at the top too, when it follows the cells that run.
OUTCOME = """const word = document.querySelector('.outcome .word')?.firstChild.textContent;
    if (!word) document.querySelector('.jp-WindowedPanel-outer')?.scrollTo(0, 0);
    const stopped = document.querySelector('.outcome')?.textContent.match(/It stopped in .*/);
    return stopped?.[0] ?? (word && word != 'INCOMPLETE' && word)"""
