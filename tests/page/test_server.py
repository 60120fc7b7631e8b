"""The server: what the page requests, and what strangers get."""

import asyncio
import errno
import os
import re
import zipfile
from io import BytesIO
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from PIL import Image
from support.page_cases import COLOURS, picture, toy_backbone, write_pictures

pytest.importorskip("fastapi", reason="the extra page is not installed")

from starlette.testclient import TestClient

from neural_similarity.page import open_project
from neural_similarity.page.engine import Engine
from neural_similarity.page.project.pictures import MOST_BYTES
from neural_similarity.page.server import create_app
from neural_similarity.page.server.app import STATIC
from neural_similarity.page.server.events import Events
from neural_similarity.page.server.guard import MOST_JSON

PORT, TOKEN = 8350, "the-token"
HOME = f"http://127.0.0.1:{PORT}"
SAME = {"origin": HOME}


class Page(TestClient):
    """A browser that opened the address, and waits for news where it must."""

    def __init__(self, app, engine, news):
        super().__init__(app, base_url=HOME, headers=SAME, raise_server_exceptions=True)
        self.engine, self.news = engine, news

    def state(self):
        answer = self.get("/api/state")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def wait_for(self, what):
        while not what(state := self.state()):
            assert self.news.wait(60), state
            self.news.clear()
        return state

    def wait_for_lesson(self):
        return self.wait_for(lambda s: self.engine.is_up_to_date and s["status"]["stage"] == "idle")


@pytest.fixture
def page(tmp_path):
    news = Event()
    write_pictures(tmp_path / "p", {"red": 5, "blue": 5})
    with open_project(tmp_path / "p") as project:
        engine, events = Engine(project, toy_backbone(), pause=0), Events()
        publish = events.publish
        events.publish = lambda: (publish(), news.set())
        client = Page(create_app(project, engine, TOKEN, PORT, events), engine, news)
        assert client.get(f"/?token={TOKEN}").status_code == 200
        engine.start()
        try:
            yield client
        finally:
            engine.stop()


def class_id(page, name):
    return next(one["id"] for one in page.state()["classes"] if one["name"] == name)


def test_the_token_becomes_a_cookie_that_scripts_and_sites_do_not_get(page):
    page.cookies.clear()
    answer = page.get(f"/?token={TOKEN}")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert TOKEN not in answer.text
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert page.get("/api/state").status_code == 200


def test_a_token_for_a_single_use_opens_once(tmp_path):
    with open_project(tmp_path) as project:
        app = create_app(project, Engine(project, toy_backbone()), TOKEN, PORT, once="once")
        codes = [TestClient(app, base_url=HOME).get("/?token=once").status_code for _ in range(2)]
        assert codes == [200, 403]
        page = TestClient(app, base_url=HOME)
        assert page.get(f"/?token={TOKEN}").status_code == 200
        assert page.get("/api/state").status_code == 200


@pytest.mark.parametrize(
    "path", ["/api/state", "/api/events", "/static/index.html", "/api/take-away"]
)
def test_without_the_token_there_is_nothing(page, path):
    page.cookies.clear()
    for address in (path, f"{path}?token={TOKEN}", f"{path}?token="):
        answer = page.get(address)
        assert answer.status_code == 403
        assert "nsl teach" in answer.json()["error"]
    wrong = page.get("/?token=wrong")
    assert wrong.status_code == 403
    assert "set-cookie" not in wrong.headers
    assert page.get("/", headers={"cookie": f"nsl_teach_{PORT}=é".encode()}).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": f"evil.example:{PORT}"},
        {"host": "127.0.0.1"},
        {"host": f"127.0.0.1:{PORT}.evil.example"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": f"http://localhost:{PORT}"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
    ids=str,
)
def test_other_hosts_and_other_sites_are_refused(page, headers):
    before = page.state()["revision"]
    for answer in (
        page.get("/api/state", headers=headers),
        page.post("/api/classes", json={"name": "evil"}, headers=headers),
    ):
        assert answer.status_code == 403
        assert list(answer.json()) == ["error"]
    assert page.state()["revision"] == before


@pytest.mark.parametrize(
    "other",
    ['prefs={"x":1}', "a=b c", "consent", "name=J\u00fcrgen", 'u="a', "d=Mon, 01 Jan", "a[b]=1"],
)
def test_cookies_of_other_programs_do_not_matter(page, other):
    cookie = f"nsl_teach_{PORT}={TOKEN}"
    page.cookies.clear()
    for header in (f"{other}; {cookie}", f"{cookie}; {other}"):
        answer = page.get("/api/state", headers={"cookie": header.encode()})
        assert answer.status_code == 200


