"""The default network behind the service: a folder of pictures, two commands, and a picture of one's own."""

import pytest
from PIL import Image, ImageColor, ImageDraw, ImageEnhance
from starlette.testclient import TestClient
from tests.support import serving

from suffuse.server import create_app


def drawing(number):
    """Stripes, rings or chequers, in colours of their own."""
    back, front = (ImageColor.getrgb(f"hsl({(30 * number + turn) % 360}, 80%, 50%)") for turn in (0, 140))
    image, step = Image.new("RGB", (160, 120), back), 8 + 4 * (number // 3)
    pen = ImageDraw.Draw(image)
    for at in range(0, 160, 2 * step):
        match number % 3:
            case 0:
                pen.rectangle((at, 0, at + step, 120), fill=front)
            case 1:
                pen.ellipse((at // 3, at // 3, 160 - at // 3, 120 - at // 3), outline=front, width=step // 2)
            case _:
                for down in range(0, 120, 2 * step):
                    pen.rectangle((at, down, at + step, down + step), fill=front)
    return image


@pytest.mark.parametrize("regions", [False, True])
def test_a_picture_of_ones_own_finds_its_like(suffuse, tmp_path, regions):
    photos, index = tmp_path / "photos", tmp_path / "photos.index"
    photos.mkdir()
    for number in range(12):
        drawing(number).save(photos / f"{number:02}.png")
    options = ["--regions"] if regions else []
    code, _, err = suffuse("images", photos, "-o", index, "--size", 128, *options)
    assert code == 0, err
    with TestClient(create_app(index)) as client:
        assert client.get("/api/info").json()["upload"] is True
        for number in (1, 5, 9):
            # Nobody uploads the very file: smaller, darker, and as JPEG.
            mine = ImageEnhance.Brightness(drawing(number).resize((120, 90))).enhance(0.9)
            upload = {"image": ("mine.jpg", serving.file_of(mine, "JPEG", quality=80), "image/jpeg")}
            answer = client.post("/api/search", files=upload, data={"request": '{"method": "knn", "top": 3}'})
            assert answer.status_code == 200, answer.text
            assert answer.json()["results"]["knn"]["hits"][0]["name"] == f"{number:02}.png"
            # A part of what was uploaded, by its token.
            part = {"query": answer.json()["query"], "box": [0.1, 0.1, 0.9, 0.9], "method": "knn", "top": 3}
            answer = client.post("/api/search", json=part)
            assert answer.status_code == 200, answer.text
            assert f"{number:02}.png" in {hit["name"] for hit in answer.json()["results"]["knn"]["hits"]}
