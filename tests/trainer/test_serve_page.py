"""The page for people, in a real Chromium: by mouse, by finger, by keyboard, and when it fails."""

import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageOps

from tests.trainer.browser import Page, browser
from tests.trainer.hosts import Hosts, hosts, wait_until
from tests.trainer.servers import Server, encoded, put, start
from tests.trainer.strokes import STROKES, draw
from tests.trainer.test_serve_models import CHARACTERS, fresh, training
from trainer.checkpoints import format as checkpoint

FIRST, SECOND = "step-00000045", "step-00000360"
READY = "document.querySelector('#state-text')?.textContent === 'Ready'"
ANSWERED = (
    "!document.querySelector('#result').hidden"
    " && !document.querySelector('#result').classList.contains('busy')"
)
SEEN = "(image => image.decode().then(() => [image.naturalWidth, image.naturalHeight]))"
TOKEN = "a-token-of-32-characters-or-more"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser")) as result:
        yield result


@pytest.fixture(scope="module")
def server(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with hosts(tmp_path_factory.mktemp("page")) as local:
        yield start(local, trained)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Hosts]:
    with hosts(tmp_path) as result:
        yield result


def visit(
    page: Page, server: Server, width: int = 1280, height: int = 800, scheme: str = "light"
) -> None:
    page.open("about:blank")  # The page before asks a server that may have ended.
    page.events.clear()
    page.show(width, height, scheme)
    page.open(f"http://127.0.0.1:{server.port}/")
    page.until(READY)


def recognise(page: Page, digit: int) -> str:
    """Draw a digit on the cleared board with the mouse; return the page's answer."""
    page.click("#clear")
    for line in STROKES[digit]:
        page.drag("#canvas", line)
    page.until(ANSWERED)
    return page.text("#best")


def require_clean(page: Page, server: Server) -> None:
    """No error in the console, and no request to anybody else."""
    assert page.complaints() == []
    own = (f"http://127.0.0.1:{server.port}/", "data:", "blob:")
    assert [url for url in page.requested() if not url.startswith(own)] == []


def test_drawn_digits_are_recognised(page: Page, server: Server, tmp_path: Path) -> None:
    visit(page, server)
    found = [recognise(page, digit) for digit in range(10)]
    assert sum(best == str(digit) for digit, best in enumerate(found)) >= 8, found
    rows = page.run("document.querySelectorAll('#bars li').length")
    assert rows == 10
    assert "probable" in page.text("#sure")
    assert "Answered in " in page.text("#timing")
    # A tiny probability is not shown as zero.
    assert "0.0 %" not in page.text("#bars")
    assert "< 0.1 %" in page.text("#bars")
    assert page.run(f"{SEEN}(document.querySelector('#seen'))") == [8, 8]
    assert "8 × 8" in page.text("#seen-size")
    assert "says which of 10 classes it is" in page.text("#lead")
    curl = f"curl http://127.0.0.1:{server.port}/predict/image -F image=@digit.png"
    assert page.text("#curl") == curl
    facts = page.text("#facts")
    for words in ("digits", "360 (epoch 8)", " %", "ago, on n1", "cnn, fp32", "CPU"):
        assert words in facts
    picture = Image.open(io.BytesIO(page.screenshot(tmp_path / "page.png")))
    assert picture.size == (1280, 800)
    assert len(set(picture.convert("L").resize((64, 40)).tobytes())) > 20
    require_clean(page, server)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone(page: Page, server: Server, scheme: str, tmp_path: Path) -> None:
    visit(page, server, 320, 640, scheme)
    left, top, side, _ = page.run(f"(b => [b.x, b.y, b.width, b.height])({page.box('#canvas')})")
    for line in STROKES[0]:
        points: list[dict[str, float]] = [
            {"x": left + x * side, "y": top + y * side} for x, y in line
        ]
        for number, point in enumerate(points):
            kind = "touchMove" if number else "touchStart"
            page.send("Input.dispatchTouchEvent", type=kind, touchPoints=[point])
        page.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    page.until(ANSWERED)
    assert page.text("#best") == "0"
    # Nothing sticks out, and nothing was scrolled by drawing.
    assert page.run("document.documentElement.scrollWidth") == 320
    assert page.run("scrollY") == 0
    picture = Image.open(io.BytesIO(page.screenshot(tmp_path / "phone.png"))).convert("L")
    corner = picture.tobytes()[300 * picture.width + 2]
    assert (corner > 200) == (scheme == "light")
    require_clean(page, server)


def test_the_keyboard_alone(page: Page, server: Server) -> None:
    visit(page, server)
    for _ in range(12):
        page.key("Tab", 9)
        if page.run("document.activeElement.id") == "canvas":
            break
    assert page.run("document.activeElement.id") == "canvas"
    for name, code, times in (
        *(("ArrowUp", 38, 7), (" ", 32, 1), ("ArrowDown", 40, 14), (" ", 32, 1)),
    ):
        for _ in range(times):
            page.key(name, code)
    page.until(ANSWERED)
    assert page.text("#best") == "1"
    page.until("document.querySelector('#announce').textContent.startsWith('1, ')")
    page.key("Delete", 46)
    assert page.run("document.querySelector('#result').hidden")
    page.key("Tab", 9)
    assert page.run("document.activeElement.id") == "clear"
    require_clean(page, server)


