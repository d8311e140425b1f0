"""Pictures of every kind become upright RGB of the right colours, or a reason; nothing crashes."""

import contextlib
import io
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.support.pictures import encoded, noise

from suffuse.errors import InvalidInput, InvalidParams
from suffuse.images.pictures import crop, read_picture, resize, silence_pillow

PICTURE = noise(48, 36, seed=3)
PIXELS = np.asarray(PICTURE).astype(int)
GREY = np.asarray(PICTURE.convert("L")).astype(int)


def difference(found, expected):
    """Mean difference in grey levels."""
    return np.abs(np.asarray(found).astype(int) - expected).mean()


@pytest.mark.parametrize(
    ("kind", "options", "most"),
    [("PNG", {}, 0), ("BMP", {}, 0), ("TIFF", {}, 0), ("TIFF", {"compression": "tiff_lzw"}, 0),
     ("WEBP", {"lossless": True}, 0), ("WEBP", {"quality": 95}, 4), ("JPEG", {"quality": 95}, 4), ("GIF", {}, 12)],
)  # fmt: skip
def test_every_format_is_read(tmp_path, kind, options, most):
    file = tmp_path / "x"
    file.write_bytes(encoded(PICTURE, kind, **options))
    found = read_picture(file)
    assert (found.width, found.height, found.image.size, found.image.mode) == (48, 36, (48, 36), "RGB")
    assert difference(found.image, PIXELS) <= most
    assert difference(read_picture(file.read_bytes()).image, PIXELS) <= most


def sixteen_bits():
    return Image.fromarray((GREY * 257).astype(np.uint16))


def grey_in_three(most):
    return lambda image: difference(image, GREY[:, :, None]) <= most


@pytest.mark.parametrize(
    ("data", "right"),
    [
        (encoded(PICTURE.convert("L")), grey_in_three(0)),
        (encoded(PICTURE.convert("L"), "JPEG", quality=95), grey_in_three(3)),
        (encoded(sixteen_bits()), grey_in_three(0)),
        (encoded(sixteen_bits(), "TIFF"), grey_in_three(0)),
        (encoded(Image.fromarray((GREY * 257).astype(np.int32)), "TIFF"), grey_in_three(1)),
        (encoded(Image.fromarray(GREY.astype(np.int32)), "TIFF"), grey_in_three(0)),
        (encoded(Image.fromarray((GREY / 255).astype(np.float32)), "TIFF"), grey_in_three(1)),
        (encoded(Image.fromarray((GREY * 1000.0 - 500).astype(np.float32)), "TIFF"), grey_in_three(30)),
        (encoded(PICTURE.convert("1")), lambda image: set(np.unique(image)) == {0, 255}),
        (encoded(PICTURE.convert("P")), lambda image: difference(image, PIXELS) < 40),
        (encoded(PICTURE.quantize(256)), lambda image: difference(image, PIXELS) < 12),
        (encoded(PICTURE.convert("CMYK"), "TIFF"), lambda image: difference(image, PIXELS) < 2),
        (encoded(PICTURE.convert("CMYK"), "JPEG", quality=95), lambda image: difference(image, PIXELS) < 8),
        (encoded(PICTURE.convert("YCbCr"), "TIFF"), lambda image: difference(image, PIXELS) < 3),
    ],
)  # fmt: skip
def test_every_mode_keeps_its_colours(data, right):
    found = read_picture(data).image
    assert found.mode == "RGB"
    assert right(found)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA"])
def test_what_is_transparent_is_white(mode):
    image = PICTURE.convert("RGBA")
    alpha = np.full((36, 48), 255, np.uint8)
    alpha[:, :24] = 0
    image.putalpha(Image.fromarray(alpha))
    data = encoded(image.convert(mode), "TIFF") if mode == "PA" else encoded(image.convert(mode))
    found = np.asarray(read_picture(data).image)
    assert (found[:, :24] == 255).all()
    assert difference(found[:, 24:], PIXELS[:, 24:] if mode == "RGBA" else GREY[:, 24:, None]) < 60


@pytest.mark.parametrize("kind", ["GIF", "PNG"])
def test_a_transparent_colour_of_a_palette_is_white(kind):
    image = Image.new("P", (8, 8), 1)
    image.putpalette([10, 20, 30, 200, 0, 0])
    image.putpixel((3, 3), 0)
    found = read_picture(encoded(image, kind, transparency=1)).image
    assert found.getpixel((0, 0)) == (255, 255, 255)
    assert found.getpixel((3, 3)) == (10, 20, 30)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_the_first_frame_of_an_animation_counts(kind):
    frames = [Image.new("RGB", (10, 8), colour) for colour in ("red", "green", "blue")]
    options = {"lossless": True} if kind == "WEBP" else {}
    found = read_picture(encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options))
    assert found.image.getpixel((5, 5)) == (255, 0, 0)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_a_rotated_picture_stands_upright(kind, orientation):
    # How each orientation is stored, written down by hand: EXIF says where row 0 and column 0 of the file belong.
    stored = {
        1: PIXELS, 2: PIXELS[:, ::-1], 3: PIXELS[::-1, ::-1], 4: PIXELS[::-1],
        5: PIXELS.transpose(1, 0, 2), 6: PIXELS.transpose(1, 0, 2)[::-1],
        7: PIXELS.transpose(1, 0, 2)[::-1, ::-1], 8: PIXELS.transpose(1, 0, 2)[:, ::-1],
    }[orientation]  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = Image.fromarray(np.ascontiguousarray(stored.astype(np.uint8)))
    options = {"JPEG": {"quality": 95}, "WEBP": {"lossless": True}}.get(kind, {})
    found = read_picture(encoded(image, kind, exif=exif, **options))
    assert (found.width, found.height) == found.image.size == (48, 36)
    assert difference(found.image, PIXELS) < 4


