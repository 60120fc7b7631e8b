"""The page in a real browser: by mouse, by keyboard, by camera, and for a screen reader."""

import re
import shutil
from base64 import b64encode

import pytest
from support.page_cases import COLOURS, names_in, picture, toy_backbone, write_pictures
from support.page_server import AXE, chromium, learned, served

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser():
    with chromium() as opened:
        yield opened


@pytest.fixture
def open_page(browser):
    """Opens pages that fail the test if a script of theirs fails."""
    contexts, troubles = [], []

    def open_page(address, **options):
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.goto(address)
        page.wait_for_selector("#view-teach h1")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert troubles == []


@pytest.fixture
def server(tmp_path):
    with served(tmp_path / "mine", toy_backbone()) as running:
        yield running


@pytest.fixture
def taught(tmp_path):
    """A project with three classes, of which one picture has a wrong label."""
    write_pictures(tmp_path / "mine", {"red": 7, "green": 7, "blue": 7})
    wrong = tmp_path / "mine" / "red" / "wrong.png"
    wrong.write_bytes(picture(COLOURS["blue"], 50))
    with served(tmp_path / "mine", toy_backbone()) as running:
        yield running


def drop(page, selector, files):
    """Let files fall on an element."""
    contents = [[name, b64encode(content).decode()] for name, content in files.items()]
    script = """files => {
      const transfer = new DataTransfer();
      for (const [name, text] of files) {
        const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
        transfer.items.add(new File([bytes], name, { type: "image/png" }));
      }
      return transfer;
    }"""
    transfer = page.evaluate_handle(script, contents)
    for kind in ("dragenter", "dragover", "drop"):
        page.dispatch_event(selector, kind, {"dataTransfer": transfer})


def card(name):
    return f'article[aria-label="{name}"]'


def wait_for_count(page, selector, count):
    page.wait_for_function(
        "([selector, count]) => document.querySelectorAll(selector).length === count",
        arg=[selector, count],
    )


def wait_for_focus(page, name):
    page.wait_for_function("name => document.activeElement.dataset.name === name", arg=name)


def test_three_classes_from_nothing_and_all_is_there_after_a_reload(server, open_page):
    page = open_page(server.address)
    assert "token" not in page.url
    page.wait_for_selector("#view-teach .lead >> text=Start here")
    for label, colour in COLOURS.items():
        page.fill("#new-class", label)
        page.press("#new-class", "Enter")
        page.wait_for_selector(card(label))
        files = {f"{seed}.png": picture(colour, seed) for seed in range(6)}
        drop(page, card(label), files | {"notes.txt": b"no picture"})
        wait_for_count(page, f"{card(label)} .picture", 6)
    assert re.match(r"\d+\s% accuracy on new pictures \(\d+\s% to \d+\s%\)", learned(page))
    page.wait_for_selector("#notices >> text=notes.txt: It is not a readable picture")
    page.reload()
    assert "accuracy on new pictures" in learned(page)
    wait_for_count(page, ".picture", 18)


def test_a_wrong_label_is_moved_and_the_matrix_opens_its_pictures(taught, open_page):
    page = open_page(taught.address)
    learned(page)
    page.click("nav >> text=See")
    page.click("table.matrix button[aria-label='1 picture of red, classified as blue']")
    page.wait_for_selector(".behind img[alt='wrong.png']")
    page.click("text=Move to blue")
    page.wait_for_selector("text=No label looks wrong.")
    assert (taught.project.folder / "blue" / "wrong.png").exists()
    learned(page)
    wait_for_count(page, "td.wrong button", 0)


def test_a_picture_is_tried(taught, open_page):
    page = open_page(taught.address)
    learned(page)
    page.click("nav >> text=Try")
    drop(page, ".zone", {"new.png": picture(COLOURS["green"], 3)})
    page.wait_for_function(
        "() => document.querySelector('.verdict').textContent.startsWith('green')"
    )
    wait_for_count(page, ".answer .strip img", 5)
    drop(page, ".zone", {"odd.png": picture((250, 250, 10), 3)})
    page.wait_for_function(
        "() => document.querySelector('.verdict').textContent === 'None of these'"
    )


