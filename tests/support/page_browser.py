"""What tests do with a page in a browser."""

from base64 import b64encode


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
