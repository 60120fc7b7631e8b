"""The page in a real browser, when two things happen at once or something is gone."""

import shutil

import pytest
from support.page_browser import card, drop, wait_for_count
from support.page_cases import COLOURS, names_in, picture
from support.page_server import learned

pytestmark = pytest.mark.browser


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
