"""The page in a real Chromium: searching by click, by a picture of one's own, by a part, with feedback."""

import pytest
from playwright.sync_api import expect

pytest_plugins = ["tests.support.browser"]


def names(page, method="diffusion"):
    return page.locator(f"#list-{method} .hit").evaluate_all("cells => cells.map(cell => Number(cell.dataset.id))")


def drag(page, start, end):
    """Drag over the query picture, from one fraction of it to another."""
    page.locator(".query .picture.loaded").wait_for()
    area = page.locator(".box-layer").bounding_box()
    where = [(area["x"] + x * area["width"], area["y"] + y * area["height"]) for x, y in (start, end)]
    page.mouse.move(*where[0])
    page.mouse.down()
    page.mouse.move(*where[1], steps=3)
    page.mouse.up()


def test_a_click_on_a_picture_shows_both_rankings(tab, stub):
    page = tab.open()
    page.locator(".tile a").nth(12).click()
    expect(page.locator("#list-diffusion .hit")).to_have_count(24)
    expect(page.locator("#list-knn .hit")).to_have_count(24)
    expect(page.get_by_role("heading", level=1)).to_have_text("More like circle/012.png")
    expect(page.locator("#list-diffusion .hit").first.locator(".caption")).to_contain_text("10.85")
    expect(page.locator(".timing")).to_have_text("3.2 ms in all")
    tab.settle()
    assert stub.searches == [{"positive": [12], "top": 24, "seeds": 10, "method": "both"}]


def test_pictures_that_knn_missed_are_marked_and_counted(tab):
    page = tab.open("?items=12")
    knn = set(names(page, "knn"))
    missed = [id for id in names(page) if id not in knn]
    assert missed
    marked = page.locator("#list-diffusion .hit.missed")
    assert marked.evaluate_all("cells => cells.map(cell => Number(cell.dataset.id))") == missed
    expect(page.locator(".legend")).to_contain_text(f"{len(missed)} pictures that k-NN missed")
    expect(marked.first.locator(".mark")).to_have_text("k-NN: 27")
    expect(marked.first.get_by_role("link", name="missed by k-NN (rank 27)")).to_be_visible()


def test_diffusion_can_be_shown_alone(tab):
    page = tab.open("?items=12")
    page.get_by_role("switch", name="Compare with k-NN").uncheck()
    expect(page.locator("#list-knn")).to_be_hidden()
    expect(page.locator("#list-diffusion .hit.missed").first).to_be_visible()
    assert "method=diffusion" in page.url


def test_a_click_on_a_hit_searches_from_it(tab):
    page = tab.open("?items=12&top=12")
    page.locator("#list-diffusion .hit a").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("More like circle/011.png")
    assert page.url.endswith("?items=11&top=12")


@pytest.mark.parametrize("way", ["choose", "drop"])
def test_a_picture_of_ones_own_is_searched(tab, stub, own_picture, way):
    page = tab.open()
    if way == "choose":
        page.set_input_files("#file", own_picture)
    else:
        carried = page.evaluate_handle(
            """bytes => {
                const carried = new DataTransfer();
                carried.items.add(new File([new Uint8Array(bytes)], "mine.png", {type: "image/png"}));
                return carried;
            }""",
            list(own_picture.read_bytes()),
        )
        page.dispatch_event("body", "dragenter", {"dataTransfer": carried})
        expect(page.get_by_text("Drop the picture to search with it")).to_be_visible()
        page.dispatch_event("body", "drop", {"dataTransfer": carried})
    expect(page.get_by_role("heading", level=1)).to_have_text("More like mine.png")
    expect(page.locator("#list-diffusion .hit")).to_have_count(24)
    expect(page.locator(".query .picture.loaded img")).to_be_visible()
    tab.settle()
    assert stub.searches == [{"top": 24, "seeds": 10, "method": "both", "uploaded": own_picture.stat().st_size}]
    assert "?query=q-060x40" in page.url
    page.reload()
    expect(page.locator(".query .picture.loaded img")).to_be_visible()
    tab.settle()
    assert stub.searches[-1] == {"query": "q-060x40", "top": 24, "seeds": 10, "method": "both"}


def test_a_picture_is_pasted_from_the_clipboard(open_tab, stub):
    tab = open_tab(permissions=["clipboard-read", "clipboard-write"])
    page = tab.open()
    page.evaluate(
        """async () => {
            const canvas = new OffscreenCanvas(50, 30);
            canvas.getContext("2d").fillRect(0, 0, 20, 20);
            const picture = await canvas.convertToBlob({type: "image/png"});
            await navigator.clipboard.write([new ClipboardItem({"image/png": picture})]);
        }"""
    )
    page.keyboard.press("Control+V")
    page.wait_for_url("**/?query=q-050x30")
    expect(page.locator("#list-diffusion .hit")).to_have_count(24)


def test_a_part_of_the_query_picture_is_drawn_moved_and_cleared(tab, stub):
    page = tab.open("?items=12")
    drag(page, (0.25, 0.25), (0.75, 0.5))
    page.wait_for_url("**/?items=12&box=**")
    expect(page.get_by_role("heading", level=1)).to_have_text("More like a part of circle/012.png")
    tab.settle()
    assert stub.searches[-1]["positive"] == [12]
    assert stub.searches[-1]["box"] == pytest.approx([0.25, 0.25, 0.75, 0.5], abs=0.01)
    before = page.url
    drag(page, (0.5, 0.4), (0.6, 0.6))
    page.wait_for_url(lambda url: url != before)
    tab.settle()
    assert stub.searches[-1]["box"] == pytest.approx([0.35, 0.45, 0.85, 0.7], abs=0.02)
    page.get_by_role("button", name="Whole picture").click()
    page.wait_for_url("**/?items=12")
    expect(page.locator(".box")).to_be_hidden()
    expect(page.get_by_role("button", name="Select a part")).to_be_focused()


