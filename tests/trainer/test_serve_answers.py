"""The answers and refusals of a real server, with a model of digits."""

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from tests.trainer.hosts import hosts
from tests.trainer.servers import (
    FORM,
    LAST,
    Server,
    encoded,
    form,
    inputs,
    samples,
    start,
)
from tests.trainer.strokes import draw

BODY, PIXELS = 100_000, 400_000


@pytest.fixture(scope="module")
def server(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with hosts(tmp_path_factory.mktemp("answers"), cold=True) as local:
        yield start(local, trained, body=BODY, pixels=PIXELS)


def test_the_test_samples_are_recognised(server: Server) -> None:
    labels = [str(label) for label in samples().labels.tolist()]
    found = [best for first in (0, 180) for best in server.predict(inputs(180, first)).best]
    right = sum(map(str.__eq__, found, labels))
    assert right / len(labels) > 0.95


def test_a_picture_is_shown_as_the_model_sees_it(server: Server) -> None:
    pixels = np.array(inputs(1)[0][0]).round().astype(np.uint8)  # As many as the model takes.
    body = form(encoded(Image.fromarray(pixels)))
    assert "input" not in server.ask("POST", "/predict/image", body, FORM).json["predictions"][0]
    for sent, expected in ((body, pixels), (form(encoded(draw(3))), None)):
        answer = server.ask("POST", "/predict/image?show=true", sent, FORM)
        kind, _, content = answer.json["predictions"][0]["input"].partition(",")
        assert kind == "data:image/png;base64"
        found = np.array(Image.open(io.BytesIO(base64.b64decode(content))))
        assert found.shape == (8, 8)
        # The data set has 17 values of 256.
        assert expected is None or np.abs(found.astype(int) - expected).max() <= 8
    assert server.ask("POST", "/predict/image?show=perhaps", body, FORM).status == 422


def test_an_answer_tells_its_classes_and_what_has_answered(server: Server) -> None:
    answer = server.predict(inputs(1)[0], top=3).json
    assert set(answer) == {"predictions", "checkpoint", "latency_ms", "batch_size"}
    classes = answer["predictions"][0]["classes"]
    assert len(answer["predictions"]) == 1
    assert len(classes) == 3
    shares = [each["probability"] for each in classes]
    assert shares == sorted(shares, reverse=True)
    assert 0.99 < sum(server_shares(server)) < 1.01
    assert all(each["class"] == str(each["index"]) for each in classes)
    checkpoint = answer["checkpoint"]
    assert checkpoint.pop("age_seconds") >= 0
    assert checkpoint.pop("accuracy") > 0.9
    expected = {"job": "digits", "name": LAST, "step": 360, "epoch": 8, "host": "n1"}
    assert checkpoint == {**expected, "choice": "newest"}
    latency = answer["latency_ms"]
    assert set(latency) == {"queue", "batch", "total"}
    assert latency["total"] >= latency["batch"] > 0


def server_shares(server: Server) -> list[float]:
    answer = server.predict(inputs(1)[0]).json
    return [float(each["probability"]) for each in answer["predictions"][0]["classes"]]


def test_one_sample_or_several_with_or_without_its_channel(server: Server) -> None:
    three = inputs(3)
    expected = server.predict(three).best
    assert len(expected) == 3
    assert server.predict([image[0] for image in three]).best == expected
    assert server.predict(three[1]).best == server.predict(three[1][0]).best == expected[1:2]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_pictures_of_the_models_own_size_are_taken_as_they_are(server: Server, kind: str) -> None:
    images = [
        Image.fromarray((image[0] * 15.9375).byte().numpy()) for image in samples().inputs[:12]
    ]
    found = [server.image(image, kind=kind).best[0] for image in images]
    right = [str(label) for label in samples().labels[:12].tolist()]
    assert sum(map(str.__eq__, found, right)) >= 11


def test_drawn_digits_are_recognised_wherever_and_however_they_are_drawn(server: Server) -> None:
    ways: list[dict[str, Any]] = [
        {},
        {"pen": 0.05, "scale": 0.8},
        {"scale": 0.5, "shift": (0.2, -0.2)},
        {"pen": 0.12, "scale": 1.1},
        {"slant": 0.1},
        {"side": 560},
    ]
    right = [
        server.image(draw(digit, **way), top=1).best == [str(digit)]
        for way in ways
        for digit in range(10)
    ]
    assert sum(right) / len(right) >= 0.9, right


def test_ink_on_paper_is_recognised_too(server: Server) -> None:
    paper = [ImageOps.invert(draw(digit)).point(lambda v: 60 + v * 0.7) for digit in range(10)]
    right = [
        server.image(image, kind="JPEG").best == [str(digit)] for digit, image in enumerate(paper)
    ]
    assert sum(right) >= 8


def test_the_camera_may_have_been_turned(server: Server) -> None:
    lying = draw(5).transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[0x0112] = 6  # Orientation: turn by 90 degrees clockwise.
    assert server.image(encoded(lying, "JPEG", exif=exif)).best == ["5"]
    assert server.image(encoded(lying, "JPEG")).best != ["5"]


def test_what_is_transparent_is_paper(server: Server) -> None:
    picture = Image.new("RGBA", (280, 280), (0, 0, 0, 0))
    picture.paste((0, 0, 0, 255), mask=draw(2))
    assert server.image(picture).best == ["2"]


def test_a_picture_in_base64(server: Server) -> None:
    body = {"image": base64.b64encode(encoded(draw(5))).decode(), "top": 1}
    answer = server.ask("POST", "/predict", json.dumps(body), "application/json")
    assert answer.best == ["5"]


ZEROS = [[0] * 8] * 8


def filled(number: str) -> str:
    """A sample of the same number everywhere, as JSON."""
    row = f"[{', '.join([number] * 8)}]"
    return f'{{"inputs": [{", ".join([row] * 8)}]}}'


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ("no json", 400, "not JSON"),
        ("[" * 30000, 400, "not JSON"),
        ("[]", 422, "not an object"),
        ("{}", 422, "either inputs or image"),
        ('{"inputs": []}', 422, "is empty"),
        (filled("NaN"), 422, "NaN or infinity"),
        (filled("1e999"), 422, "NaN or infinity"),
        (filled("1e39"), 422, "NaN or infinity"),
        (filled("1" + "0" * 400), 422, "a number of hundreds of digits"),
        ('{"inputs": [[1' + "0" * 5000 + "]]}", 400, "not JSON"),
        ('{"inputs": [[1], [1, 2]]}', 422, "not of the same length"),
        ('{"inputs": [["1"]]}', 422, "something else than numbers"),
        ('{"inputs": [[true]]}', 422, "something else than numbers"),
        ('{"inputs": [[null]]}', 422, "something else than numbers"),
        ('{"inputs": [[1, [2]]]}', 422, "not of the same length"),
        ('{"inputs": [[1], 2]}', 422, "not of the same length"),
        ('{"inputs": [[[[[1]]]]]}', 422, "more than 4 dimensions"),
        ('{"inputs": [[[]]]}', 422, "is empty"),
        (json.dumps({"inputs": ["A" * 9000] + [""] * 200}), 422, "something else than numbers"),
        (json.dumps({"inputs": ["A" * 50000] + [""] * 5000}), 413, "5001 samples in one request"),
        (json.dumps({"inputs": [[1] * 30000]}), 422, "longer than any that it takes"),
        ('{"inputs": {"a": 1}}', 422, "something else than numbers"),
        ('{"inputs": 3}', 422, "is no array, not 1 x 8 x 8"),
        ('{"inputs": [[1, 2], [3, 4]]}', 422, "is 2 x 2, not 1 x 8 x 8"),
        (json.dumps({"inputs": [[-1] * 8] * 8}), 422, "goes from -1 to -1"),
        (json.dumps({"inputs": [[256] * 8] * 8}), 422, "goes from 256 to 256"),
        (json.dumps({"inputs": ZEROS, "top": 0}), 422, "top: is not a valid number"),
        (json.dumps({"inputs": ZEROS, "topk": 3}), 422, "topk"),
        (json.dumps({"inputs": ZEROS, "": 3}), 422, "is no key of this request"),
        (json.dumps({"inputs": ZEROS, "top": True}), 422, "top: is not a valid number"),
        (json.dumps({"inputs": ZEROS, "top": "9" * 5000}), 422, "top: is not a valid number"),
        ('{"image": 3}', 422, "not base64"),
        ('{"image": "Zm9v"}', 415, "no picture that can be read"),
        (json.dumps({"inputs": [ZEROS] * 257}), 413, "257 samples in one request"),
    ],
)
def test_mistakes_are_answered_in_words(server: Server, body: str, status: int, words: str) -> None:
    answer = server.ask("POST", "/predict", body, "application/json")
    assert answer.status == status, answer.body
    assert set(answer.json) == {"error", "fix"}
    assert words in answer.json["error"]


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        (form(b"GIF89a no picture"), 415, "no picture that can be read"),
        (form(encoded(draw(3))[:-200]), 400, "the picture is damaged"),
        (form(encoded(Image.new("L", (1000, 401)))), 413, "1000 x 401 pixels"),
        (form(encoded(Image.new("L", (50, 50)))), 422, "nothing on the picture"),
        (form(encoded(draw(3)), file=""), 422, "no file in the field image"),
        (form(encoded(draw(3)), name="other"), 422, "no file in the field image"),
        (b"no form", 400, ""),
    ],
)
def test_mistakes_of_uploads_are_answered_in_words(
    server: Server, content: bytes, status: int, words: str
) -> None:
    answer = server.ask("POST", "/predict/image", content, FORM)
    assert answer.status == status, answer.body
    assert set(answer.json) == {"error", "fix"}
    assert words in answer.json["error"]