def test_whoever_hears_the_page_hears_names(page: Page, server: Server) -> None:
    visit(page, server)
    recognise(page, 3)
    nodes = page.send("Accessibility.getFullAXTree")["nodes"]

    def says(node: dict[str, Any], key: str) -> str:
        return str(node.get(key, {}).get("value", ""))

    reachable = [
        node
        for node in nodes
        for about in node.get("properties", [])
        if about["name"] == "focusable" and about["value"]["value"]
    ]
    assert len(reachable) > 4
    nameless = [node for node in reachable if not says(node, "name") and not node.get("ignored")]
    assert [node for node in nameless if says(node, "role") != "RootWebArea"] == []
    roles = {says(node, "role") for node in nodes}
    assert {"main", "tablist", "tab", "tabpanel", "status", "heading", "list"} <= roles


CONTRASTS = Path(__file__).with_name("contrasts.js").read_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_borders_bars_and_texts_can_be_seen(page: Page, server: Server, scheme: str) -> None:
    visit(page, server, 1280, 800, scheme)
    recognise(page, 4)
    found = page.run(CONTRASTS)
    page.click("#tab-file")
    page.run("problem.show('A fault', () => 0), askToken(), tokenFault('A fault')")
    found += page.run(CONTRASTS)
    assert {each["kind"] for each in found} == {"border", "bar", "text"}
    assert len(found) > 100
    least = {"border": 3, "bar": 3, "text": 4.5}
    assert [each for each in found if each["contrast"] < least[each["kind"]]] == []


def test_a_page_that_nobody_sees_asks_nothing(page: Page, server: Server) -> None:
    visit(page, server)

    def asked() -> int:
        return sum(url.endswith("/model") for url in page.requested())

    before = asked()
    wait_until(lambda: asked() > before, "another look")
    other = page.hide()
    page.until("document.hidden")
    before = asked()
    time.sleep(10)  # Longer than between three looks.
    assert asked() <= before + 1
    page.close(other)
    page.until("!document.hidden")
    before = asked()
    wait_until(lambda: asked() > before, "a look at once")


LONG_NAMES = tuple(
    f"{kind} with a long name, of the family of {family} (see the list of species), {number}"
    for number, (kind, family) in enumerate(
        zip(("Warbler", "Sparrow", "Llanfairpwllgwyngyllgogerychwyrndrobwll"), "ABC", strict=True)
    )
)


def test_long_names_of_classes(page: Page, local: Hosts, tmp_path: Path) -> None:
    job = training("folder", "lenet")
    saved, _ = fresh(job, LONG_NAMES, (3, 32, 32))
    checkpoint.write(tmp_path / "own", saved, job, 1)
    server = start(local, tmp_path / "own", job="demo")
    file = tmp_path / "photo.jpg"
    file.write_bytes(encoded(Image.new("RGB", (640, 480), "teal"), "JPEG"))
    for width in (320, 1280):
        visit(page, server, width)
        assert page.text("#curl").endswith("/predict/image -F image=@picture.png")
        choose(page, file)
        page.until(ANSWERED)
        assert page.run("(e => e.scrollWidth - e.clientWidth)(document.documentElement)") == 0
        assert page.run(f"{SEEN}(document.querySelector('#seen'))") == [32, 32]
        parts = "[...document.querySelectorAll('.label, .track, .share')]"
        boxes = page.run(f"{parts}.map((each) => each.getBoundingClientRect().width)")
        assert min(boxes) >= 40
        for name in LONG_NAMES:
            assert name in page.text("#bars")


def choose(page: Page, file: Path) -> None:
    document = page.send("DOM.getDocument")["root"]["nodeId"]
    node = page.send("DOM.querySelector", nodeId=document, selector="#file")["nodeId"]
    page.send("DOM.setFileInputFiles", nodeId=node, files=[str(file)])


def test_a_file_and_one_that_is_none(page: Page, server: Server, tmp_path: Path) -> None:
    visit(page, server)
    good, bad = tmp_path / "five.jpg", tmp_path / "none.png"
    good.write_bytes(encoded(ImageOps.invert(draw(5)), "JPEG"))
    bad.write_bytes(b"no picture")
    page.click("#tab-file")
    choose(page, good)
    page.until(ANSWERED)
    assert page.text("#best") == "5"
    assert page.run("document.querySelector('#preview').naturalWidth") == 280
    # The answer is that of the tab's own picture.
    page.click("#tab-draw")
    page.until("!document.querySelector('#empty').hidden")
    assert page.run("document.querySelector('#result').hidden")
    assert recognise(page, 0) == "0"
    page.click("#tab-file")
    page.until("document.querySelector('#best').textContent === '5'")
    choose(page, bad)
    page.until("!document.querySelector('#problem').hidden")
    assert page.run("document.querySelector('#result').hidden")
    assert page.text("#problem").startswith("This is no picture that can be read; send a whole PNG")
    assert page.run("document.querySelector('#problem button').hidden")
    page.until("document.querySelector('#preview').hidden")
    assert "none.png" in page.text("#drop")
    choose(page, good)
    page.until(ANSWERED)
    choose(page, good)
    page.until(ANSWERED)


