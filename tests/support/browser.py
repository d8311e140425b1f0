"""A real Chromium for the tests of the page: where it is, a server in a thread, and fixtures that watch every tab."""

import contextlib
import dataclasses
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from _pytest.runner import runtestprotocol

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium():
    """The path of a Chromium: named by SUFFUSE_CHROMIUM, on the PATH, or None."""
    named = os.environ.get("SUFFUSE_CHROMIUM")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


@contextlib.contextmanager
def _served(app) -> Iterator[str]:
    """The address of `app`, served by a thread of this process on a free port."""
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none", timeout_graceful_shutdown=1))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            # The socket listens already: whoever connects now waits until the server is ready.
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="session")
def chromium():
    """A running Chromium. Without one the tests are skipped, except where CI is set: there they must run."""
    from playwright.sync_api import sync_playwright

    path = find_chromium()
    if path is None:
        if os.environ.get("CI"):
            pytest.fail("no Chromium was found, and CI is set: install it (apt-get install chromium)", pytrace=False)
        pytest.skip("the page is not tested: no Chromium on the PATH (set SUFFUSE_CHROMIUM to its path)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def _stub_server():
    from tests.support.page_stub import Stub, create_stub

    # A server for every test: what the last test's tab still asked for must not arrive at this one's.
    stub = Stub()
    with _served(create_stub(stub)) as address:
        yield stub, address


@pytest.fixture
def stub(_stub_server):
    """What the server pretends to be."""
    return _stub_server[0]


@dataclasses.dataclass
class Watched:
    """A tab, the server's address, and what must not happen in it."""

    page: object
    address: str
    errors: list[str] = dataclasses.field(default_factory=list)
    outside: list[str] = dataclasses.field(default_factory=list)
    refusals_expected: bool = False

    def open(self, query=""):
        """Open the page, and wait until it shows pictures or says why not."""
        self.page.goto(self.address + query)
        self.page.locator(".tile, .hit, .alert:not([hidden]), .state, dialog[open]").first.wait_for()
        return self.page

    def settle(self):
        """Wait until the last search has been answered."""
        self.page.locator("#found:not([aria-busy])").wait_for()


@pytest.fixture
def open_tab(chromium, _stub_server):
    """Make watched tabs: an error in the console, or a request to another host, fails the test."""
    _, address = _stub_server
    made = []

    def open_tab(**options):
        context = chromium.new_context(viewport={"width": 1280, "height": 800}, reduced_motion="reduce", **options)
        context.set_default_timeout(10_000)
        page = context.new_page()
        tab = Watched(page, address)
        page.on("console", lambda message: message.type == "error" and tab.errors.append(message.text))
        page.on("pageerror", lambda error: tab.errors.append(str(error)))
        page.on("request", lambda request: _is_outside(request.url, tab.address) and tab.outside.append(request.url))
        made.append((context, tab))
        return tab

    yield open_tab
    for context, tab in made:
        context.close()
        refused = [text for text in tab.errors if text.startswith("Failed to load resource")]
        assert tab.refusals_expected or not refused, refused
        assert [text for text in tab.errors if text not in refused] == []
        assert tab.outside == []


@pytest.fixture
def tab(open_tab):
    """One watched tab."""
    return open_tab()


def _is_outside(url, address):
    parts = urlsplit(url)
    return parts.scheme not in ("blob", "data") and parts.netloc != urlsplit(address).netloc


@pytest.fixture
def serving():
    """Serve applications until the test ends; gives the address of each."""
    with contextlib.ExitStack() as running:
        yield lambda app: running.enter_context(_served(app))


@pytest.fixture
def own_picture(tmp_path):
    """A little picture to upload."""
    from PIL import Image

    path = tmp_path / "mine.png"
    Image.new("RGB", (60, 40), (40, 120, 200)).save(path)
    return path


def pytest_runtest_protocol(item, nextitem):
    """Try a test in the browser once more if it fails, and say so: on a busy machine any wait can be too short."""
    if "chromium" not in getattr(item, "fixturenames", ()):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    if any(report.failed for report in reports):
        print(f"\nonce more: {item.nodeid}\n{''.join(str(report.longrepr) for report in reports if report.failed)}")
        item._initrequest()
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
