"""A person and the real program: sign in, pin, watch bytes arrive, look at the node, evict, read the audit."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from controlplane.clusters.local.fleet import LocalFleet
from controlplane.embedded.processes import ROOT
from tests.e2e.browser import Watched, chromium
from tests.e2e.launch_walk import LaunchWalk
from tests.e2e.program import Program
from tests.waiting import until

expect.set_options(timeout=60_000)

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.xdist_group("program")]

VERSION = "spark-20m v2"  # the demo registers it and leaves pinning it to a person
WARM = 180_000


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    folder = Path(tempfile.mkdtemp(prefix="hearth-journey-"))
    try:
        with Program(folder, nodes=4) as running:
            yield running
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Where pictures of a run stay: .run/pictures, so that people can look at them afterwards."""
    folder = ROOT / ".run" / "pictures"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def entered(browser: Browser, program: Program, pictures: Path, *, scheme: str = "light", width: int = 1440) -> Watched:
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme="dark" if scheme == "dark" else "light",
        permissions=["clipboard-read", "clipboard-write"],
    )
    watched = Watched(context.new_page(), program.address, pictures)
    watched.open("/login?next=/")
    watched.page.get_by_label("Name").fill("admin")
    watched.page.get_by_label("Password").fill(program.password)
    watched.page.get_by_role("button", name="Sign in").click()
    expect(watched.page.get_by_role("heading", level=1, name="Overview")).to_be_visible()
    watched.ready()
    return watched


def test_it_takes_a_person_from_pin_to_warm_to_evicted(browser: Browser, program: Program, pictures: Path) -> None:
    one = entered(browser, program, pictures)
    page = one.page
    page.get_by_role("link", name="Pin a version").click()
    page.get_by_label("Model version").select_option(label=VERSION)
    page.get_by_label("local.pool-b").check()
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("heading", name="What would happen")).to_be_visible()
    # The demo's own transfers may still have the nodes' turns.
    until(lambda: page.reload() and page.get_by_text("Fits").first.is_visible(), "room", seconds=120, every=1)
    one.check("preview")
    page.get_by_role("button", name="Pin it").click()

    # The operation reaches its end by itself: nobody reloads.
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Warm {VERSION}")
    mark = page.evaluate("window.stays = Math.random()")
    expect(page.locator(".titles .pill")).to_have_text("Succeeded", timeout=WARM)
    assert page.evaluate("window.stays") == mark
    targets = page.locator("#targets-rows tr")
    expect(targets.first).to_contain_text("Succeeded")
    one.check("operation")

    targets.first.get_by_role("link").click()
    node = page.get_by_role("heading", level=1).inner_text()
    row = page.locator("#entries-rows tr", has_text=VERSION)
    expect(row).to_contain_text("Ready")
    expect(page.locator("#disk-plot svg").first).to_be_visible()
    one.check("node")
    row.get_by_role("link", name="Evict…").click()
    expect(page.get_by_role("alert")).to_contain_text("a pin wants it there")
    one.check("protected")

    page.goto(f"{program.address}/pins")
    page.get_by_role("link", name=VERSION).click()
    page.get_by_role("link", name="Unpin…").click()
    one.check("unpin")
    page.get_by_role("button", name="Unpin it").click()
    expect(page.locator(".titles .pill")).to_have_text("Succeeded", timeout=WARM)

    page.goto(f"{program.address}/search?q={node}")
    page.get_by_role("link", name=node, exact=True).click()
    page.locator("#entries-rows tr", has_text=VERSION).get_by_role("link", name="Evict…").click()
    # A pool keeps what was used or made ready a moment ago; the preview says so until then.
    confirm = page.get_by_label(re.compile("Type .* to confirm"))
    for _ in range(120):
        if confirm.count():
            break
        page.wait_for_timeout(1000)
        page.reload()
    one.check("evict")
    evict = page.get_by_role("button", name="Evict it")
    confirm.fill("something else")
    expect(evict).to_be_disabled()
    confirm.fill(VERSION)
    evict.click()
    expect(page.locator(".titles .pill")).to_have_text("Succeeded", timeout=WARM)

    one.ready()
    page.keyboard.press("g")
    page.keyboard.press("a")
    expect(page.get_by_role("heading", level=1)).to_have_text("Audit")
    done = page.locator("#audit-rows")
    for action in ("pin.create", "pin.remove", "entry.evict"):
        expect(done.locator("tr", has_text=action).first).to_contain_text("admin")
    one.check("audit")


PAGES = ["/", "/fleet", "/fleet/local.pool-a", "/fleet/local.pool-a/delete",
         "/models", "/models/ember-150m", "/models/ember-150m/versions/v1",
         "/register", "/launches", "/pins", "/pins/new", "/entries", "/operations", "/audit", "/tokens", "/connections",
         "/connections/demo-s3", "/search?q=spark"]  # fmt: skip


