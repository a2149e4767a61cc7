"""The page of `report` in a real Chromium, Debian's `chromium` or any other on the path."""

import shutil
from pathlib import Path

import pytest
from test_report import page, project, run, train, val, write_run  # noqa: F401

playwright = pytest.importorskip("playwright.sync_api")
axe = pytest.importorskip("axe_playwright_python.sync_playwright")

NAMES = ("chromium", "chromium-browser", "google-chrome")
# As root, as in a container, Chromium has no sandbox; and it is to ask nobody for news.
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]


@pytest.fixture(scope="module")
def chromium():
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture
def shown(page, chromium):  # noqa: F811
    """A function that opens the page; in the end it has said nothing and asked for nothing."""
    said, opened = [], []

    def show(**options):
        context = chromium.new_context(offline=True, **options)
        tab = context.new_page()
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("request", lambda request: opened.append(request.url))
        tab.goto(Path("report.html").absolute().as_uri())
        return tab

    yield show
    assert said == []
    assert {url.partition(":")[0] for url in opened} <= {"file", "data"}


PHONE = {"viewport": {"width": 360, "height": 740}}


@pytest.mark.parametrize(
    ("scheme", "size"),
    [
        ("light", {}),
        ("dark", PHONE),
        pytest.param("dark", {}, marks=pytest.mark.thorough),
        pytest.param("light", PHONE, marks=pytest.mark.thorough),
    ],
    ids=["light", "dark-phone", "dark", "light-phone"],
)
def test_axe_finds_nothing_wrong(shown, scheme, size):
    """Contrast, names, order and roles: WCAG's rules as far as a program can judge."""
    tab = shown(color_scheme=scheme, **size)
    tab.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    found = axe.Axe().run(tab)
    assert found.violations_count == 0, found.generate_report()
    background = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background.strip("rgb()").split(",")[:3])) > 384) == (scheme == "light")


def test_a_phone_scrolls_the_page_in_one_direction(shown):
    tab = shown(**PHONE)
    assert tab.evaluate("document.documentElement.scrollWidth") <= PHONE["viewport"]["width"]


def test_the_keyboard_reaches_the_folded_lines_and_opens_them(shown):
    tab = shown()
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.getAttribute('href')") == "#main"
    for _ in range(200):
        tab.keyboard.press("Tab")
        if tab.evaluate("document.activeElement.matches('.fold > summary')"):
            break
    assert tab.evaluate("document.activeElement.parentElement.open") is False
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.activeElement.parentElement.open") is True
    assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"


def test_a_print_has_no_more_than_the_changes(shown):
    tab = shown()
    on_screen = tab.evaluate("document.querySelectorAll('details.fold').length")
    tab.emulate_media(media="print")
    folds = "[...document.querySelectorAll('details.fold')]"
    printed = tab.evaluate(f"{folds}.filter(one => one.offsetHeight > 0).length")
    assert on_screen > 0 and printed == 0
