"""What is exported works elsewhere: in onnxruntime, and as a page opened from disk."""

import json
import tarfile
import zipfile
from io import BytesIO

import numpy as np
import pytest
from PIL import Image
from support.page_cases import COLOURS, picture, toy_backbone, write_pictures
from support.page_server import learned, served

from neural_similarity.adapt import Preprocessing
from neural_similarity.errors import FileFormatError
from neural_similarity.page.takeaway import runtime
from neural_similarity.page.takeaway.runtime import has_runtime, install_runtime

NAME = "<b>red"  # names of classes may look like markup


def predicted(folder, content):
    """Probabilities by onnxruntime, with the preprocessing that labels.json describes."""
    import onnxruntime

    facts = json.loads((folder / "labels.json").read_text())
    preprocessing = Preprocessing.from_dict(facts["preprocessing"])
    pixels = preprocessing.read(Image.open(BytesIO(content)))
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    scores = session.run(["scores"], {"image": preprocessing.normalise(pixels[None]).numpy()})[0][0]
    powers = np.exp(scores - scores.max())
    return dict(zip(facts["classes"], powers / powers.sum(), strict=True))


@pytest.mark.browser
def test_the_zip_predicts_by_onnxruntime_and_in_a_browser_from_the_disk(tmp_path, browser):
    write_pictures(tmp_path / "mine", {"red": 6, "green": 6, "blue": 6})
    (tmp_path / "mine" / "red").rename(tmp_path / "mine" / NAME)
    new = picture((150, 90, 60), 5, size=(301, 220))
    (tmp_path / "new.png").write_bytes(new)
    with served(tmp_path / "mine", toy_backbone()) as server:
        page = browser.new_page()
        page.set_default_timeout(120_000)
        page.goto(server.address)
        learned(page)
        page.click("nav >> text=Take away")
        page.click("text=Pack the model")
        page.wait_for_selector("text=Pack again")
        with page.expect_download() as download:
            page.click("a:has-text('Download mine.zip')")
        with zipfile.ZipFile(download.value.path()) as archive:
            archive.extractall(tmp_path / "out")
        folder = tmp_path / "out" / "mine"
        shares = predicted(folder, new)
        best = max(shares, key=shares.get)
        assert (
            max(predicted(folder, picture(COLOURS["blue"], 9)).items(), key=lambda p: p[1])[0]
            == "blue"
        )
        if not has_runtime():
            pytest.skip("no onnxruntime-web: make runtime gets it from npm")
        away = browser.new_context(offline=True).new_page()
        away.goto(f"file://{folder / 'try.html'}")
        away.wait_for_selector("#choose:enabled")
        away.set_input_files("#file", tmp_path / "new.png")
        away.wait_for_selector("#bars li")
        shown = dict(line.split("\n") for line in away.locator("#bars li").all_inner_texts())
        assert set(shown) == set(shares)
        assert next(iter(shown)) == best
        for name, share in shares.items():
            assert abs(float(shown[name].removesuffix(" %")) / 100 - share) < 0.006
        away.evaluate(
            """() => {
              const devices = navigator.mediaDevices;
              const open = devices.getUserMedia.bind(devices);
              window.tracks = [];
              window.mayOpen = new Promise((resolve) => { window.release = resolve; });
              devices.getUserMedia = async (wishes) => {
                const stream = await open(wishes);
                tracks.push(...stream.getTracks());
                await mayOpen;
                return stream;
              };
            }"""
        )
        away.locator("#live").evaluate("live => { live.click(); live.click(); }")
        away.wait_for_function("() => tracks.length === 2")
        away.evaluate("release()")
        away.wait_for_selector("#live:text('Stop camera')")
        states = "() => tracks.map((track) => track.readyState).sort().join()"
        assert away.evaluate(states) == "ended,live"
        away.click("#live")
        assert away.evaluate(states) == "ended,ended"


@pytest.mark.browser
@pytest.mark.parametrize(
    "preprocessing",
    [
        Preprocessing(16, (0.0,) * 3, (1 / 255,) * 3, 0.875, "bicubic"),
        Preprocessing(40, (0.0,), (1 / 255,), 1.0, "bilinear"),
        Preprocessing(7, (0.0,) * 3, (1 / 255,) * 3, 0.61, "bilinear"),
    ],
    ids=str,
)
def test_the_script_prepares_pictures_as_pillow_does(preprocessing, browser):
    image = Image.open(BytesIO(picture(seed=3, size=(61, 37))))
    rgba = np.concatenate([np.array(image), np.full((37, 61, 1), 255)], 2).ravel().tolist()
    source = (runtime._FOLDER.parent / "template" / "resample.js").read_text()
    result = browser.new_page().evaluate(
        f"([data, settings]) => {{ {source}; return [...prepared({{ data, width: 61, "
        "height: 37 }, settings)]; }",
        [rgba, preprocessing.to_dict()],
    )
    expected = preprocessing.read(image).flatten().numpy()
    assert np.array_equal(np.round(result), expected)


def test_only_the_known_runtime_is_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(runtime, "_FOLDER", tmp_path / "runtime")
    package = tmp_path / "package.tgz"
    with tarfile.open(package, "w:gz") as archive:
        info = tarfile.TarInfo("package/dist/ort.wasm.bundle.min.mjs")
        info.size = 4
        archive.addfile(info, BytesIO(b"evil"))
    with pytest.raises(FileFormatError, match=r"expected ort.wasm.bundle.min.mjs"):
        install_runtime(package)
    assert not has_runtime()