@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 1440), ("light", 390)])
def test_it_is_accessible_and_quiet_on_every_page(
    browser: Browser, program: Program, pictures: Path, scheme: str, width: int
) -> None:
    one = entered(browser, program, pictures, scheme=scheme, width=width)
    for path in PAGES:
        one.open(path)
        if path.startswith("/fleet/") and not path.endswith("/delete"):
            expect(one.page.locator("#heatmap-plot svg").first).to_be_visible()
            # Each cell's words and page are put together in the browser.
            drawn = "document.getElementById('heatmap-plot').data[0]"
            words, page = one.page.evaluate(f"[{drawn}.hovertext[0][0], {drawn}.customdata[0][0]]")
            assert re.fullmatch(r"<b>\S+ v\d</b> on a-1<br>\w+( \w+ \w+|<br>[\d,]+ of [\d,]+ bytes)", words), words
            assert page.startswith(("/nodes/", "/models/")), page
        name = re.sub(r"\W+", "-", path).strip("-") or "overview"
        one.check(f"{name}-{scheme}-{width}")


def test_it_stays_live_without_disturbing_the_person(browser: Browser, program: Program, pictures: Path) -> None:
    one = entered(browser, program, pictures)
    page = one.page
    one.open("/fleet/local.pool-a")
    expect(page.locator("#stamp")).to_have_attribute("data-state", "live")
    expect(page.locator("#heatmap-plot svg").first).to_be_visible()  # what is drawn later moves what is below
    page.get_by_text("The same as a table").click()
    page.get_by_label("State").focus()
    before = page.evaluate("(scrollTo(0, 150), scrollY)")
    with page.expect_response(lambda response: "x-hearth-as-of" in response.headers, timeout=60_000):
        page.mouse.move(5, 5)
    with page.expect_response(lambda response: "x-hearth-as-of" in response.headers, timeout=60_000) as second:
        pass
    assert second.value.status in (200, 304)
    assert page.locator("#heatmap-table").get_attribute("open") is not None
    assert page.evaluate("document.activeElement.name") == "state"
    assert page.evaluate("scrollY") == before
    expect(page.locator("#heatmap-plot svg").first).to_be_visible()

    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#stamp")).to_have_attribute("data-state", "paused")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(4000)
    assert asked == []
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press(".")
    expect(page.locator("#stamp")).to_have_attribute("data-state", "live")


def test_it_obeys_the_keyboard_and_keeps_its_state_in_the_address(
    browser: Browser, program: Program, pictures: Path
) -> None:
    one = entered(browser, program, pictures)
    page = one.page
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.keyboard.press("g")
    page.keyboard.press("m")
    expect(page.get_by_role("heading", level=1)).to_have_text("Models")
    one.ready()
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "q"
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("j")
    second = page.locator("#versions-rows tr").nth(1)
    expect(second).to_have_class("selected")
    wanted = second.get_attribute("data-url")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{wanted}")

    one.open("/entries")
    page.get_by_role("link", name="Node", exact=True).click()
    page.wait_for_url("**/entries?sort=-node")
    first = page.locator("#entries-rows tr").first.inner_text()
    page.reload()
    assert page.locator("#entries-rows tr").first.inner_text().split()[0] == first.split()[0]
    page.get_by_label("State").select_option("Ready")
    page.wait_for_url(re.compile(r"/entries\?.*state=Ready"))
    assert one.complaints == []


def test_it_switches_the_theme_in_place_and_remembers_it(browser: Browser, program: Program, pictures: Path) -> None:
    one = entered(browser, program, pictures)
    page = one.page
    light = page.evaluate("getComputedStyle(document.body).color")
    with page.expect_response("**/theme"):
        page.get_by_label("Theme").select_option("dark")
    page.wait_for_function("before => getComputedStyle(document.body).color !== before", arg=light)
    one.open("/fleet")
    assert page.locator("html").get_attribute("data-theme") == "dark"


def test_it_copies_a_new_token_that_works(browser: Browser, program: Program, pictures: Path) -> None:
    one = entered(browser, program, pictures)
    page = one.page
    one.open("/tokens")
    if not page.get_by_role("button", name="Create token").is_visible():
        page.get_by_text("New token").click()
    page.get_by_label("Name").last.fill("from-the-browser")
    page.get_by_role("button", name="Create token").click()
    secret = page.locator("#secret").inner_text()
    copy = page.locator("[data-copy-from=secret]")
    copy.click()
    expect(copy).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == secret
    answer = page.request.get(f"{program.address}/api/v1/me", headers={"Authorization": f"Bearer {secret}"})
    assert answer.json()["token"] == "from-the-browser"


def test_each_class_of_launch_is_provoked_and_shown_under_its_name(
    browser: Browser, program: Program, pictures: Path
) -> None:
    one = entered(browser, program, pictures)
    table = f"{program.address}/launches.json?table=launches"
    walk = LaunchWalk(LocalFleet(program.folder / "fleet"), lambda: one.page.request.get(table).json()["rows"])
    walk.provoke()
    one.open("/launches")
    shown = one.page.locator("#launches-rows")
    for words in ("Warm pod restart", "Cold pod on warm node", "Pod on new node", "Recovery after node loss"):
        expect(shown.locator("tr", has_text=words).first).to_be_visible()
