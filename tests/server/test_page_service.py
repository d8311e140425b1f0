"""The page with the real service behind it: pictures along a curve, and a model that knows them by their colour."""

import shutil

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

from suffuse import Index, Params, build
from suffuse.server import Limits, create_app

pytest_plugins = ["tests.support.browser"]

N = 60


class ByColour:
    """A model that makes of a picture the vector of the item that has its colour."""

    def __init__(self, features):
        self.features = features

    def extract(self, picture):
        return self.features[min(round(picture.convert("RGB").getpixel((1, 1))[0] / 4), N - 1)]

    def extract_regions(self, picture):
        return self.extract(picture)[None]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """An index of points along an arc, with a little picture for each."""
    root = tmp_path_factory.mktemp("pictures")
    along = np.linspace(0, 4.5, N)
    features = np.stack([np.cos(along), np.sin(along), np.full(N, 0.3)], axis=1).astype(np.float32)
    for id in range(N):
        Image.new("RGB", (48, 32), (id * 4, 90, 200 - id)).save(root / f"{id:02d}.png")
    items = [{"name": f"{id:02d}.png", "half": "first" if id < N // 2 else "second"} for id in range(N)]
    params = Params(k=6, truncation=40, keep=30, with_graph=True)
    build(features, root / "arc.index", params, names=items, jobs=1)
    return root, ByColour(features)


@pytest.fixture
def open_service(pictures, serving, open_tab):
    """Open the page of the real service; options are those of `create_app`."""
    root, model = pictures

    def open_service(query="", **options):
        tab = open_tab()
        tab.address = serving(create_app(root / "arc.index", image_root=root, extractor=model, **options))
        return tab, tab.open(query)

    return open_service


def test_a_search_from_click_to_chain(open_service):
    _, page = open_service()
    page.get_by_role("link", name="Find more like 20.png").click()
    expect(page.locator("#list-diffusion .hit")).to_have_count(24)
    expect(page.locator("#list-knn .hit .picture.loaded").first).to_be_visible()
    page.locator("#list-diffusion .hit").nth(9).hover()
    expect(page.locator(".chain figcaption").first).to_have_text("query")
    expect(page.locator(".chain figcaption").last).to_have_text("found")
    expect(page.locator(".shares li").first).to_contain_text(" %")
    page.locator("#list-diffusion .more-like").nth(3).click()
    expect(page.locator(".liked .chip img")).to_be_visible()
    page.locator("#list-diffusion .less-like").nth(5).click()
    expect(page.locator(".unliked .chip img")).to_be_visible()
    expect(page.locator("#list-diffusion .hit")).to_have_count(24)
    page.get_by_role("checkbox", name="second").check()
    expect(page.locator("#list-diffusion .hit").first).to_have_attribute("data-id", "30")


def test_an_upload_and_a_part_of_it_and_feedback_on_that(open_service, pictures):
    root, _ = pictures
    _, page = open_service()
    page.set_input_files("#file", root / "40.png")
    expect(page.locator("#list-knn .hit").first).to_have_attribute("data-id", "40")
    page.get_by_role("button", name="Select a part").press("Enter")
    page.wait_for_url("**box=**")
    expect(page.locator("#list-knn .hit").first).to_have_attribute("data-id", "40")
    page.locator("#list-diffusion .more-like").nth(1).click()
    expect(page.locator(".liked .chip")).to_have_count(1)
    page.locator("#list-diffusion .hit").nth(2).hover()
    expect(page.locator(".chain .link").first).to_be_visible()
    page.reload()
    expect(page.locator("#list-diffusion .hit")).to_have_count(24)


def test_a_part_of_a_picture_of_the_index_with_feedback(open_service):
    _, page = open_service("?items=20,25,-50&box=0,0,0.5,0.5")
    expect(page.locator("#list-diffusion .hit")).to_have_count(24)
    expect(page.locator("#list-diffusion [data-id='25'], #list-diffusion [data-id='50']")).to_have_count(0)


def test_the_token_of_the_service_is_asked_for(open_service):
    tab, page = open_service("?items=3", token="open sesame")
    tab.refusals_expected = True
    page.get_by_role("dialog").get_by_label("Token").fill("open sesame")
    page.keyboard.press("Enter")
    expect(page.locator("#list-diffusion .hit .picture.loaded").first).to_be_visible()
    expect(page.locator(".query .picture.loaded")).to_be_visible()


def test_an_item_that_is_not_there_is_told(open_service):
    tab, page = open_service("?items=100000")
    tab.refusals_expected = True
    expect(page.get_by_role("alert")).to_contain_text("100000")
    expect(page.get_by_role("button", name="Try again")).to_be_visible()


def test_a_picture_that_is_removed_while_it_is_shown_breaks_nothing(pictures, serving, open_tab, tmp_path):
    """Its tile stays until the next search; to ask for it is answered in words."""
    root, model = pictures
    shutil.copytree(root / "arc.index", tmp_path / "arc.index")
    limits = Limits(refresh_seconds=0.01)
    app = create_app(tmp_path / "arc.index", image_root=root, extractor=model, limits=limits)
    tab = open_tab()
    tab.address = serving(app)
    page = tab.open("?items=20")
    expect(page.locator("#list-diffusion .hit")).to_have_count(24)
    tile = page.locator("#list-diffusion .hit").nth(4)
    gone = int(tile.get_attribute("data-id"))
    Index.open(tmp_path / "arc.index").remove([gone])
    while app.state.service.engine.summarize().generation != 2:
        pass
    tab.refusals_expected = True
    tile.hover()
    expect(page.locator("#why")).to_contain_text(f"no item {gone}")
    tile.locator(".more-like").click()
    expect(page.get_by_role("alert")).to_contain_text(f"no image {gone}")
    page.go_back()
    expect(page.locator("#list-diffusion .hit")).to_have_count(24)
    page = tab.open("?items=20")
    expect(page.locator("#list-diffusion .hit")).to_have_count(24)
    expect(page.locator(f"#list-diffusion [data-id='{gone}'], #list-knn [data-id='{gone}']")).to_have_count(0)
    page = tab.open()
    expect(page.locator(".tile").first).to_be_visible()
    expect(page.get_by_role("link", name=f"Find more like {gone:02d}.png")).to_have_count(0)


def test_the_description_of_the_api_works_without_the_internet(open_service):
    tab, page = open_service()
    page.goto(tab.address + "docs")
    expect(page.get_by_role("link", name="/api/search")).to_be_visible()
    one = page.locator("#operations-pictures-_item_api_items__id__get")  # others change or remove it
    one.get_by_role("link", name="/api/items/{id}", exact=True).click()
    page.get_by_role("button", name="Try it out").click()
    page.get_by_placeholder("id").fill("3")
    page.get_by_role("button", name="Execute").click()
    expect(page.locator(".live-responses-table")).to_contain_text("03.png")