def test_a_change_needs_an_origin(page):
    del page.headers["origin"]
    assert page.post("/api/classes", json={"name": "evil"}).status_code == 403
    assert page.delete(f"/api/classes/{class_id(page, 'red')}").status_code == 403
    assert page.get("/api/state").status_code == 200


def test_every_answer_has_the_policy(page):
    for path in ("/", "/api/state", "/nowhere", "/static/index.html"):
        headers = page.get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self';")
        assert "unsafe" not in policy
        assert "http" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"


def test_the_page_asks_for_all_its_modules_at_once(page):
    text = page.get("/").text
    modules = sorted(
        re.findall(r"(?:modulepreload\" href|module\" src)=\"/static/js/(.*?)\"", text)
    )
    assert modules == sorted(path.name for path in (STATIC / "js").iterdir())


def test_names_and_addresses_lead_nowhere_else(page):
    for path in ("../../etc/passwd", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "red", "%2e%2e", "%00"):
        for address in (f"/api/pictures/{path}", f"/static/{path}", f"/api/classes/{path}"):
            answer = page.get(address)
            assert answer.status_code in (404, 405), address
            assert list(answer.json()) == ["error"]
    answer = page.post("/api/classes", json={"name": "../evil"})
    assert (answer.status_code, answer.json()["error"]) == (
        400,
        "A class name cannot contain / or \\.",
    )
    answer = page.post("/api/bin/..%2f..%2fred/restore")
    assert answer.status_code == 404


def test_markup_as_a_name_stays_text(page):
    name = "<img src=x onerror=alert(1)>"
    assert page.post("/api/classes", json={"name": name}).status_code == 400
    (page.engine.project.folder / name).mkdir()  # a folder of somebody else
    page.engine.project.refresh()
    answer = page.get("/api/state")
    assert answer.headers["content-type"] == "application/json"
    assert name in [one["name"] for one in answer.json()["classes"]]


@pytest.mark.parametrize("body", [{}, {"name": 3}, {"name": "x" * 1001}, [], "text"])
def test_what_the_page_never_sends_is_one_sentence(page, body):
    answer = page.post("/api/classes", json=body)
    assert (answer.status_code, list(answer.json())) == (400, ["error"])


def test_a_long_body_is_refused_before_it_is_read(page):
    address = f"/api/classes/{class_id(page, 'red')}/pictures"
    answer = page.post(address, content=b"", headers={"content-length": str(2**30)})
    assert answer.status_code == 413
    assert answer.json()["error"] == "The file is larger than 32 MB."
    answer = page.post("/api/move", content=b"x" * (MOST_JSON + 1))
    assert answer.status_code == 413
    assert answer.json()["error"] == "The request is larger than 1 MB."


@pytest.mark.parametrize(
    ("path", "limit"), [("/api/classes/{red}/pictures", MOST_BYTES), ("/api/move", MOST_JSON)]
)
def test_a_body_of_unknown_length_is_cut_off_while_it_arrives(page, path, limit):
    sent, piece = 0, bytes(2**20)

    async def receive():
        nonlocal sent
        sent += len(piece)
        return {"type": "http.request", "body": piece, "more_body": sent < 2**30}

    answers = []

    async def send(message):
        answers.append(message)

    address = path.format(red=class_id(page, "red"))
    scope = {
        "type": "http", "method": "POST", "path": address, "raw_path": address.encode(),
        "query_string": b"", "http_version": "1.1", "scheme": "http",
        "headers": [
            (b"host", f"127.0.0.1:{PORT}".encode()), (b"origin", HOME.encode()),
            (b"cookie", f"nsl_teach_{PORT}={TOKEN}".encode()), (b"transfer-encoding", b"chunked"),
            (b"content-type", b"application/json"),
        ],
    }  # fmt: skip
    asyncio.run(page.app(scope, receive, send))
    assert answers[0]["status"] == 413
    assert sent <= limit + 2 * len(piece)


def test_pictures_that_are_none_are_named_and_skipped(page):
    address = f"/api/classes/{class_id(page, 'red')}/pictures"
    bomb = BytesIO()
    Image.new("1", (10_000, 10_000)).save(bomb, "PNG")
    count = len(page.state()["classes"][1]["pictures"])
    for content, status, words in (
        (b"<script>alert(1)</script>", 415, "not a readable picture"),
        (bomb.getvalue(), 413, "60 million"),
        (picture(COLOURS["red"], 0), 409, "already"),
        (picture(size=(90, 80))[:2000], 415, "damaged"),
    ):
        answer = page.post(address, params={"name": "x.png"}, content=content)
        assert answer.status_code == status
        assert words in answer.json()["error"]
    assert len(page.state()["classes"][1]["pictures"]) == count