def test_by_keyboard_alone(taught, open_page):
    page = open_page(taught.address)
    page.focus("#new-class")
    page.keyboard.type("violet")
    page.keyboard.press("Enter")
    page.wait_for_selector(card("violet"))
    page.focus(f"{card('red')} .class-name")
    page.keyboard.press("Control+A")
    page.keyboard.type("rouge")
    page.keyboard.press("Enter")
    page.wait_for_selector(card("rouge"))
    page.focus(f"{card('rouge')} header button")
    page.keyboard.press("Tab")
    wait_for_focus(page, "0.png")
    page.keyboard.press("ArrowRight")
    wait_for_focus(page, "1.png")
    page.keyboard.press("Space")
    page.wait_for_function("() => document.activeElement.getAttribute('aria-selected') === 'true'")
    page.keyboard.press("Delete")
    page.wait_for_selector(f"{card('rouge')} .picture[data-name='1.png']", state="detached")
    wait_for_focus(page, "2.png")
    page.focus("#notices button:has-text('Undo')")
    page.keyboard.press("Enter")
    page.wait_for_selector(f"{card('rouge')} .picture[data-name='1.png']")
    page.focus("nav a[href='#see']")
    page.keyboard.press("Enter")
    page.wait_for_selector("#view-see:not([hidden])")


def test_pictures_are_dragged_to_another_class(taught, open_page):
    page = open_page(taught.address)
    page.wait_for_selector(card("red"))
    page.drag_and_drop(f"{card('red')} .picture[data-name='wrong.png']", card("green"))
    page.wait_for_selector(f"{card('green')} .picture[data-name='wrong.png']")
    page.click("#notices :text('1 picture moved to green.') >> xpath=../.. >> text=Undo")
    page.wait_for_selector(f"{card('red')} .picture[data-name='wrong.png']")
    page.wait_for_selector("#notices >> text=Restored.")


def test_an_undo_is_offered_only_as_long_as_it_is_possible(taught, open_page):
    page = open_page(taught.address)
    page.click(f"{card('red')} .picture[data-name='0.png']")
    page.select_option(".selection select", label="green")
    page.wait_for_selector("#notices >> text=Undo")
    page.click(f"{card('green')} header button")
    page.wait_for_selector("#notices >> text=Class green moved to the bin.")
    page.wait_for_selector("#notices >> text=1 picture moved to green.", state="detached")
    page.click(".bin summary")
    page.click("text=Empty the bin")
    page.click("dialog >> text=Empty the bin")
    page.wait_for_selector("#notices >> text=Undo", state="detached")
    wait_for_count(page, "#notices .notice", 0)


def test_an_error_goes_with_the_next_one_or_the_next_success(taught, open_page):
    page = open_page(taught.address)
    for name, words in (("con", "for a device"), ("RED", "A class 'red' already exists")):
        page.fill("#new-class", name)
        page.press("#new-class", "Enter")
        page.wait_for_selector(f"#notices >> text={words}")
        wait_for_count(page, "#notices .notice", 1)
    page.fill("#new-class", "violet")
    page.press("#new-class", "Enter")
    page.wait_for_selector(card("violet"))
    wait_for_count(page, "#notices .notice", 0)
    drop(page, card("violet"), {"notes.txt": b"no picture"})
    page.wait_for_selector("#notices >> text=1 file skipped")
    drop(page, card("violet"), {"new.png": picture(seed=3)})
    page.wait_for_selector("#notices >> text=1 picture added to violet.")
    page.wait_for_selector("#notices >> text=1 file skipped", state="detached")
    page.click("#notices button[aria-label='Close']")
    page.wait_for_selector("#notices .notice", state="detached")


