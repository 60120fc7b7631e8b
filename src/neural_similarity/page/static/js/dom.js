/* Elements from plain calls. Text is always text: nothing here parses markup. */

const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = new Set([
  "checked", "className", "disabled", "draggable", "hidden", "htmlFor", "id", "multiple", "open",
  "tabIndex", "textContent", "value",
]);

/** An element: h("button", { className: "main", onclick: save }, "Save"). */
export function h(name, options = {}, ...children) {
  return fill(document.createElement(name), options, children);
}

/** An SVG element. */
export function svg(name, options = {}, ...children) {
  return fill(document.createElementNS(SVG, name), options, children);
}

function fill(element, options, children) {
  for (const [key, value] of Object.entries(options)) {
    if (value === null || value === undefined) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (PROPERTIES.has(key) && element.namespaceURI !== SVG) element[key] = value;
    else if (value !== false) element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...children.flat(2).filter((child) => child !== null && child !== undefined));
  return element;
}

/** Show these children; existing elements stay, with their focus. */
export function show(parent, ...children) {
  const wanted = children.flat(2).filter((child) => child !== null && child !== undefined);
  const same = wanted.length === parent.childNodes.length && wanted.every((c, i) => c === parent.childNodes[i]);
  if (!same) parent.replaceChildren(...wanted);
}

/** Set a text only if it differs: a screen reader speaks every change. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * Keep one child for each item, in order. Children are made once and then updated, so focus,
 * selection and loaded pictures stay.
 */
export function keyed(parent, items, keyOf, make, update = () => {}) {
  parent.children_ ??= new Map();
  const known = parent.children_;
  const keys = new Set(items.map(keyOf));
  for (const [key, child] of known) {
    if (!keys.has(key)) {
      child.remove();
      known.delete(key);
    }
  }
  let place = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    if (!known.has(key)) known.set(key, make(item));
    const child = known.get(key);
    update(child, item);
    if (child === place) place = place.nextSibling;
    else parent.insertBefore(child, place);
  }
}

/** A button with a text, and a longer name for screen readers if the text alone is unclear. */
export function button(text, onclick, options = {}) {
  return h("button", { type: "button", onclick, ...options }, text);
}
