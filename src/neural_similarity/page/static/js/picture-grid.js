/* The pictures of a class: a list box in which arrows move, Space selects and Delete deletes. */

import { pictureAddress } from "./api.js";
import { button, h, keyed, setText } from "./dom.js";
import { enlarge } from "./notices.js";
import { store } from "./store.js";
import { texts } from "./texts.js";
import { erasePictures } from "./undo.js";

const MOST_SHOWN = 120;
export const DRAGGED = "application/x-nsl-pictures";

/** The identifiers of the selected pictures, of all classes. */
export const selected = new Set();
const listeners = new Set();
export const onSelection = (listener) => listeners.add(listener);

export function clearSelection() {
  selected.clear();
  changed();
}

export function eraseSelected() {
  const ids = [...selected];
  clearSelection();
  erasePictures(ids);
}

// A picture that is gone is not selected: with its class, by another page, or under another name.
store.subscribe(({ classes }) => {
  if (!selected.size) return;
  const there = new Set(classes.flatMap((one) => one.pictures.map((picture) => picture.id)));
  const gone = [...selected].filter((id) => !there.has(id));
  for (const id of gone) selected.delete(id);
  if (gone.length) changed();
});

function changed() {
  for (const option of document.querySelectorAll(".picture")) {
    option.setAttribute("aria-selected", String(selected.has(option.dataset.id)));
  }
  for (const listener of listeners) listener();
}

function toggle(id, only = false) {
  const was = selected.has(id);
  if (only) selected.clear();
  if (was && !only) selected.delete(id);
  else selected.add(id);
  changed();
}

/** The pictures dragged from another class; null if something else is dragged. */
export function draggedIds(transfer) {
  const text = transfer.getData(DRAGGED);
  return text ? JSON.parse(text) : null;
}

export function pictureGrid(classId) {
  const list = h("div", { className: "pictures", role: "listbox", "aria-multiselectable": "true", "aria-description": texts.teach.help, tabIndex: -1 });
  const more = button("", () => { grid.isWhole = true; drawGrid(grid, grid.shown); }, { className: "more", hidden: true });
  const grid = h("div", { className: "grid", "data-id": classId }, list, more);
  list.addEventListener("keydown", onKey);
  list.addEventListener("click", (event) => {
    const option = event.target.closest(".picture");
    if (option) {
      focusOn(option);
      toggle(option.dataset.id);
    }
  });
  list.addEventListener("dblclick", (event) => {
    const option = event.target.closest(".picture");
    if (option) enlarge(option.dataset.large, option.dataset.name);
  });
  list.addEventListener("dragstart", (event) => {
    const { id } = event.target.closest(".picture").dataset;
    const ids = selected.has(id) ? [...selected] : [id];
    event.dataTransfer.setData(DRAGGED, JSON.stringify(ids));
    event.dataTransfer.effectAllowed = "move";
  });
  return Object.assign(grid, { list, more, isWhole: false });
}

export function drawGrid(grid, one) {
  grid.shown = one;
  const pictures = grid.isWhole ? one.pictures : one.pictures.slice(0, MOST_SHOWN);
  grid.hidden = !one.pictures.length;
  grid.list.setAttribute("aria-label", texts.teach.grid(one.name));
  keyed(grid.list, pictures, (picture) => picture.id + picture.version, makePicture, updatePicture);
  grid.more.hidden = pictures.length === one.pictures.length;
  setText(grid.more, texts.teach.showAll(one.pictures.length));
  const options = [...grid.list.children];
  if (options.length && !options.some((option) => option.tabIndex === 0)) options[0].tabIndex = 0;
}

function makePicture(picture) {
  return h(
    "div",
    {
      className: "picture", role: "option", "aria-selected": String(selected.has(picture.id)), tabIndex: -1,
      draggable: true, "data-id": picture.id, "data-name": picture.name, "data-large": pictureAddress(picture, true),
      title: picture.name,
    },
    h("img", { src: pictureAddress(picture), alt: picture.name, loading: "lazy", decoding: "async", draggable: false }),
  );
}

function updatePicture(option, picture) {
  option.classList.toggle("bad", Boolean(picture.trouble));
  option.title = picture.trouble ? `${picture.name}: ${picture.trouble}` : picture.name;
}

function onKey(event) {
  const option = event.target.closest(".picture");
  if (!option) return;
  const options = [...option.parentNode.children];
  const place = options.indexOf(option);
  const perRow = options.filter((one) => one.offsetTop === options[0].offsetTop).length;
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: perRow, ArrowUp: -perRow };
  if (event.key in steps) focusOn(options[place + steps[event.key]]);
  else if (event.key === "Home") focusOn(options[0]);
  else if (event.key === "End") focusOn(options.at(-1));
  else if (event.key === " ") toggle(option.dataset.id);
  else if (event.key === "Enter") enlarge(option.dataset.large, option.dataset.name);
  else if (event.key === "Escape") clearSelection();
  else if (event.key === "Delete" || event.key === "Backspace") {
    if (!selected.has(option.dataset.id)) toggle(option.dataset.id, true);
    focusOn(options[place + 1] ?? options[place - 1]);
    eraseSelected();
  } else return;
  event.preventDefault();
}

function focusOn(option) {
  if (!option) return;
  for (const other of option.parentNode.children) other.tabIndex = other === option ? 0 : -1;
  option.focus();
}