def test_what_other_programs_do_is_there_after_a_reload(taught, open_page):
    page = open_page(taught.address)
    page.wait_for_selector(card("red"))
    assert not page.is_visible(".note")
    content, folder = picture(seed=90), taught.project.folder
    for name in ("red/new.png", "a.png", "b.png"):
        (folder / name).write_bytes(content)
    page.reload()
    page.wait_for_selector(f"{card('red')} .picture[data-name='new.png']")
    words = (
        "2 pictures in the project folder are not in any class folder, so they are not used: "
        "a.png, b.png."
    )
    page.wait_for_selector(f".note:has-text('{words}')")


def test_the_camera_takes_pictures_and_is_tried_live(taught, open_page):
    page = open_page(taught.address, permissions=["camera"])
    learned(page)
    page.click(f"{card('blue')} >> text=Camera")
    page.wait_for_selector("text=Hold to record >> visible=true")
    page.wait_for_function("() => !document.querySelector('.camera .main').disabled")
    page.focus(".camera .main")
    page.keyboard.down("Space")
    page.wait_for_function(
        f"() => document.querySelectorAll('{card('blue')} .picture').length >= 9"
    )
    page.keyboard.up("Space")
    page.click("text=Close camera")
    learned(page)
    page.click("nav >> text=Try")
    page.click("text=Live camera")
    page.wait_for_function("() => document.querySelector('.verdict')?.textContent")
    page.click("text=Stop camera")


def test_no_camera_is_said(taught, open_page):
    page = open_page(taught.address)
    page.evaluate(
        """() => {
          navigator.mediaDevices.getUserMedia = () => Promise.reject({ name: "NotFoundError" });
        }"""
    )
    page.click(f"{card('blue')} >> text=Camera")
    page.wait_for_selector("text=No camera was found")


def test_two_pages_see_each_other_and_markup_is_text(taught, open_page):
    one, two = open_page(taught.address), open_page(taught.address)
    two.wait_for_selector(card("red"))
    name = "<img src=x onerror=document.title=1>"  # the page refuses it, but a folder may have it
    (taught.project.folder / name).mkdir()
    taught.project.refresh()
    one.fill("#new-class", "👩‍🔬")
    one.press("#new-class", "Enter")
    wait_for_count(two, "article.class", 5)
    names = two.eval_on_selector_all(".class-name", "all => all.map((one) => one.value)")
    assert {name, "👩‍🔬"} < set(names)
    learned(two)
    two.click("nav >> text=See")
    assert two.locator("img[src='x']").count() == 0
    assert two.title() != "1"
    (taught.project.folder / "red" / "0.png").unlink()
    taught.project.refresh()
    one.wait_for_selector(f"{card('red')} .picture[data-name='0.png']", state="detached")


def test_a_pasted_picture_goes_to_the_class_with_the_focus(taught, open_page):
    page = open_page(taught.address)
    page.wait_for_selector(card("green"))
    page.focus(f"{card('green')} header button")
    page.evaluate(
        """text => {
          const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
          const transfer = new DataTransfer();
          transfer.items.add(new File([bytes], "pasted.png", { type: "image/png" }));
          document.activeElement.dispatchEvent(
            new ClipboardEvent("paste", { clipboardData: transfer, bubbles: true }));
        }""",
        b64encode(picture(COLOURS["green"], 80)).decode(),
    )
    page.wait_for_selector(f"{card('green')} .picture[data-name='pasted.png']")


