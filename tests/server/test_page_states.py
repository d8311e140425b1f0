"""The page's address, its empty and error states, hostile names, and what it may ask of whom."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect
from tests.support.page_stub import HOSTILE, PAGE

pytest_plugins = ["tests.support.browser"]


def test_back_and_forward_go_through_the_views(tab, stub):
    page = tab.open()
    page.locator(".tile a").nth(3).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("More like circle/003.png")
    page.locator("#list-diffusion").get_by_role("button", name="More like circle/005.png").click()
    expect(page.locator(".liked .chip")).to_have_count(1)
    tab.settle()
    asked = len(stub.searches)
    page.go_back()
    expect(page.locator(".chip")).to_have_count(0)
    page.go_back()
    expect(page.locator("#tiles")).to_be_visible()
    page.go_forward()
    page.go_forward()
    expect(page.locator(".liked .chip")).to_have_count(1)
    expect(page.locator("#list-diffusion .hit")).to_have_count(24)
    assert len(stub.searches) == asked  # what was seen is shown without asking again


def test_a_link_reproduces_the_view(tab, stub):
    page = tab.open(
        "?items=3,8,-5&seeds=7&top=9&method=diffusion&filter=%7B%22shape%22%3A%5B%22circle%22%2C%22square%22%5D%7D"
    )
    expect(page.locator("#list-diffusion .hit")).to_have_count(9)
    expect(page.locator("#list-knn")).to_be_hidden()
    expect(page.get_by_role("slider", name="Seeds")).to_have_value("7")
    expect(page.locator(".liked .chip img")).to_have_attribute("alt", "circle/008.png")
    expect(page.locator(".unliked .chip img")).to_have_attribute("alt", "circle/005.png")
    expect(page.get_by_role("checkbox", name="square")).to_be_checked()
    wanted = {"shape": ["circle", "square"]}
    assert stub.searches == [
        {"positive": [3, 8], "negative": [5], "top": 9, "seeds": 7, "method": "both", "filter": wanted}
    ]


@pytest.mark.parametrize(
    "query", ["?items=x,%00&seeds=-3", "?box=1,2,3&filter=[1]&query=nonsense", "?filter={&top=1e9"]
)
def test_nonsense_in_the_address_is_left_out(tab, query):
    page = tab.open(query)
    expect(page.locator(".tile").first).to_be_visible()


def test_the_start_loads_more_and_searches_by_name_and_shuffles(tab):
    page = tab.open()
    before = page.locator(".tile").count()
    page.mouse.wheel(0, 10_000)
    expect(page.locator(".tile")).to_have_count(120)
    assert before <= 120
    page.get_by_role("searchbox", name="Search by name").fill("triangle/03")
    expect(page.locator(".tile")).to_have_count(10)
    expect(page.locator("#total")).to_have_text("10 pictures with “triangle/03”")
    assert page.url.endswith("?q=triangle%2F03")
    page.get_by_role("button", name="Shuffle").click()
    page.wait_for_url("**shuffle=**")
    page.get_by_role("searchbox").fill("nothing like it")
    expect(page.locator("#more")).to_contain_text("No picture has “nothing like it” in its name.")


def test_the_whole_picture_opens_and_escape_closes_it(tab):
    page = tab.open("?items=12")
    page.locator("#list-diffusion .hit").first.hover()
    page.locator("#list-diffusion").get_by_role("button", name="Enlarge circle/011.png").click()
    dialog = page.get_by_role("dialog", name="circle/011.png")
    expect(dialog.locator(".picture.loaded img")).to_have_attribute("alt", "circle/011.png")
    expect(dialog).to_contain_text("shape")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


def test_an_index_without_pictures_shows_names(tab, stub):
    stub.pictures, stub.upload = False, False
    page = tab.open()
    expect(page.locator(".tile").nth(1)).to_contain_text("circle/001.png")
    expect(page.locator(".tile").nth(1)).to_contain_text("#1")
    expect(page.locator("#drop")).to_contain_text("takes no pictures of your own")
    page.locator(".tile a").nth(1).click()
    expect(page.locator("#list-diffusion .hit").first).to_contain_text("angle: 0")
    expect(page.get_by_role("button", name="Select a part")).to_have_count(0)
    assert page.locator("img").count() == 0


def test_hostile_names_stay_names(tab):
    page = tab.open("?items=6,7&q=onerror")
    page.locator(".liked .chip img").wait_for()
    page.goto(tab.address + "?items=7")
    expect(page.get_by_role("heading", level=1)).to_have_text(f"More like {HOSTILE}")
    page.locator("#list-diffusion .hit").first.hover()
    page.locator(".chain li").first.wait_for()
    page.goto(tab.address + "?q=onerror")
    expect(page.locator(".tile")).to_have_count(1)
    assert page.evaluate("window.hacked") is None
    assert page.locator("main script, main [onerror]").count() == 0


def test_nothing_found_says_why_and_offers_a_way_out(tab):
    page = tab.open("?items=12&filter=%7B%22angle%22%3A%7B%22min%22%3A1000%7D%7D")
    expect(page.locator(".message")).to_contain_text("Nothing was found. No picture passes the filter.")
    page.locator(".message").get_by_role("button", name="Clear the filter").click()
    expect(page.locator("#list-diffusion .hit")).to_have_count(24)


def test_an_error_of_the_server_is_told_and_tried_again(tab, stub):
    tab.refusals_expected = True
    stub.failures["/api/search"] = (503, "busy", "the service is busy")
    page = tab.open("?items=12")
    expect(page.get_by_role("alert")).to_contain_text("The service is busy.")
    stub.failures.clear()
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#list-diffusion .hit")).to_have_count(24)
    expect(page.get_by_role("button", name="Try again")).to_have_count(0)


@pytest.mark.parametrize("query", ["", "?items=12"])
def test_a_server_that_is_away_is_told_and_tried_again(tab, query):
    tab.refusals_expected = True
    page = tab.page
    page.route("**/api/**", lambda route: route.abort())
    page = tab.open(query)
    expect(page.get_by_role("alert")).to_contain_text("The server does not answer.")
    page.unroute("**/api/**")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".tile, .hit").first).to_be_visible()
    expect(page.get_by_role("alert")).to_be_hidden()


def test_a_token_is_asked_for_and_kept(tab, stub):
    tab.refusals_expected = True
    stub.token = "open sesame"
    page = tab.open("?items=12")
    dialog = page.get_by_role("dialog", name="This server needs a token")
    dialog.get_by_label("Token").fill("wrong")
    dialog.get_by_role("button", name="Go on").click()
    expect(dialog).to_contain_text("did not take that token")
    dialog.get_by_label("Token").fill("open sesame")
    page.keyboard.press("Enter")
    expect(page.locator("#list-diffusion .hit .picture.loaded").first).to_be_visible()
    page.reload()
    expect(page.locator("#list-diffusion .hit .picture.loaded").first).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_an_upload_the_server_forgot_is_asked_for_again(tab):
    tab.refusals_expected = True
    page = tab.open("?query=q-forgotten")
    expect(page.get_by_role("alert")).to_contain_text("Choose the picture again")


def test_uploads_that_cannot_work_are_refused_with_words(tab, stub, tmp_path, own_picture):
    tab.refusals_expected = True
    page = tab.open()
    stub.upload_bytes = 200_000
    files = {"large.png": b"x" * 300_000, "notes.txt": b"words", "empty.png": b"", "broken.png": b"not a picture"}
    said = {
        "large.png": "large.png is too large: 300 kB. The server takes up to 200 kB.",
        "notes.txt": "notes.txt is not a picture.",
        "empty.png": "empty.png is empty.",
        "broken.png": "The upload is not a picture that can be read.",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        page.set_input_files("#file", tmp_path / name)
        expect(page.get_by_role("alert")).to_contain_text(said[name])
    assert stub.searches == []  # the broken one was refused before anything was searched
    page.set_input_files("#file", own_picture)
    page.wait_for_url("**/?query=q-**")
    expect(page.get_by_role("alert")).to_be_hidden()


def test_a_pasted_picture_says_so_where_the_index_takes_none(tab, stub):
    stub.upload = False
    page = tab.open()
    page.evaluate(
        """() => {
            const pasted = new DataTransfer();
            pasted.items.add(new File(["x"], "x.png", {type: "image/png"}));
            dispatchEvent(new ClipboardEvent("paste", {clipboardData: pasted}));
        }"""
    )
    expect(page.get_by_role("alert")).to_contain_text("This index takes no pictures of your own.")


def test_the_files_of_the_page_stand_alone():
    """No inline code, nobody else's host, no markup made of text, and every file that is named is there."""
    files = {path.name: path.read_text() for path in PAGE.iterdir()}
    for name, text in files.items():
        assert set(re.findall(r"\w+://[\w./]+", text)) <= {"http://www.w3.org/2000/svg"}, name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text), name
        assert len(text.splitlines()) <= 250, f"{name} is two files"
        if name.endswith(".js"):
            assert text.startswith("// "), f"{name} does not say its one job"
            for module in re.findall(r'from "\./([^"]+)"', text):
                assert module in files, f"{name} imports {module}"
    html = files["index.html"]
    assert not re.search(r"\son\w+=|\sstyle=|<style|<script(?![^>]*src=)", html)
    for name in re.findall(r'(?:src|href)="static/([^"]+)"', html):
        assert name in files
    assert Path(PAGE / "app.js").stat().st_size < 20_000
