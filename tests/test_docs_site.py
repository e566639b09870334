"""The documentation site, built by scripts/docs and looked at in a real browser."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import logfs
from logfs.cli import COMMANDS
from logfs.setting import BROKER_SETTINGS, TOPIC_SETTINGS
from tests.support.examples import drawn
from tests.support.requirements import need

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, Page, Request

# One worker builds the site, once.
pytestmark = pytest.mark.xdist_group("docs site")

ROOT = Path(__file__).parents[1]
PHONE, DESK = (390, 844), (1280, 900)


class Handler(SimpleHTTPRequestHandler):
    """Serves files, and prints nothing."""

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the site, which scripts/docs has built."""
    need((ROOT / ".venv/.wanted").exists(), "scripts/setup has not run")
    directory = tmp_path_factory.mktemp("docs") / "site"
    done = subprocess.run(
        [ROOT / "scripts/docs", directory], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture(scope="module")
def url(site: Path) -> Iterator[str]:
    """The address of the site, on a server of its own."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=site)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture
def open_page(browser: Browser, url: str) -> Iterator[Callable[..., Page]]:
    """Return a function that opens a page of the site. After the test nothing may have gone wrong in the browser."""
    wrong: list[str] = []
    contexts = []

    def failed(request: Request) -> None:
        # Only what the browser itself gave up, because the page was left.
        if request.failure != "net::ERR_ABORTED":
            wrong.append(f"{request.url} {request.failure}")

    def opened(name: str, size: tuple[int, int] = DESK, **options: object) -> Page:
        context = browser.new_context(viewport={"width": size[0], "height": size[1]}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: wrong.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: wrong.append(f"{name}: {error}"))
        page.on("requestfailed", failed)
        page.on(
            "request",
            lambda request: request.url.startswith((url, "data:")) or wrong.append(request.url),
        )
        page.on(
            "response",
            lambda answer: answer.status < 400 or wrong.append(f"{answer.url} {answer.status}"),
        )
        page.goto(url + name)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not wrong


def pages(site: Path) -> list[str]:
    """Return the address of each page, below that of the site."""
    folders = (path.parent.relative_to(site).as_posix() for path in site.rglob("index.html"))
    return sorted("" if name == "." else f"{name}/" for name in folders)


def test_every_page_opens_without_an_error_and_without_a_network(
    site: Path, open_page: Callable[..., Page]
) -> None:
    """Each document is a page. Each page opens with nothing on the console, and asks no other host for anything.

    On the screen of a phone no page is wider than the screen.
    """
    found = pages(site)
    assert {f"{path.stem}/" for path in (ROOT / "docs").glob("*.md")} < set(found)
    page = open_page("", PHONE)
    address = page.url
    for name in drawn(found, 10):
        page.goto(address + name)
        assert page.locator("h1").first.is_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0], name


def test_search_finds_a_setting(open_page: Callable[..., Page]) -> None:
    """A name that is typed into the search leads to its heading."""
    page = open_page("")
    page.get_by_role("textbox", name="Search").press_sequentially("log.cleaner.backoff.ms")
    page.locator(".md-search-result__link", has_text="log.cleaner.backoff.ms").first.click()
    page.wait_for_url("**/settings/*")
    heading = page.locator("h3", has_text="log.cleaner.backoff.ms")
    heading.wait_for()
    assert heading.is_visible()


def test_diagrams_are_drawn(open_page: Callable[..., Page]) -> None:
    """Each Mermaid diagram of the documents becomes a picture, in a light and in a dark page."""
    pictures = 0
    for path in (ROOT / "docs").glob("*.md"):
        count = len(re.findall(r"^```mermaid$", path.read_text(), re.MULTILINE))
        for look in ("light", "dark") if count else ():
            page = open_page(f"{path.stem}/", color_scheme=look)
            page.wait_for_function(f"document.querySelectorAll('div.mermaid').length == {count}")
            for picture in page.locator("div.mermaid").all():
                box = picture.bounding_box()
                assert box is not None
                assert box["height"] > 200
                pictures += 1
    assert pictures >= 6


def test_light_and_dark(open_page: Callable[..., Page]) -> None:
    """The page is as light or dark as the system, until the reader chooses; the choice is kept on other pages."""

    def brightness(page: Page) -> int:
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", colour)[:3]))

    light = open_page("", color_scheme="light")
    dark = open_page("", color_scheme="dark")
    assert brightness(light) > 600
    assert brightness(dark) < 200
    light.get_by_title("Switch to dark").click()
    light.wait_for_function("document.body.dataset.mdColorScheme == 'slate'")
    light.get_by_role("link", name="Changelog").first.click()
    light.wait_for_url("**/changelog/")
    assert brightness(light) < 200


def test_the_copy_button_takes_the_commands_alone(open_page: Callable[..., Page]) -> None:
    """What is copied from a console has no prompts and no output, so that it can be pasted into a shell."""
    page = open_page("first-log/", permissions=["clipboard-read", "clipboard-write"])
    block = page.locator(".highlight", has_text="offsets/latest")
    block.hover()
    block.get_by_role("button").click()
    page.get_by_text("Copied to clipboard").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.split("\n") == [
        "cat orders-0/offsets/1; echo",
        "",
        "cat orders-0/offsets/1..3",
        "",
        "",
        "readlink orders-0/offsets/latest",
    ]


def test_the_references_have_everything(open_page: Callable[..., Page]) -> None:
    """The pages made from the code have each setting, each command and each public name as a heading."""

    def headings(name: str) -> set[str]:
        texts = open_page(name).locator("h2, h3").all_inner_texts()
        return {text.removesuffix("¶").strip().split("\n")[-1] for text in texts}

    assert {*TOPIC_SETTINGS, *BROKER_SETTINGS} <= headings("settings/")
    assert {f"logfs {name}" for name in COMMANDS} <= headings("commands/")
    names = " ".join(headings("api/"))
    assert all(re.search(rf"\b{name}\b", names) for name in logfs.__all__)


def test_broken_links_are_errors(site: Path, tmp_path: Path) -> None:
    """Links to a page and to a heading that do not exist make scripts/docs fail, and the message names them."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copytree(ROOT / "scripts/docs-site", tmp_path / "scripts/docs-site")
    shutil.copy(ROOT / "scripts/docs", tmp_path / "scripts/docs")
    for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "logfs", ".venv"):
        (tmp_path / name).symlink_to(ROOT / name)
    # Everything is installed: the fixture `site` has seen to it.
    (tmp_path / "scripts/setup").symlink_to("/bin/true")
    links = ["durability.md#no-such-heading", "no-such-page.md"]
    with (tmp_path / "docs/tools.md").open("a") as page:
        page.writelines(f"\n[broken]({link})\n" for link in links)
    done = subprocess.run(
        [tmp_path / "scripts/docs", tmp_path / "site"], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert all(f"'{link}'" in done.stderr for link in links), done.stderr