def test_pictures_come_back_as_small_jpegs(page):
    address = f"/api/classes/{class_id(page, 'red')}/pictures"
    new = page.post(address, params={"name": "../../a.html"}, content=picture(seed=50)).json()
    assert new["name"] == "a.png"
    answer = page.get(f"/api/pictures/{new['id']}")
    assert answer.headers["content-type"] == "image/jpeg"
    assert Image.open(BytesIO(answer.content)).format == "JPEG"


def test_a_lesson_from_first_to_last(page):
    state = page.wait_for_lesson()
    lesson = state["lesson"]
    assert lesson["accuracy"] > 0.8
    assert lesson["interval"][0] < lesson["accuracy"] <= lesson["interval"][1] + 1e-9
    assert lesson["is_current"]
    assert lesson["is_complete"]
    assert np.sum(lesson["confusion"]) == len(lesson["tests"]) == 10
    assert [point["pictures"] for point in state["history"]] == [10]
    red = class_id(page, "red")
    wrong = page.post(f"/api/classes/{red}/pictures", content=picture(COLOURS["blue"], 70)).json()
    state = page.wait_for_lesson()
    assert [one["id"] for one in state["lesson"]["suspects"]] == [wrong["id"]]
    page.post(f"/api/keep/{wrong['id']}")
    assert page.wait_for_lesson()["lesson"]["suspects"] == []
    page.patch(f"/api/classes/{red}", json={"name": "rouge"})
    state = page.wait_for_lesson()
    assert [one["name"] for one in state["lesson"]["classes"]] == ["blue", "rouge"]
    assert state["lesson"]["suspects"] == []
    (wrong,) = (one for one in state["classes"][1]["pictures"] if one["name"] == wrong["name"])
    answer = page.post("/api/move", json={"ids": [wrong["id"]], "to": class_id(page, "blue")})
    assert counts_in(page.wait_for_lesson()) == {"blue": 6, "rouge": 5}
    assert answer.json()["revision"] <= page.state()["revision"]
    assert page.post(f"/api/moves/{answer.json()['move']}/undo").status_code == 200
    assert counts_in(page.wait_for_lesson()) == {"blue": 5, "rouge": 6}
    assert page.post(f"/api/moves/{answer.json()['move']}/undo").status_code == 409


def counts_in(state):
    return {one["name"]: len(one["pictures"]) for one in state["classes"]}


def test_pictures_in_no_class_are_in_the_state(page):
    assert page.state()["loose"] == {"count": 0, "names": []}
    for number in range(5):
        (page.engine.project.folder / f"{number}.jpg").write_bytes(picture(seed=number))
    page.engine.project.refresh()
    assert page.state()["loose"] == {"count": 5, "names": ["0.jpg", "1.jpg", "2.jpg"]}


def test_a_class_on_another_disk_is_said_to_be_one(page, monkeypatch):
    def rename(self, target):
        raise OSError(errno.EXDEV, "Invalid cross-device link", str(self))

    id = page.state()["classes"][1]["pictures"][0]["id"]
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        for answer in (
            page.post("/api/delete", json={"ids": [id]}),
            page.post("/api/move", json={"ids": [id], "to": class_id(page, "blue")}),
        ):
            assert answer.status_code == 409
            assert "their class is a link" in answer.json()["error"]
    assert page.state()["bin"] == []
    assert counts_in(page.state()) == {"blue": 5, "red": 5}


def test_try_says_what_it_sees(page):
    page.wait_for_lesson()
    answer = page.post("/api/try", content=picture(COLOURS["blue"], 0)).json()
    assert answer["classes"][0]["name"] == "blue"
    assert answer["known"]
    assert len(answer["nearest"]) == 5
    assert page.post("/api/try", content=b"no").status_code == 415


def test_deleting_can_be_undone(page):
    red = class_id(page, "red")
    ids = [one["id"] for one in page.state()["classes"][1]["pictures"][:2]]
    answer = page.post("/api/delete", json={"ids": ids}).json()
    (entry,) = answer["entries"]
    state = page.state()
    assert answer["revision"] <= state["revision"]
    assert [one["count"] for one in state["bin"]] == [2]
    assert page.post(f"/api/bin/{entry}/restore").json() == {"id": red}
    assert page.post("/api/delete", json={"ids": ["gone"]}).status_code == 404
    page.delete(f"/api/classes/{red}")
    assert page.delete("/api/bin").status_code == 200
    assert page.state()["bin"] == []
    assert [one["name"] for one in page.state()["classes"]] == ["blue"]


