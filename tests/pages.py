"""A real browser for tests of the page: Debian's Chromium, driven by Selenium over its driver."""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

DUMPS = Path(__file__).parent / "tui" / "data" / "dumps"
DOUBLE = "double-40afca47"
SLOWNESS = 60.0
"""Seconds to wait for the page: other tests may keep every core busy."""

_FLAGS = (
    "--headless",
    "--no-sandbox",  # tests may run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--hide-scrollbars",
)


@functools.cache
def missing() -> str | None:
    """Why there is no browser; None if there is one."""
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            return (
                f"no {program}: the page is not tested in a browser; "
                "apt-get install chromium chromium-driver"
            )
    return None


class Browser:
    """A page in Chromium."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(
        self, path: Path, fragment: str = "", *, width: int = 1280, dark: bool = False
    ) -> None:
        """Open a page from the disk, and wait until its script has run."""
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])
        self.driver.get("about:blank")
        self.driver.get_log("browser")
        self.driver.get(path.as_uri() + (f"#{fragment}" if fragment else ""))
        self.wait("document.documentElement.dataset.ready === 'true'")

    def command(self, name: str, **parameters: Any) -> Any:
        return self.driver.execute_cdp_cmd(name, parameters)

    def run(self, script: str, *arguments: Any) -> Any:
        """The value of an expression, or of a script with `return`; `args` holds the arguments."""
        body = script if "return " in script else f"return ({script});"
        return self.driver.execute_script(f"const args = [...arguments];\n{body}", *arguments)

    def wait(self, expression: str, *arguments: Any) -> Any:
        """Wait until an expression is true, and return its value."""
        until = time.monotonic() + SLOWNESS
        while not (found := self.run(expression, *arguments)):
            assert time.monotonic() < until, f"still false: {expression} {self.errors()}"
            time.sleep(0.02)
        return found

    def press(self, *keys: str, shift: bool = False) -> None:
        """Press keys, one after the other, wherever the focus is."""
        from selenium.webdriver import ActionChains, Keys

        chain = ActionChains(self.driver, duration=0)
        if shift:
            chain = chain.key_down(Keys.SHIFT)
        chain = chain.send_keys(*keys)
        (chain.key_up(Keys.SHIFT) if shift else chain).perform()

    def click(self, selector: str) -> None:
        self.run("document.querySelector(args[0]).click()", selector)

    def text(self, selector: str) -> str:
        found: str = self.run("document.querySelector(args[0]).textContent", selector)
        return found

    def errors(self) -> list[str]:
        """Messages of the console since the page was opened."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


class Elements(HTMLParser):
    """Elements of a page, and the texts of its inline scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {"script": [], "style": []}
        self.words: list[str] = []
        self._within: list[str] | None = self.words

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        if tag in self.texts:
            self._within = None if "type" in attributes else self.texts[tag]
            if self._within is not None:
                self._within.append("")

    def handle_endtag(self, tag: str) -> None:
        self._within = self.words

    def handle_data(self, data: str) -> None:
        if self._within is self.words:
            self.words.append(data)
        elif self._within is not None:
            self._within[-1] += data

    @classmethod
    def of(cls, html: str) -> Elements:
        found = cls()
        found.feed(html)
        return found


def kernel_id(browser: Browser, name: str) -> str:
    """Id of a kernel's section, from the overview."""
    found: str = browser.run(
        "[...document.querySelectorAll('.pd-matrix tbody th a')]"
        ".find(link => link.textContent === args[0]).hash.slice(1)",
        name,
    )
    return found


def open_kernel(browser: Browser, page: Path, name: str, rest: str = "", **how: Any) -> None:
    """Open a kernel; `rest` names the target, a text and a line: `/t0/jaxpr/l10`."""
    browser.open(page, **how)
    browser.open(page, kernel_id(browser, name) + rest, **how)
    browser.wait("document.querySelector('.pd-current .pd-source .pd-row')")


@pytest.fixture(scope="session")
def driver() -> Iterator[Any]:
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        options = Options()
        options.binary_location = shutil.which("chromium") or ""
        for flag in (*_FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        service = Service(shutil.which("chromedriver"), log_output=os.devnull)
        made = webdriver.Chrome(options=options, service=service)
        try:
            yield made
        finally:
            made.quit()


@pytest.fixture
def browser(driver: Any) -> Browser:
    return Browser(driver)


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes the page over a dump directory."""

    def written(root: Path = DUMPS, *, targets: Sequence[str] = (), title: str = "dumps") -> Path:
        from pallas_debug.report import write_report
        from pallas_debug.store import open_dumps

        reader = open_dumps(root)
        path = tmp_path / "report.html"
        write_report(reader, reader.kernels(), path, title=title, targets=targets)
        return path

    return written


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    """A copy of the recorded dumps, to be damaged."""
    shutil.copytree(DUMPS, tmp_path / "dumps")
    return tmp_path / "dumps"
