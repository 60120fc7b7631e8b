"""The page in a real browser: by mouse, by keyboard, by camera, and for a screen reader."""

import re
from base64 import b64encode

import pytest
from support.page_browser import card, drop, wait_for_count, wait_for_focus
from support.page_cases import COLOURS, picture
from support.page_server import AXE, learned

pytestmark = pytest.mark.browser


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