def test_nothing_to_try_or_take_without_two_classes(page):
    page.delete(f"/api/classes/{class_id(page, 'red')}")
    assert page.wait_for_lesson()["lesson"] is None
    for address in ("/api/try", "/api/take-away"):
        answer = page.post(address)
        assert (answer.status_code, "two classes" in answer.json()["error"]) == (409, True)
    assert page.get("/api/take-away").status_code == 404


def test_the_zip_is_the_folder_of_adapt(page, tmp_path, monkeypatch):
    monkeypatch.setattr("neural_similarity.page.takeaway.packing._has_onnx", lambda: False)
    accuracy = page.wait_for_lesson()["lesson"]["accuracy"]
    assert page.post("/api/take-away").status_code == 200
    state = page.wait_for(lambda s: s["packing"]["state"] != "working")
    assert state["packing"]["state"] == "ready", state["packing"]
    assert state["packing"]["is_current"]
    answer = page.get("/api/take-away")
    assert answer.headers["content-disposition"] == 'attachment; filename="p.zip"'
    with zipfile.ZipFile(BytesIO(answer.content)) as archive:
        archive.extractall(tmp_path / "out")
    from neural_similarity.adapt import FewShotClassifier

    loaded = FewShotClassifier.load(tmp_path / "out" / "p", toy_backbone())
    assert loaded.cross_validation_.accuracy == pytest.approx(accuracy)
    blue = Image.open(BytesIO(picture(COLOURS["blue"], 91)))
    assert loaded.predict([blue]).tolist() == ["blue"]
    names = {path.name for path in (tmp_path / "out" / "p").iterdir()}
    assert {"README.txt", "labels.json", "report.html"} <= names


def test_news_reach_every_page_and_become_one_if_they_come_fast():
    async def run():
        events = Events()
        one, two = events.open_stream(), events.open_stream(sign_of_life=0.001)
        for stream in (one, two):
            assert (await anext(stream)).startswith(b"event: news")
        assert await anext(two) == b"event: alive\ndata: 0\n\n"
        for _ in range(5):
            events.publish()
        assert await anext(one) == b"event: news\ndata: 5\n\n"
        events.close()
        return [part async for part in one]

    assert asyncio.run(run()) == []


def test_a_project_whose_path_is_no_text_is_shown(tmp_path):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("this disk has only names in UTF-8")
    with open_project(folder) as project:
        engine = Engine(project, toy_backbone())
        page = TestClient(create_app(project, engine, TOKEN, PORT), base_url=HOME)
        page.get(f"/?token={TOKEN}")
        state = page.get("/api/state").json()
        assert state["project"] == "caf\ufffd"
        assert state["folder"].endswith("/caf\ufffd")


@pytest.mark.parametrize(("port", "status"), [(80, 200), (PORT, 403)])
def test_browsers_leave_out_the_usual_port(tmp_path, port, status):
    with open_project(tmp_path) as project:
        app = create_app(project, Engine(project, toy_backbone()), TOKEN, port)
        page = TestClient(app, base_url="http://127.0.0.1")
        assert page.get(f"/?token={TOKEN}").status_code == status
        headers = {"origin": "http://127.0.0.1"}
        answer = page.post("/api/classes", json={"name": "red"}, headers=headers)
        assert answer.status_code == status
        assert page.get("/", headers={"host": "evil.example"}).status_code == 403


@pytest.mark.parametrize("turn", [3, 6])
def test_a_turned_photo_is_tried_as_the_classifier_sees_it(page, turn):
    """The toy network sees where colours are, so a picture that is turned twice is another one."""
    page.wait_for_lesson()
    pixels = np.zeros((48, 48, 3), np.uint8)
    pixels[:24] = COLOURS["red"]
    pixels[24:] = COLOURS["blue"]
    exif, file = Image.Exif(), BytesIO()
    exif[0x0112] = turn
    Image.fromarray(pixels).save(file, "PNG", exif=exif)
    (page.engine.project.folder / "photo.png").write_bytes(file.getvalue())
    classifier = page.engine.lesson.classifier
    photo = page.engine.project.folder / "photo.png"
    (shares,) = classifier.predict_proba([photo]).tolist()
    expected = dict(zip(classifier.classes_, shares, strict=True))
    answer = page.post("/api/try", content=file.getvalue()).json()
    assert answer["classes"][0]["name"] == classifier.predict([photo])[0]
    for one in answer["classes"]:
        assert one["probability"] == pytest.approx(expected[one["name"]], abs=1e-4)  # rounded
