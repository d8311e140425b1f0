"""A picture of the page: of Oxford5k where diffusion wins most over k-NN, or of any index.

    python -m benchmarks.page [--data ../shared/data] [-o out/page]
    python -m benchmarks.page --index suffuse-demo/digits.index --items 7 -o docs/images/page.png

Without --index, an index over the thumbnails of Oxford5k is built with the features that come with them, and every
image that is right for some query is asked with: how many of the first 24 are right by diffusion and by k-NN. The image
where the difference is largest is shown. The photographs belong to their authors: the picture stays in OUTPUT.
"""

import argparse
import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import markdown
from suffuse import Params, build
from suffuse.index.search import compose, search
from suffuse.index.snapshot import Snapshot
from suffuse.research.datasets import read_folder

TOP = 24
_CHROMIUM = "/usr/bin/chromium"


def main() -> None:
    """Build if need be, choose, serve, and take the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--index", type=Path, help="an index that is there already")
    parser.add_argument("--items", help="what is asked for, as in the address of the page: 3,8,-5")
    parser.add_argument("-o", "--output", type=Path, default=Path("out/page"))
    parser.add_argument("--chromium", default=_CHROMIUM)
    options = parser.parse_args()
    index, items, images, file = options.index, options.items, None, options.output
    if index is None:
        options.output.mkdir(parents=True, exist_ok=True)
        index, images = options.output / "oxford5k.index", options.data / "oxford5k" / "thumbs"
        items = items or str(best_example(oxford(options.data / "oxford5k", index), options.data / "oxford5k"))
        file = options.output / "oxford5k.png"
    with served(index, images) as address:
        take(f"{address}?items={items or 0}", file, options.chromium)
    print(f"{file}: items {items or 0}")


def oxford(folder: Path, path: Path) -> Snapshot:
    """The index over all thumbnails, whitened to 512 dimensions, with its graph."""
    if not path.exists():
        names = [f"{name.removesuffix('.jpg')}.jpg" for name in _truth(folder)["images"]]
        items = [{"name": name, "landmark": name.rsplit("_", 1)[0]} for name in names]
        build(read_folder(folder).features, path, Params(whiten=512, with_graph=True), names=items)
    return Snapshot.open(path)


def best_example(index: Snapshot, folder: Path) -> int:
    """Ask with every image that is right for a query; print the means, and return where diffusion wins most."""
    rows: dict[int, tuple[int, int]] = {}
    for right in _right_images(folder):
        for image in sorted(right):
            if image not in rows:
                query = compose(index, [image])
                found = (search(index, query, TOP, method=method).ids for method in ("diffusion", "knn"))
                rows[image] = tuple(len(right & set(ids.tolist())) for ids in found)  # type: ignore[assignment]
    gains = {image: ours - theirs for image, (ours, theirs) in rows.items()}
    ours, theirs = np.mean(list(rows.values()), axis=0)
    values = list(gains.values())
    print(
        markdown(
            ["asked with", f"right of the first {TOP}: diffusion", "k-NN", "diffusion better", "equal", "k-NN better"],
            [
                [
                    f"{len(rows)} images", f"{ours:.1f}", f"{theirs:.1f}", str(sum(gain > 0 for gain in values)),
                    str(sum(gain == 0 for gain in values)), str(sum(gain < 0 for gain in values)),
                ]
            ],
        )
    )  # fmt: skip
    return max(gains, key=lambda image: (gains[image], -image))


def _truth(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "ground_truth.json").read_bytes())
    return content


def _right_images(folder: Path) -> list[set[int]]:
    """The images that are right for each query of the classic protocol."""
    return [set(np.asarray(judgement.positives).tolist()) for judgement in read_folder(folder).protocols["classic"]]


@contextlib.contextmanager
def served(index: Path, images: Path | None) -> Iterator[str]:
    """The address of the real service, in a thread of this process."""
    import uvicorn

    from suffuse.server import create_app

    app = create_app(index, image_root=images)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{sock.getsockname()[1]}/"
        server.should_exit = True
        thread.join()


def take(address: str, file: Path, chromium: str) -> None:
    """The page at an address in headless Chromium, with the explanation of a hit that k-NN missed."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 960})
        for _ in range(3):  # the first answers are slow: files and kernels are cold
            page.goto(address)
            page.wait_for_selector(".hit")
            page.wait_for_load_state("networkidle")
        hits = page.locator("#list-diffusion .hit")
        hits.nth(min(10, hits.count() - 1)).hover()
        page.wait_for_selector(".chain li")
        page.evaluate("scrollTo(0, 0)")
        page.wait_for_timeout(500)
        file.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=file)
        browser.close()


if __name__ == "__main__":
    main()