def test_feedback_on_a_part_goes_to_the_query_the_server_made_of_it(tab, stub):
    page = tab.open("?items=12&box=0.1,0.1,0.6,0.6")
    page.get_by_role("button", name="More like circle/014.png").first.click()
    page.wait_for_url("**/?items=12,14&box=0.1,0.1,0.6,0.6")
    expect(page.locator(".liked .chip")).to_have_count(1)
    tab.settle()
    assert stub.searches[-1]["query"] == "q-box0"
    assert stub.searches[-1]["positive"] == [14]
    assert "box" not in stub.searches[-1]


def test_plus_and_minus_rank_anew_at_once_and_can_be_taken_back(tab, stub):
    page = tab.open("?items=12")
    first = names(page)
    page.locator("#list-diffusion").get_by_role("button", name="More like circle/016.png").click()
    page.locator("#list-diffusion").get_by_role("button", name="Less like circle/010.png").click()
    page.wait_for_url("**/?items=12,16,-10")
    expect(page.locator("#list-diffusion [data-id='16']")).to_have_count(0)
    expect(page.locator("#list-diffusion [data-id='10']")).to_have_count(0)
    expect(page.locator(".liked .chip img")).to_have_attribute("alt", "circle/016.png")
    expect(page.locator(".unliked .chip img")).to_have_attribute("alt", "circle/010.png")
    tab.settle()
    assert names(page) != first
    assert stub.searches[-1]["positive"] == [12, 16]
    assert stub.searches[-1]["negative"] == [10]
    page.get_by_role("button", name="Remove circle/010.png from less like").click()
    page.get_by_role("button", name="Remove circle/016.png from more like").click()
    page.wait_for_url("**/?items=12")
    expect(page.locator(".chip")).to_have_count(0)
    expect(page.locator("#list-diffusion .hit").first).to_have_attribute("data-id", "11")
    tab.settle()
    assert names(page) == first


def test_two_quick_clicks_both_count(tab):
    page = tab.open("?items=12")
    page.evaluate("document.querySelectorAll('#list-diffusion .more-like').forEach((b, at) => at < 2 && b.click())")
    page.wait_for_url("**/?items=12,11,13")


def test_pointing_at_a_hit_explains_it(tab):
    page = tab.open("?items=12")
    page.locator("#list-diffusion [data-id='15']").hover()
    why = page.get_by_role("complementary", name="Why circle/015.png?")
    expect(why.locator(".link")).to_have_count(4)
    expect(why.locator(".link").first.locator("img")).to_have_attribute("alt", "circle/012.png")
    expect(why.locator(".link .step")).to_contain_text(["0.73", "0.50", "0.45"])
    expect(why.locator(".shares li")).to_have_count(5)
    expect(why.locator(".shares li").first).to_contain_text("42 %")
    expect(why.locator(".shares")).to_contain_text("2 more seeds: 2 %")
    page.locator("#list-knn [data-id='52']").hover()
    expect(page.get_by_role("complementary", name="Why square/012.png?")).to_contain_text("no chain of neighbours")


def test_the_sliders_ask_for_more_seeds_and_more_results(tab, stub):
    page = tab.open("?items=12")
    page.get_by_role("slider", name="Results").fill("30")
    expect(page.locator("#list-diffusion .hit")).to_have_count(30)
    page.get_by_role("slider", name="Seeds").fill("3")
    page.wait_for_url("**/?items=12&seeds=3&top=30")
    tab.settle()
    assert (stub.searches[-1]["seeds"], stub.searches[-1]["top"]) == (3, 30)
    page.go_back()
    expect(page.get_by_role("slider", name="Results")).to_have_value("30")
    expect(page.get_by_role("slider", name="Seeds")).to_have_value("10")


def test_the_filter_has_a_control_for_every_type(tab, stub):
    page = tab.open("?items=12")
    page.get_by_role("checkbox", name="circle").check()
    page.get_by_role("checkbox", name="square").check()
    page.get_by_role("combobox", name="place").select_option("place 3")
    page.get_by_label("angle, at most").fill("200")
    page.get_by_role("combobox", name="even").select_option("no")
    wanted = {"shape": ["circle", "square"], "place": "place 3", "angle": {"max": 200}, "even": False}
    expect(page.locator("#list-diffusion .hit")).to_have_count(4)
    page.wait_for_url("**filter=**even**")
    tab.settle()
    assert stub.searches[-1]["filter"] == wanted
    page.reload()
    expect(page.locator("#list-diffusion .hit")).to_have_count(4)
    expect(page.get_by_role("checkbox", name="square")).to_be_checked()
    expect(page.get_by_role("combobox", name="even")).to_have_value("false")
    page.get_by_role("button", name="Clear the filter").click()
    expect(page.locator("#list-diffusion .hit")).to_have_count(24)
    expect(page.get_by_role("checkbox", name="square")).not_to_be_checked()