def test_the_camera_is_known():
    def camera(make, model):
        exif = Image.Exif()
        exif[0x010F], exif[0x0110] = make, model
        return read_picture(encoded(PICTURE, "JPEG", exif=exif)).camera

    assert camera("Canon", "Canon EOS 5D") == "Canon EOS 5D"
    assert camera("NIKON CORPORATION", "NIKON D90") == "NIKON D90"
    assert camera("Acme", "X\x001  ") == "Acme X 1"
    assert read_picture(encoded(PICTURE, "JPEG")).camera is None


def test_damaged_exif_is_as_none():
    data = encoded(PICTURE, "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    with silence_pillow():
        found = read_picture(data)
    assert difference(found.image, PIXELS) < 8
    assert found.camera is None


def png_promising(width, height):
    """A small file that says it has so many pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "the file is empty"),
        (b"hello, I am no picture", "not a picture of a kind that is read"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not a picture of a kind that is read"),
        (encoded(PICTURE)[:-60], "truncated|damaged"),
        (encoded(PICTURE, "JPEG")[:-200], "truncated"),
        (encoded(PICTURE, "WEBP")[:-20], "not a picture|truncated|damaged"),
        (encoded(PICTURE, "BMP")[:-200], "truncated"),
        (encoded(PICTURE, "GIF")[:-200], "truncated|damaged"),
        (encoded(PICTURE, "TIFF")[:-2000], "truncated|damaged|not a picture"),
        (png_promising(60_000, 60_000), "more than 100,000,000 pixels|60000 x 60000 pixels, more than 100,000,000"),
        (png_promising(10_001, 10_000), "10001 x 10000 pixels, more than 100,000,000"),
    ],
)
def test_what_cannot_be_read_gives_a_reason(data, words):
    with silence_pillow(), pytest.raises(InvalidInput, match=words):
        read_picture(data)


def test_a_file_that_is_not_there_gives_a_reason(tmp_path):
    with pytest.raises(InvalidInput, match="no such file"):
        read_picture(tmp_path / "none.jpg")
    with pytest.raises(InvalidInput, match="is a directory"):
        read_picture(tmp_path)


@settings(max_examples=60)
@given(st.sampled_from(["PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP"]), st.binary(min_size=1, max_size=30), st.data())
def test_changed_bytes_give_a_picture_or_a_reason(kind, garbage, data):
    content = bytearray(encoded(noise(20, 20), kind))
    start = data.draw(st.integers(0, len(content)))
    content[start : start + len(garbage)] = garbage
    with silence_pillow(), contextlib.suppress(InvalidInput):
        assert read_picture(bytes(content)).image.mode == "RGB"


@pytest.mark.parametrize(
    ("before", "size", "after"),
    [((1024, 768), 512, (512, 384)), ((768, 1024), 512, (384, 512)), ((100, 50), 512, (512, 256)),
     ((5000, 10), 512, (512, 32)), ((1, 1), 64, (64, 64)), ((512, 300), 512, (512, 300))],
)  # fmt: skip
def test_the_longest_side_decides_the_size(before, size, after):
    assert resize(Image.new("RGB", before), size).size == after


def test_a_large_jpeg_is_decoded_smaller_and_looks_the_same():
    large = noise(1600, 1200, seed=8)
    data = encoded(large, "JPEG", quality=95)
    whole, drafted = read_picture(data), read_picture(data, wanted_side=100)
    assert (drafted.width, drafted.height) == (1600, 1200)
    assert whole.image.size == (1600, 1200)
    assert 200 <= max(drafted.image.size) < 1600
    assert difference(resize(drafted.image, 100), np.asarray(resize(whole.image, 100)).astype(int)) < 1


def test_a_box_is_cut_out():
    image = Image.fromarray(np.arange(200, dtype=np.uint8).reshape(10, 20)).convert("RGB")
    part = crop(image, (0.25, 0.5, 0.75, 1.0))
    np.testing.assert_array_equal(np.asarray(part), np.asarray(image)[5:10, 5:15])
    assert crop(image, (0.5, 0.5, 0.501, 0.501)).size == (1, 1)
    assert crop(image, (0.999, 0.999, 1, 1)).size == (1, 1)
    for box in [(0.5, 0, 0.5, 1), (0, 0, 1.1, 1), (-0.1, 0, 1, 1), (0, 1, 1, 0), (float("nan"), 0, 1, 1)]:
        with pytest.raises(InvalidParams, match="box must be"):
            crop(image, box)


def test_reading_from_memory_keeps_no_file_open(tmp_path):
    file = tmp_path / "x.gif"
    file.write_bytes(encoded(PICTURE, "GIF"))
    read_picture(file)
    assert io.BytesIO(file.read_bytes()).readable()
    file.unlink()
