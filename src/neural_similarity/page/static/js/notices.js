/* Short messages at the edge of the page, with an undo where there is one; and one dialog. */

import { button, h, show } from "./dom.js";
import { store } from "./store.js";
import { texts } from "./texts.js";

const STAY = 9000; // milliseconds; one that offers something stays longer
const place = () => document.getElementById("notices");

/**
 * Show a message. `action` is { text, run }, `details` are lines below. A message with the same `key` is removed;
 * errors share one, so a new error replaces the last. `isCurrent` tells for a state whether the
 * message still makes sense.
 */
export function notify(message, { action = null, details = [], isError = false, key = isError ? "error" : "", isCurrent = null } = {}) {
  let unsubscribe = () => {};
  const close = () => {
    unsubscribe();
    notice.remove();
  };
  const notice = h(
    "div",
    { className: isError ? "notice bad" : "notice", "data-key": key },
    h("div", { className: "notice-text" }, h("p", {}, message), details.length ? h("ul", {}, details.map((line) => h("li", {}, line))) : null),
    action ? button(action.text, () => { close(); action.run(); }) : null,
    button("×", close, { className: "plain", "aria-label": texts.close }),
  );
  if (key) dismiss(key);
  place().append(notice);
  if (isCurrent) unsubscribe = store.subscribe((state) => isCurrent(state) || close());
  while (place().children.length > 4) place().firstChild.remove();
  if (!details.length && !isError) setTimeout(close, action ? 2 * STAY : STAY);
  return notice;
}

/** Remove the message with this key, if any. */
export function dismiss(key) {
  place().querySelector(`[data-key="${key}"]`)?.remove();
}

/** Run something that may fail, and show why; success removes the last error. */
export async function attempt(work) {
  try {
    const result = await work();
    dismiss("error");
    return result;
  } catch (error) {
    notify(error.message || texts.error, { isError: true });
    return null;
  }
}

/** Ask before something that cannot be undone. */
export function confirmed(title, text, yes) {
  const dialog = document.getElementById("dialog");
  return new Promise((resolve) => {
    const end = (answer) => () => { dialog.close(); resolve(answer); };
    show(
      dialog,
      h("h2", { id: "dialog-title" }, title),
      h("p", {}, text),
      h("p", { className: "row end" }, button(texts.cancel, end(false)), button(yes, end(true), { className: "danger" })),
    );
    dialog.addEventListener("cancel", () => resolve(false), { once: true });
    dialog.showModal();
  });
}

/** Show a picture enlarged. */
export function enlarge(address, caption) {
  const dialog = document.getElementById("dialog");
  show(
    dialog,
    h("h2", { id: "dialog-title" }, caption),
    h("img", { className: "large", src: address, alt: caption }),
    h("p", { className: "row end" }, button(texts.close, () => dialog.close())),
  );
  dialog.showModal();
}