def test_a_server_that_is_gone_is_said(taught, open_page):
    page = open_page(taught.address)
    learned(page)
    taught.stop()
    page.wait_for_selector("#gone:has-text('The server has stopped')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(taught, open_page, scheme):
    if not AXE.exists():
        pytest.skip("no axe-core: make test-page gets it from npm")
    page = open_page(taught.address, color_scheme=scheme, bypass_csp=True)
    learned(page)
    page.add_script_tag(content=AXE.read_text())
    for view in ("teach", "see", "try", "take"):
        page.click(f"nav a[href='#{view}']")
        page.wait_for_selector(f"#view-{view}:not([hidden])")
        if view == "try":
            drop(page, ".zone", {"new.png": picture(COLOURS["green"], 3)})
            page.wait_for_selector(".answer:not([hidden])")
        found = page.evaluate("axe.run()")["violations"]
        serious = [
            (one["id"], [node["html"][:90] for node in one["nodes"][:3]])
            for one in found
            if one["impact"] in ("serious", "critical")
        ]
        assert serious == [], view


@pytest.mark.parametrize("width", [380, 1280])
def test_nothing_is_wider_than_the_window(taught, open_page, width):
    page = open_page(taught.address, viewport={"width": width, "height": 800})
    learned(page)
    for view in ("teach", "see", "try", "take"):
        page.click(f"nav a[href='#{view}']")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, view


COUNT_STREAMS = """() => {
  const devices = navigator.mediaDevices;
  const open = devices.getUserMedia.bind(devices);
  window.streams = [];
  window.mayOpen = Promise.resolve();
  devices.getUserMedia = async (wishes) => {
    const stream = await open(wishes);
    window.streams.push(stream);
    await window.mayOpen;
    return stream;
  };
}"""
LIVE = (
    "streams.filter((one) => one.getTracks().some((track) => track.readyState === 'live')).length"
)


def hold_prompt(page):
    """The browser asks for permission until `release()` is run."""
    page.evaluate("() => { mayOpen = new Promise((resolve) => { window.release = resolve; }); }")


def test_a_double_click_leaves_no_camera_running(taught, open_page):
    page = open_page(taught.address, permissions=["camera"])
    learned(page)
    page.evaluate(COUNT_STREAMS)
    page.click("nav >> text=Try")
    hold_prompt(page)
    page.locator("text=Live camera").evaluate("live => { live.click(); live.click(); }")
    page.wait_for_function("() => streams.length === 2")
    page.evaluate("release()")
    page.wait_for_function("() => document.querySelector('.verdict')?.textContent")
    assert page.evaluate(LIVE) == 1
    page.click("text=Stop camera")
    page.wait_for_function(f"() => {LIVE} === 0")
    hold_prompt(page)
    page.click("text=Live camera")
    page.wait_for_function("() => streams.length === 3")
    drop(page, ".zone", {"new.png": picture(COLOURS["green"], 3)})
    page.evaluate("release()")
    page.wait_for_function(f"() => {LIVE} === 0")
    assert page.is_visible("text=Live camera")


def test_a_camera_that_is_closed_before_it_opens_is_not_running(taught, open_page):
    page = open_page(taught.address, permissions=["camera"])
    page.wait_for_selector(card("blue"))
    page.evaluate(COUNT_STREAMS)
    hold_prompt(page)
    opener = f"{card('blue')} .actions >> text=Camera"
    for _ in range(3):  # open, close, open
        page.click(opener)
    page.wait_for_function("() => streams.length === 2")
    page.evaluate("release()")
    page.wait_for_function("() => !document.querySelector('.camera .main').disabled")
    page.wait_for_function(f"() => {LIVE} === 1")
    page.click("text=Close camera")
    page.wait_for_function(f"() => {LIVE} === 0")


def test_pictures_follow_their_class_when_it_is_renamed(taught, open_page):
    page = open_page(taught.address)
    page.wait_for_selector(card("red"))
    page.route("**/pictures?name=*", lambda route: page.wait_for_timeout(60) or route.continue_())
    drop(page, card("red"), {f"new-{n}.png": picture(seed=100 + n) for n in range(12)})
    page.fill(f"{card('red')} .class-name", "rouge")
    page.press(f"{card('red')} .class-name", "Enter")
    wait_for_count(page, f"{card('rouge')} .picture", 20)
    page.wait_for_selector("#notices >> text=12 pictures added to rouge.")
    assert not page.is_visible("#notices >> text=skipped")


def test_what_is_dropped_beside_the_columns_finds_its_class(taught, open_page):
    (taught.project.folder / "Class 4").mkdir()
    (taught.project.folder / "CLASS 5").mkdir()
    taught.project.refresh()
    page = open_page(taught.address)
    page.wait_for_selector(card("Class 4"))
    page.click(f"{card('green')} header button")
    page.wait_for_selector(card("green"), state="detached")
    drop(page, ".adder", {"new.png": picture(seed=70)})
    page.wait_for_selector(f"{card('Class 6')} .picture")
    assert names_in(taught.project.folder / "Class 4") == []


def test_what_is_gone_is_not_selected(taught, open_page):
    page = open_page(taught.address)
    page.click(f"{card('red')} .picture[data-name='0.png']")
    page.click(f"{card('blue')} .picture[data-name='0.png']")
    page.wait_for_selector(".selection >> text=2 selected")
    page.click(f"{card('red')} header button")
    page.wait_for_selector(".selection >> text=1 selected")
    page.click(".selection >> text=Delete")
    page.wait_for_selector(f"{card('blue')} .picture[data-name='0.png']", state="detached")


def test_an_undo_restores_what_is_still_in_the_bin(taught, open_page):
    page = open_page(taught.address)
    for name in ("red", "blue"):
        page.click(f"{card(name)} .picture[data-name='0.png']")
    page.click(".selection >> text=Delete")
    page.wait_for_selector("#notices >> text=2 pictures moved to the bin.")
    project = taught.project
    (entry,) = (name for name, one in project.bin.entries().items() if one.label == "red")
    shutil.rmtree(project.folder / ".nsl-teach" / "bin" / entry)
    page.click("#notices >> text=Undo")
    page.wait_for_selector(f"{card('blue')} .picture[data-name='0.png']")
    page.wait_for_selector("#notices >> text=Restored.")


def test_a_file_that_cannot_be_read_is_named_and_the_others_are_added(taught, open_page):
    page = open_page(taught.address)
    page.wait_for_selector(card("red"))
    page.evaluate(
        """() => {
          DataTransferItem.prototype.webkitGetAsEntry = function () {
            const file = this.getAsFile();
            const read = (resolve, reject) =>
              file.name === "locked.png" ? reject(new Error("locked")) : resolve(file);
            return { name: file.name, isFile: true, isDirectory: false, file: read };
          };
        }"""
    )
    content = picture(seed=71)
    drop(page, card("red"), {"locked.png": content, "new.png": content})
    page.wait_for_selector(f"{card('red')} .picture[data-name='new.png']")
    page.wait_for_selector("#notices >> text=locked.png: The browser cannot read it.")


def test_see_counts_all_and_names_the_newest(taught, open_page):
    """The server's state, with more than the page shows at once."""

    def many(route):
        answer = route.fetch()
        state = answer.json()
        if state["lesson"]:
            lesson = state["lesson"]
            red = next(one for one in state["classes"] if one["name"] == "red")
            row = [one["name"] for one in lesson["classes"]].index("red")
            more = [{"id": f"{n}", "version": "1", "name": f"{n}.png"} for n in range(80)]
            red["pictures"] += more
            lesson["tests"] |= {one["id"]: {"predicted": red["id"]} for one in more}
            lesson["confusion"][row][row] = 87
            lesson["suspects"] *= 30
            lesson["curve"] = [[1, 0.5], [2, 0.6]]
            lesson["per_class"] = per_class[0]
            point = {"classes": 3, "low": 0.1, "high": 1}
            state["history"] = [
                {**point, "pictures": 20, "accuracy": 0.9},
                {**point, "pictures": 10, "accuracy": 0.5},
            ]
        route.fulfill(response=answer, json=state)

    per_class = [8]
    page = open_page(taught.address)
    learned(page)
    page.route("**/api/state", many)
    page.reload()
    page.click("nav >> text=See")
    page.wait_for_selector("text=30 labels may be wrong: check them below.")
    page.wait_for_selector("text=The first 24 of 30:")
    wait_for_count(page, ".suspects li", 24)
    page.click("table.matrix button:has-text('87')")
    page.wait_for_selector(".behind >> text=The first 60 of 87:")
    page.wait_for_selector("svg[aria-label='Accuracy so far: 50\u00a0%']")
    page.wait_for_selector("td:text-is('8')", state="attached")
    per_class[0] = 9
    taught.project.add_class("another")
    page.wait_for_selector("td:text-is('9')", state="attached")
    page.unroute_all(behavior="wait")  # a state may still be on its way