def test_other_types_and_paths_are_refused(server: Server) -> None:
    assert server.ask("POST", "/predict", "x", "text/plain").status == 415
    assert server.ask("POST", "/predict/image", "{}", "application/json").status == 415
    assert server.ask("POST", "/complete", "{}", "application/json").status == 404
    for path in ("/nowhere", "/page/../app.py", "/page/%2e%2e/app.py", "/swagger/../x"):
        assert server.get(path).status == 404
    wrong = server.get("/predict")
    assert (wrong.status, set(wrong.json)) == (405, {"error", "fix"})


def test_a_body_that_is_too_large_is_refused_while_it_is_read(server: Server) -> None:
    large = b" " * (BODY + 1)
    told = server.ask("POST", "/predict", large, "application/json")
    # In chunks, without a word on its length.
    untold = server.ask("POST", "/predict", iter([large[:BODY], b"  "]), "application/json")
    assert (told.status, untold.status) == (413, 413)
    for answer in (told, untold):
        assert "100000 bytes" in answer.json["fix"]
        assert answer.headers["connection"] == "close"
    chunked = iter([form(encoded(Image.effect_noise((400, 400), 99)))])
    assert server.ask("POST", "/predict/image", chunked, FORM).status == 413
    assert server.predict(inputs(1)).status == 200


