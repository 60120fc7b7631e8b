"""Take the screenshots of the page for ``docs/teach.md``, with a project of drawn pictures.

Run: ``OMP_NUM_THREADS=1 .venv/bin/python tests/support/page_pictures.py [FOLDER]``
(``docs/pictures`` by default). It needs Chromium, and takes a minute.
"""

import colorsys
import math
import subprocess
import sys
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image, ImageDraw

STEPS = (50, 59, 68, 77)  # the number of pictures at each point of "Accuracy so far"
SIZE = 160
FINE = 4  # drawn this many times larger, for smooth edges
DARKER = (0, 0, 0, 130)  # over another colour


def main(folder):
    from support.page_server import chromium, learned

    drawings = draw_all(np.random.default_rng(7))
    with TemporaryDirectory() as temporary, chromium() as browser:
        project, star = Path(temporary, "kitchen-table"), Path(temporary, "star.png")
        draw(star_on, np.random.default_rng(10), 2 * SIZE).save(star)
        with teaching(project) as address:
            page = browser.new_page(viewport={"width": 1280, "height": 860}, color_scheme="light")
            page.set_default_timeout(120_000)
            page.goto(address)
            page.click("nav a[href='#see']")
            for before, count in pairwise((0, *STEPS)):
                for file, picture in drawings[before:count]:
                    (project / file).parent.mkdir(exist_ok=True)
                    picture.save(project / file)
                page.reload()
                page.wait_for_selector(f".score:has-text('{count} pictures tested')")
                learned(page)
            page.click("table.matrix button[aria-label='1 picture of leaf, classified as lemon']")
            take(page, folder / "teach-see.png", full_page=True)

            page.click("nav a[href='#teach']")
            for place in (0, 2):
                page.click(f"article[aria-label='leaf'] .picture >> nth={place}")
            page.wait_for_selector(".selection:has-text('2 selected')")
            take(page, folder / "teach.png")

            page.emulate_media(color_scheme="dark")
            page.click("nav a[href='#try']")
            page.set_input_files("#view-try input[type=file]", star)
            page.wait_for_selector(".verdict:text-is('None of these')")
            take(page, folder / "teach-try.png")


@contextmanager
def teaching(project):
    """``nsl teach`` in a separate process; yields the address that it prints."""
    command = [sys.executable, "-m", "neural_similarity", "teach", project]
    command += ["--no-browser", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().removeprefix("Open ").strip()
        finally:
            process.terminate()


def take(page, file, **options):
    """A screenshot of the page once its images are loaded, in 256 colours to keep it small."""
    there = "(one) => { one.loading = 'eager'; return one.complete; }"
    page.wait_for_function(f"() => [...document.images].every({there})")
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=file, animations="disabled", **options)
    Image.open(file).convert("RGB").quantize(256, kmeans=1).save(file, optimize=True)


def draw_all(random):
    """(file, picture) of all pictures in random order; two have a wrong label."""
    plan = [("leaf", lemon_on), ("lemon", cup_on)]
    plan += [("cup", cup_on)] * 23 + [("leaf", leaf_on)] * 27 + [("lemon", lemon_on)] * 25
    drawings = [(f"{label}/{i:02}.png", draw(on, random)) for i, (label, on) in enumerate(plan)]
    return [drawings[place] for place in random.permutation(len(drawings))]


def draw(draw_on, random, size=SIZE):
    """An object somewhere on a background that fades from one colour to another, with noise."""
    top, bottom = (np.array(colour(random, random.random(), 0.35, 0.8)) for _ in range(2))
    fade = top + (bottom - top) * np.linspace(0, 1, FINE * size)[:, None, None]
    picture = Image.fromarray(fade.repeat(FINE * size, 1).astype(np.uint8))
    x, y = FINE * size * random.uniform(0.38, 0.62, 2)
    pen = ImageDraw.Draw(picture, "RGBA")
    draw_on(pen, random, x, y, FINE * size * random.uniform(0.2, 0.34))
    noisy = picture.resize((size, size)) + random.normal(0, 2.5, (size, size, 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def colour(random, hue, saturation, value):
    """A colour near the given one."""
    rgb = colorsys.hsv_to_rgb(hue, *(saturation, value) + random.uniform(-0.15, 0.15, 2))
    return tuple(min(255, round(255 * part)) for part in rgb)


def cup_on(pen, random, x, y, r):
    body = colour(random, random.random(), 0.45, 0.6)
    pen.arc((x + 0.2 * r, y - 0.5 * r, x + 1.2 * r, y + 0.5 * r), -90, 90, body, round(0.15 * r))
    pen.rectangle((x - 0.75 * r, y - r, x + 0.75 * r, y + r), body)
    for fill in (body, DARKER):  # the rim
        pen.ellipse((x - 0.75 * r, y - 1.2 * r, x + 0.75 * r, y - 0.8 * r), fill)


def leaf_on(pen, random, x, y, r):
    green = colour(random, random.uniform(0.29, 0.4), 0.7, 0.6)
    edge = [(x + 1.3 * r * t, y - 0.65 * r * math.cos(t * math.pi / 2)) for t in np.linspace(-1, 1)]
    pen.polygon(edge + [(a, 2 * y - b) for a, b in reversed(edge)], green)
    pen.line((*edge[0], *edge[-1]), DARKER, round(0.06 * r))
    for a, b in edge[6:-10:5]:  # its veins
        half, tip = (y - b) / 2, a + 0.25 * r
        pen.line((tip, y - half, a, y, tip, y + half), DARKER, 3)


def lemon_on(pen, random, x, y, r):
    yellow = colour(random, random.uniform(0.13, 0.16), 0.75, 0.93)
    pen.ellipse((x - 1.2 * r, y - 0.85 * r, x + 1.2 * r, y + 0.85 * r), yellow)
    pen.ellipse((x - 0.7 * r, y - 0.5 * r, x - 0.2 * r, y - 0.2 * r), (255, 248, 190))


def star_on(pen, random, x, y, r):
    corners = [((0.6 + k % 2) * r, 0.3 + k * math.pi / 5) for k in range(10)]
    pen.polygon([(x + f * math.cos(a), y + f * math.sin(a)) for f, a in corners], (216, 84, 210))


if __name__ == "__main__":
    tests = Path(__file__).parents[1]
    sys.path[0] = str(tests)  # where the package support is
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else tests.parent / "docs" / "pictures")