def test_it_waits_for_a_checkpoint_and_takes_a_newer_one(
    page: Page, trained: Path, local: Hosts, tmp_path: Path
) -> None:
    folder = tmp_path / "own"
    server = start(local, folder, wait="/health")
    page.show(1280, 800)
    page.open(f"http://127.0.0.1:{server.port}/")
    page.until("document.querySelector('#state-text')?.textContent === 'Not ready yet'")
    waiting = "The training digits has not saved yet. This page then continues by itself."
    page.until(f"document.querySelector('#waiting-text').textContent === '{waiting}'")
    put(trained, folder, FIRST)
    page.until(READY)
    assert "45 (epoch 1)" in page.text("#facts")
    recognise(page, 0)
    put(trained, folder, SECOND)
    page.until("document.querySelector('#newer').textContent.includes('step 360')")
    page.until("document.querySelector('#timing').textContent.endsWith('by step 360')")
    server.task.end()
    page.until("document.querySelector('#state-text').textContent === 'No connection'")
    page.click("#clear")
    page.drag("#canvas", STROKES[1][0])
    page.until("document.querySelector('#problem').textContent.includes('There is no connection')")
    assert page.run("document.querySelector('#result').hidden")
    page.click("#problem button")
    page.until("!document.querySelector('#problem').hidden")
    # The drawing is sent again automatically.
    start(local, folder, port=server.port)
    page.until(READY)
    page.until(ANSWERED)
    assert page.run("document.querySelector('#problem').hidden")


def test_it_asks_for_the_token(page: Page, trained: Path, local: Hosts) -> None:
    server = start(local, trained, environ={"SECRET": TOKEN}, token="SECRET")
    page.show(390, 844)
    page.open(f"http://127.0.0.1:{server.port}/")
    page.until("document.activeElement?.id === 'token'")
    fault = "document.querySelector('#token-fault').textContent"
    for text, words in (
        ("wrong", "The server does not accept this token."),
        ("of two words", "A token has letters, digits and signs of ASCII, without spaces."),
    ):
        page.send("Input.insertText", text=text)
        page.until(f"{fault} === ''")
        page.key("Enter", 13, "\r")
        page.until(f"{fault} === {json.dumps(words)}")
        assert page.run("document.querySelector('#token').getAttribute('aria-invalid')") == "true"
        assert page.run("document.activeElement.id") == "token"
        assert page.run("sessionStorage.getItem('token')") is None
    page.send("Input.insertText", text=TOKEN)
    page.key("Enter", 13, "\r")
    page.until(READY)
    assert page.run("document.querySelector('#token-form').hidden")
    assert page.run("sessionStorage.getItem('token')") == TOKEN
    address = f"http://127.0.0.1:{server.port}/predict/image"
    header = '-H "Authorization: Bearer $TOKEN"'
    assert page.text("#curl") == f"curl {address} {header} -F image=@digit.png"
    assert TOKEN not in page.text("body")
    assert recognise(page, 0) == "0"


def test_a_text_is_gone_on_with(page: Page, local: Hosts, tmp_path: Path) -> None:
    job = training("text", "gpt")
    saved, _ = fresh(job, CHARACTERS, (8,))
    checkpoint.write(tmp_path / "own", saved, job, 1)
    server = start(local, tmp_path / "own", job="demo")
    visit(page, server)
    assert page.run("document.querySelector('#pictures').hidden")
    page.click("#text")
    page.send("Input.insertText", text="abc")
    page.click("#go")
    page.until("!document.querySelector('#completion').hidden")
    # The text as it was written, and 200 more characters.
    assert page.run("document.querySelector('#completion').textContent.length") == 203
    require_clean(page, server)
    page.click("#text")
    page.send("Input.insertText", text="xyz")
    page.click("#go")
    page.until("document.querySelector('#text-problem').textContent.includes('never seen')")


def test_the_routes_page_needs_nobody_else(page: Page, server: Server) -> None:
    page.open("about:blank")
    page.events.clear()
    page.open(f"http://127.0.0.1:{server.port}/docs")
    page.until("document.querySelectorAll('.opblock').length >= 6")
    assert json.dumps(page.text("#docs")).count("/predict") >= 2
    require_clean(page, server)
    wait_until(lambda: page.run("document.readyState") == "complete", "all is there")