def test_clients_of_the_same_moment_share_a_batch(server: Server) -> None:
    before = server.metric("kit_serve_batch_size_count")
    answers = server.several(24, inputs(1))
    assert {answer.status for answer in answers} == {200}
    assert max(answer.json["batch_size"] for answer in answers) > 1
    assert server.metric("kit_serve_batch_size_count") - before < 24


def test_figures_for_prometheus(server: Server) -> None:
    assert server.predict(inputs(1)).status == 200
    assert server.metric('kit_serve_requests_total{path="/predict",status="200"}') >= 1
    assert server.metric('kit_serve_latency_seconds_count{path="/predict"}') >= 1
    assert server.metric("kit_serve_checkpoint_step") == 360
    assert server.metric("kit_serve_reloads_total") == 1
    assert server.metric("kit_serve_queue_length") == 0
    assert server.metric("kit_serve_failures_total") == 0
    # An unknown path is not a label of the metrics.
    server.get("/nowhere-1")
    assert "nowhere" not in server.get("/metrics").body.decode()


def test_what_is_served(server: Server) -> None:
    model = server.get("/model").json
    assert model["input"]["shape"] == [1, 8, 8]
    assert model["classes"] == list("0123456789")
    assert (model["kind"], model["model"], model["precision"]) == ("image", "cnn", "fp32")
    assert (model["ready"], model["drawn"], model["replicas"]) == (True, True, ["cpu"])
    assert model["checkpoint"]["name"] == LAST


def test_nothing_is_asked_of_other_hosts(server: Server) -> None:
    for path in ("/", "/docs", "/page/page.css", "/page/page.js", "/page/docs.js"):
        answer = server.get(path)
        assert answer.status == 200
        text = answer.body.decode().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text
        assert "https://" not in text
        policy = answer.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "server" not in answer.headers
    described = server.get("/openapi.json").json["paths"]
    assert set(described) >= {"/predict", "/predict/image", "/complete", "/model", "/health"}
    assert described["/predict"]["post"]["requestBody"]["content"]["application/json"]
