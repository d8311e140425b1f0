"""Networks: the default one classifies a photograph, any ONNX file gives vectors, and what does not fit is told."""

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
from PIL import Image
from tests.support.pictures import CHANNELS, noise, tiny_network

from suffuse.errors import InvalidInput, InvalidParams, MissingExtra
from suffuse.images import Extractor, efficientnet, extractor_from, load_extractor
from suffuse.images.regions import pool_gem, pool_regions, pool_rmac

# Of the 1,000 classes of ImageNet.
MILITARY_UNIFORM = 652


@pytest.fixture(scope="session")
def default_weights():
    return efficientnet.parse_weights(efficientnet._find_weights().read_bytes(), "weights")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of models of its own."""
    folder = tmp_path / "models"
    monkeypatch.setattr(efficientnet, "_cache_folder", lambda: folder)
    return folder


def test_the_default_network_knows_an_admiral(cache):
    cbook = pytest.importorskip("matplotlib.cbook")
    photograph = cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)
    extractor = load_extractor(size=224, output="logits")
    logits = extractor.run(extractor.prepare(photograph)[None])[0]
    odds = np.exp(logits - logits.max())
    assert logits.argmax() == MILITARY_UNIFORM
    assert odds[MILITARY_UNIFORM] / odds.sum() > 0.8


def convolve_twin(pixels, kernel, stride, groups):
    """Convolution loop by loop, with the padding of TensorFlow for even sizes."""
    out_channels, _, size, _ = kernel.shape
    before, after = (size - stride) // 2, size - stride - (size - stride) // 2
    padded = np.pad(pixels, ((0, 0), (before, after), (before, after)))
    height, width = ((side - size) // stride + 1 for side in padded.shape[1:])
    result = np.zeros((out_channels, height, width))
    step = len(pixels) // groups
    for y in range(height):
        for x in range(width):
            window = padded[:, y * stride : y * stride + size, x * stride : x * stride + size]
            if groups == 1:
                result[:, y, x] = np.tensordot(kernel, window, 3)
            else:
                result[:, y, x] = (kernel[:, 0] * window).sum((1, 2))
    assert step == kernel.shape[1]
    return result


def network_twin(weights, pixels):
    """EfficientNet-Lite0 with its batch norms as they are, from the table in its publication."""

    def norm(x, name):
        mean, variance = weights[f"{name}.running_mean"], weights[f"{name}.running_var"]
        scaled = (x - mean[:, None, None]) / np.sqrt(variance[:, None, None] + 1e-3)
        return scaled * weights[f"{name}.weight"][:, None, None] + weights[f"{name}.bias"][:, None, None]

    def relu6(x):
        return np.minimum(np.maximum(x, 0), 6)

    x = relu6(norm(convolve_twin(pixels, weights["_conv_stem.weight"], 2, 1), "_bn0"))
    strides = [1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1]
    for number, stride in enumerate(strides):
        name, came_in = f"_blocks.{number}", x
        if number > 0:
            x = relu6(norm(convolve_twin(x, weights[f"{name}._expand_conv.weight"], 1, 1), f"{name}._bn0"))
        x = relu6(norm(convolve_twin(x, weights[f"{name}._depthwise_conv.weight"], stride, len(x)), f"{name}._bn1"))
        x = norm(convolve_twin(x, weights[f"{name}._project_conv.weight"], 1, 1), f"{name}._bn2")
        if stride == 1 and x.shape == came_in.shape:
            x = x + came_in
    return relu6(norm(convolve_twin(x, weights["_conv_head.weight"], 1, 1), "_bn1"))


def test_the_graph_computes_what_its_twin_does(default_weights, cache):
    extractor = load_extractor()
    # Odd sides: there the padding of TensorFlow by the size of each picture would be another.
    pixels = extractor.prepare(noise(60, 40, seed=2))[:, :75, :93]
    found = extractor.run(pixels[None])[0]
    np.testing.assert_allclose(found, network_twin(default_weights, pixels), atol=2e-3)
    assert found.shape == (1280, 2, 2)
    assert found.max() > 0.5


def test_the_graph_is_sound_and_the_same_each_time(default_weights):
    first, second = (efficientnet.build_graph(default_weights) for _ in range(2))
    onnx.checker.check_model(first, full_check=True)
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True)


def test_other_weights_are_refused_by_name(default_weights):
    few = {name: array for name, array in default_weights.items() if "_blocks.7._bn1" not in name}
    with pytest.raises(InvalidInput, match=r"no _blocks\.7\._bn1\.weight; give those of EfficientNet-Lite0"):
        efficientnet.build_graph(few)


def test_the_model_is_cached_and_a_damaged_cache_is_made_anew(cache, monkeypatch):
    made = efficientnet.load_default_model()
    (file,) = cache.glob("*.onnx")
    sound = file.read_bytes()
    for damaged in (b"", b"nonsense", sound[:1000], bytes([sound[0] ^ 1]) + sound[1:]):
        file.write_bytes(damaged)
        assert efficientnet.load_default_model() == made
        assert file.read_bytes() == sound
    monkeypatch.setattr(efficientnet, "build_graph", None)  # from here on only the cache can answer
    assert efficientnet.load_default_model() == made


def test_without_a_place_for_the_cache_it_still_works(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(efficientnet, "_cache_folder", lambda: tmp_path / "file" / "models")
    assert len(efficientnet.load_default_model().content) > 10_000_000


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setattr(efficientnet, "_PACKAGE", "a_package_that_is_not_there")
    with pytest.raises(MissingExtra, match=r"pip install 'suffuse\[images\]'"):
        efficientnet.load_default_model()


@pytest.mark.parametrize("module", ["onnxruntime", "PIL"])
def test_missing_libraries_name_the_extra(tmp_path, monkeypatch, module):
    model = tiny_network(tmp_path / "tiny.onnx")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=r"pip install 'suffuse\[images\]'"):
        load_extractor(model, 64).extract(b"x")


def test_a_feature_map_is_pooled(tmp_path):
    extractor = load_extractor(tiny_network(tmp_path / "tiny.onnx"), 128, threads=1)
    assert (extractor.size, extractor.dimensions, extractor.output, extractor.has_map) == (
        128,
        CHANNELS,
        "features",
        True,
    )
    image = noise(120, 90)
    result = extractor.run(extractor.prepare(image)[None])[0]
    assert result.shape == (CHANNELS, 3, 4)
    np.testing.assert_array_equal(extractor.extract(image), pool_rmac(result))
    np.testing.assert_array_equal(extractor.extract_regions(image), pool_regions(result))
    by_gem = load_extractor(tmp_path / "tiny.onnx", 128, pooling="gem", power=2.0)
    np.testing.assert_array_equal(by_gem.extract(image), pool_gem(result, 2.0))
    assert not np.allclose(by_gem.extract(image), extractor.extract(image))


def test_regions_in_which_nothing_was_found_are_left_out(tmp_path):
    extractor = load_extractor(tiny_network(tmp_path / "tiny.onnx"), 128)
    result = extractor.run(extractor.prepare(noise(120, 90))[None])[0].copy()
    result[:, :2] = 0  # these regions have no direction, and no index could hold them
    found = pool_regions(result)
    assert 0 < len(extractor.pool_regions(result)) == np.count_nonzero(found.any(axis=1)) < len(found)


def test_a_vector_is_taken_as_it_is(tmp_path):
    extractor = load_extractor(tiny_network(tmp_path / "tiny.onnx", outputs=("vector",)), 128)
    vector = extractor.extract(noise())
    assert vector.shape == (CHANNELS,)
    assert np.linalg.norm(vector) == pytest.approx(1)
    with pytest.raises(InvalidParams, match="regions need a network with a feature map"):
        extractor.extract_regions(noise())
    chosen = load_extractor(tiny_network(tmp_path / "both.onnx"), 128, output="vector")
    np.testing.assert_array_equal(chosen.extract(noise()), vector)


def test_mean_and_deviation_are_those_of_the_options(tmp_path):
    model = tiny_network(tmp_path / "tiny.onnx")
    extractor = load_extractor(model, 64, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    prepared = extractor.prepare(Image.new("RGB", (64, 64), (255, 0, 51)))
    expected = [(1 - 0.485) / 0.229, -0.456 / 0.224, (0.2 - 0.406) / 0.225]
    np.testing.assert_allclose(prepared[:, 5, 7], expected, atol=1e-5)


def test_colour_last_is_the_same_as_colour_first(tmp_path):
    first = load_extractor(tiny_network(tmp_path / "a.onnx"), 96)
    last = load_extractor(tiny_network(tmp_path / "b.onnx", layout="nhwc"), 96, layout="nhwc")
    assert last.prepare(noise()).shape == (72, 96, 3)
    np.testing.assert_allclose(first.extract(noise()), last.extract(noise()), atol=1e-6)
    with pytest.raises(InvalidInput, match="takes 64 colours in layout nchw, expected 3"):
        load_extractor(tiny_network(tmp_path / "c.onnx", layout="nhwc", side=64), 96)


def test_a_network_of_a_fixed_size_gets_the_middle_in_that_size(tmp_path):
    extractor = load_extractor(tiny_network(tmp_path / "tiny.onnx", side=64, batch=1))
    image = Image.new("RGB", (300, 100), "white")
    image.paste("black", (100, 0, 200, 100))
    pixels = extractor.prepare(image)
    assert pixels.shape == (3, 64, 64)
    assert pixels.mean() < -0.95  # black is -1
    assert extractor.extract(noise(200, 100)).shape == (CHANNELS,)


def test_a_box_is_the_same_as_the_part_alone(tmp_path):
    extractor = load_extractor(tiny_network(tmp_path / "tiny.onnx"), 96)
    image, file = noise(80, 60), tmp_path / "x.png"
    image.save(file)
    part = extractor.extract(image.crop((20, 0, 60, 30)))
    for source in (image, file, str(file), file.read_bytes()):
        np.testing.assert_array_equal(extractor.extract(source, box=(0.25, 0, 0.75, 0.5)), part)
    assert extractor.extract_regions(file, box=(0.25, 0, 0.75, 0.5)).shape[1] == CHANNELS


@pytest.mark.parametrize("size", [(1, 1), (2000, 3), (3, 2000), (33, 31)])
def test_pictures_of_any_shape_have_a_vector(tmp_path, size):
    extractor = load_extractor(tiny_network(tmp_path / "tiny.onnx"), 256)
    assert np.isfinite(extractor.extract(noise(*size))).all()


def test_an_extractor_comes_back_from_its_description(tmp_path):
    model = tiny_network(tmp_path / "tiny.onnx")
    extractor = load_extractor(model, 96, mean=(0.4, 0.5, 0.6), pooling="gem", power=2.5)
    description = json.loads(json.dumps(extractor.describe()))
    again = extractor_from(description, threads=1)
    assert isinstance(again, Extractor)
    assert again.describe() == description
    np.testing.assert_allclose(again.extract(noise()), extractor.extract(noise()), atol=1e-6)
    tiny_network(model, seed=6)
    with pytest.raises(InvalidInput, match="is not the one that the features were made with"):
        extractor_from(description)
    model.unlink()
    with pytest.raises(InvalidInput, match="there is no network"):
        extractor_from(description)


@pytest.mark.parametrize("broken", [{}, {"model": 3}, {"mean": None}, {"mean": ["x"] * 3}, None])
def test_a_damaged_description_is_told(tmp_path, broken):
    whole = load_extractor(tiny_network(tmp_path / "tiny.onnx"), 64).describe()
    with pytest.raises(InvalidInput, match="describes no extractor"):
        extractor_from({**whole, **broken} if broken else {})


@pytest.mark.parametrize(
    ("options", "words"),
    [({"size": 16}, "size must be"), ({"size": 10**6}, "size must be"), ({"size": 64.5}, "size must be"),
     ({"mean": (0.5,)}, "mean must be three"), ({"std": (0.5, 0, 0.5)}, "std must be three"),
     ({"mean": (0.5, float("nan"), 0.5)}, "mean must be three"), ({"layout": "hwc"}, "one of nchw, nhwc"),
     ({"pooling": "max"}, "pooling must be one of rmac, gem"), ({"power": 0}, "power must be"),
     ({"threads": 0}, "threads must be"), ({"output": "nothing"}, "no output 'nothing'; it has features, vector")],
)  # fmt: skip
def test_wrong_options_are_told(tmp_path, options, words):
    with pytest.raises(InvalidParams, match=words):
        load_extractor(tiny_network(tmp_path / "tiny.onnx"), **{"size": 64, **options})


def test_files_that_are_no_networks_are_told(tmp_path):
    with pytest.raises(InvalidInput, match="there is no network 'resnet'; give efficientnet-lite0, or"):
        load_extractor("resnet")
    (tmp_path / "x.onnx").write_bytes(b"nonsense")
    with pytest.raises(InvalidInput, match=r"x\.onnx cannot be loaded as an ONNX model"):
        load_extractor(tmp_path / "x.onnx")
    with pytest.raises(InvalidInput, match=r"no feature map .* among tokens \(1, 1, 6\)"):
        load_extractor(tiny_network(tmp_path / "tokens.onnx", outputs=("tokens",)), 64)


def test_importing_suffuse_imports_no_library_of_pictures():
    program = (
        "import sys, suffuse, suffuse.cli, suffuse.cli.images\n"
        "print([name for name in ('onnxruntime', 'onnx', 'PIL', 'numba') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
