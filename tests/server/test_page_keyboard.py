"""The page by keyboard alone, on a phone, and for a screen reader."""

import pytest
from playwright.sync_api import expect

pytest_plugins = ["tests.support.browser"]


def focused(page):
    """The label or the words of what has the focus."""
    return page.evaluate(
        "document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent.trim()"
    )


def press(page, *keys):
    for key in keys:
        page.keyboard.press(key)


def answered(page):
    """Wait until the hits are those of the query."""
    expect(page.locator("#found")).not_to_have_attribute("aria-busy", "true")


def test_a_whole_session_without_a_mouse(tab):
    page = tab.open()
    press(page, "Tab")
    assert focused(page) == "Skip to the pictures"
    press(page, "Enter")
    page.locator(".tile a").first.focus()
    press(page, "ArrowRight", "ArrowRight", "ArrowLeft", "ArrowDown")
    columns = page.evaluate("getComputedStyle(document.querySelector('#tiles')).gridTemplateColumns.split(' ').length")
    assert focused(page) == f"Find more like circle/{columns + 1:03d}.png"
    press(page, "Home")
    assert focused(page) == "Find more like circle/000.png"
    press(page, "Enter")
    # What had the focus is gone: it goes to the results, not to the top of the page.
    expect(page.get_by_role("heading", level=1, name="More like circle/000.png")).to_be_focused()
    press(page, "Tab")
    assert focused(page).startswith("1: circle/001.png, score 0.85")
    press(page, "ArrowRight", "ArrowRight", "+")
    page.wait_for_url("**/?items=0,2")
    answered(page)
    # The hit is part of the query now; the focus stays at its place in the list.
    expect(page.locator("#list-diffusion .hit:nth-child(3) a")).to_be_focused()
    press(page, "-")
    expect(page.locator(".unliked .chip")).to_have_count(1)
    answered(page)
    expect(page.locator("#list-diffusion .hit:nth-child(3) a")).to_be_focused()
    press(page, "v")
    expect(page.get_by_role("dialog")).to_be_visible()
    press(page, "Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.locator("#list-diffusion .hit:nth-child(3) a")).to_be_focused()


def test_an_answer_that_is_known_already_takes_the_focus_too(tab):
    """It is there before the browser has seen that the picture that was chosen is hidden now."""
    page = tab.open()
    title = page.get_by_role("heading", level=1, name="More like circle/000.png")
    for _ in range(2):
        page.locator(".tile a").first.focus()
        press(page, "Enter")
        expect(title).to_be_focused()
        page.go_back()
        expect(title).to_be_hidden()


def test_a_dialog_gives_the_focus_back_though_its_hit_is_gone(tab):
    page = tab.open("?items=0")
    answered(page)
    held = []
    page.locator("#list-diffusion .hit:nth-child(3) a").focus()
    page.route("**/search", lambda route: held.append(route))
    press(page, "+", "v")
    expect(page.get_by_role("dialog")).to_be_visible()
    while not held:
        page.wait_for_timeout(10)
    held.pop().continue_()
    answered(page)
    press(page, "Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.locator("#list-diffusion .hit:nth-child(3) a")).to_be_focused()


def test_tab_stops_once_in_a_list_of_hits(tab):
    page = tab.open("?items=12")
    stops = page.locator("#list-diffusion").evaluate("list => list.querySelectorAll('[tabindex=\"0\"]').length")
    assert stops == 5  # the first hit's link and its four buttons
    page.locator("#list-diffusion .hit a").nth(0).focus()
    press(page, "End")
    assert focused(page).startswith("24: ")
    assert page.locator("#list-diffusion .hit:nth-child(24) [tabindex='0']").count() == stops
    assert page.locator("#list-diffusion .hit:nth-child(1) [tabindex='0']").count() == 0


def test_the_panel_never_covers_what_has_the_focus(tab):
    page = tab.open("?items=12&top=60")
    page.locator("#list-diffusion .hit a").first.focus()
    for _ in range(5):
        press(page, "ArrowDown")
        assert page.evaluate("document.activeElement.getBoundingClientRect().bottom <= why.getBoundingClientRect().top")


def test_focus_explains_and_w_leads_there_and_escape_back(tab):
    page = tab.open("?items=12")
    page.locator("#list-diffusion .hit a").first.focus()
    press(page, "ArrowRight")
    expect(page.locator("#why-title")).to_have_text("Why circle/013.png?")
    press(page, "w")
    expect(page.locator("#why-title")).to_be_focused()
    press(page, "Escape")
    expect(page.locator("#why")).to_be_hidden()
    assert focused(page).startswith("2: circle/013.png")


def test_a_part_is_selected_and_adjusted_by_keys(tab, stub):
    page = tab.open("?items=12")
    page.get_by_role("button", name="Select a part").press("Enter")
    expect(page.locator(".box")).to_be_focused()
    press(page, "ArrowRight", "Shift+ArrowDown", "Enter")
    page.wait_for_url("**/?items=12&box=0.22,0.2,0.82,0.82")
    expect(page.locator(".box")).to_be_focused()
    assert "from 22 % to 82 % across" in focused(page)
    press(page, "Escape")
    page.wait_for_url("**/?items=12")
    expect(page.locator(".box")).to_be_hidden()


def test_every_control_and_picture_has_words(tab):
    page = tab.open("?items=12,14,-20")
    page.locator("#list-diffusion .hit").first.hover()
    page.locator(".chain li").first.wait_for()
    page.locator(".unliked .chip button").wait_for()
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, a[href], input, select, summary")].filter((control) => {
            const words = control.getAttribute("aria-label") ?? control.textContent.trim();
            return !words && !control.labels?.length;
        }).map((control) => control.outerHTML)"""
    )
    assert nameless == []
    assert page.locator("img:not([alt])").count() == 0
    for landmark in ("banner", "main"):
        expect(page.get_by_role(landmark)).to_have_count(1)
    expect(page.get_by_role("complementary", name="Query and settings")).to_be_visible()
    expect(page.locator("#status")).to_contain_text("24 pictures found in 3.2 ms. ")
    assert page.locator("h1:visible").count() == 1


def test_a_phone_shows_one_list_at_a_time_and_explains_on_demand(open_tab):
    tab = open_tab(has_touch=True, is_mobile=True)
    tab.page.set_viewport_size({"width": 390, "height": 844})
    page = tab.open("?items=12")
    expect(page.locator("#list-diffusion")).to_be_visible()
    expect(page.locator("#list-knn")).to_be_hidden()
    page.get_by_role("tab", name="k-NN").tap()
    expect(page.locator("#list-knn")).to_be_visible()
    expect(page.locator("#list-diffusion")).to_be_hidden()
    expect(page.locator("#why")).to_be_hidden()
    page.locator("#list-knn").get_by_role("button", name="Why circle/011.png?").tap()
    expect(page.get_by_role("complementary", name="Why circle/011.png?").locator(".link").first).to_be_visible()
    page.get_by_role("button", name="Close the explanation").tap()
    expect(page.locator("#why")).to_be_hidden()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("system", ["light", "dark"])
def test_colours_follow_the_system_until_one_chooses(open_tab, system):
    other = {"light": "dark", "dark": "light"}[system]
    page = open_tab(color_scheme=system).open()
    expect(page.locator("html")).to_have_attribute("data-theme", system)
    page.get_by_role("button", name=f"{other} colours", exact=False).click()
    expect(page.locator("html")).to_have_attribute("data-theme", other)
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", other)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_stand_out_from_their_ground(open_tab, theme):
    page = open_tab(color_scheme=theme).open("?items=12,14,-20")
    page.locator("#list-diffusion .hit").nth(12).hover()
    page.locator(".chain li").first.wait_for()
    pale = page.evaluate(
        """() => {
            const channels = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
            const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
                .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
                .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
            const ground = (element) => {
                for (let up = element; up; up = up.parentElement) {
                    const found = channels(getComputedStyle(up).backgroundColor);
                    if (found.length === 3 || found[3] === 1) return found;
                }
                return [255, 255, 255];
            };
            const wordy = [...document.querySelectorAll("body *")].filter((element) => element.checkVisibility()
                && !element.closest(".unseen, .skip, option")
                && [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim()));
            return wordy.map((element) => {
                const [a, b] = [light(channels(getComputedStyle(element).color)), light(ground(element))];
                return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), element.className, element.textContent];
            }).filter(([contrast]) => contrast < 4.5);
        }"""
    )
    assert pale == []


def test_a_part_is_moved_and_resized_with_a_finger(open_tab, stub):
    tab = open_tab(has_touch=True, is_mobile=True)
    tab.page.set_viewport_size({"width": 390, "height": 844})
    page = tab.open("?items=12")
    # Until one asks for it, a finger on the picture scrolls the page.
    page.get_by_role("button", name="Select a part").tap()
    page.wait_for_url("**/?items=12&box=0.2,0.2,0.8,0.8")
    finger, scrolled = page.context.new_cdp_session(page), page.evaluate("scrollY")

    def drag(start, end):
        tab.settle()
        area, before = page.locator(".box-layer").bounding_box(), page.url
        for kind, share in (
            ("touchStart", 0),
            ("touchMove", 0.3),
            ("touchMove", 0.7),
            ("touchMove", 1),
            ("touchEnd", None),
        ):
            at = [] if share is None else [a + share * (b - a) for a, b in zip(start, end, strict=True)]
            point = [{"x": area["x"] + at[0] * area["width"], "y": area["y"] + at[1] * area["height"]}] if at else []
            finger.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": point})
        page.wait_for_url(lambda url: url != before)
        tab.settle()
        return stub.searches[-1]["box"]

    assert drag((0.5, 0.5), (0.4, 0.6)) == pytest.approx([0.1, 0.3, 0.7, 0.9], abs=0.02)
    assert drag((0.7, 0.9), (0.5, 0.6)) == pytest.approx([0.1, 0.3, 0.5, 0.6], abs=0.02)
    assert page.evaluate("scrollY") == scrolled  # the page stays where it is under the finger
