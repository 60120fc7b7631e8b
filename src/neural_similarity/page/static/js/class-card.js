/* One class: its name, its pictures, and every way to add some. */

import { frame, openCamera } from "./camera.js";
import { button, h, setText, show } from "./dom.js";
import { droppedFiles, dropTarget } from "./files.js";
import { attempt, notify } from "./notices.js";
import { DRAGGED, draggedIds, drawGrid, pictureGrid } from "./picture-grid.js";
import { store } from "./store.js";
import { pictures, texts } from "./texts.js";
import { eraseClass, movePictures } from "./undo.js";
import { renameClass, upload } from "./uploads.js";

const t = texts.teach;
const BETWEEN_FRAMES = 200; // milliseconds while the button is held

export function classCard(id) {
  const name = h("input", { className: "class-name", "aria-label": t.className, maxlength: 200, autocomplete: "off" });
  const count = h("p", { className: "count" });
  const grid = pictureGrid(id);
  const nothing = h("p", { className: "nothing" }, t.noPictures);
  const actions = h("div", { className: "row actions" });
  const camera = h("div", { className: "camera", hidden: true });
  const remove = button("×", () => eraseClass(id), { className: "plain" });
  const card = h(
    "article",
    { className: "card class", "data-id": id },
    h("header", { className: "row" }, name, remove),
    count,
    nothing,
    grid,
    actions,
    camera,
  );
  const choose = chooser(id, { multiple: true, accept: "image/*" });
  const folder = chooser(id, { multiple: true, webkitdirectory: true });
  const open = button(t.camera, () => toggleCamera(id, camera, open), { "aria-expanded": "false" });
  show(actions, choose.button, choose.input, folder.button, folder.input, open);
  setText(choose.button, t.choose);
  setText(folder.button, t.folder);
  name.addEventListener("change", () => rename(id, name));
  name.addEventListener("keydown", (event) => {
    if (event.key === "Enter") name.blur();
    if (event.key === "Escape") name.value = store.classOf(id)?.name ?? "";
  });
  const accepts = (types) => types.includes("Files") || types.includes(DRAGGED);
  dropTarget(card, (transfer) => take(id, transfer), accepts);
  Object.assign(card, { parts: { name, count, grid, nothing, remove, choose, folder, open } });
  return card;
}

export function updateCard(card, one) {
  const { name, count, grid, nothing, remove, choose, folder, open } = card.parts;
  if (document.activeElement !== name) name.value = one.name;
  card.setAttribute("aria-label", one.name);
  const few = one.pictures.length < store.state.limits.few;
  setText(count, few ? t.few(one.pictures.length) : pictures(one.pictures.length));
  count.classList.toggle("few", few);
  nothing.hidden = one.pictures.length > 0;
  remove.setAttribute("aria-label", t.removeFor(one.name));
  remove.title = t.remove;
  choose.button.setAttribute("aria-label", t.chooseFor(one.name));
  folder.button.setAttribute("aria-label", t.folderFor(one.name));
  open.setAttribute("aria-label", t.cameraFor(one.name));
  drawGrid(grid, one);
}

async function rename(id, name) {
  const renamed = await attempt(() => renameClass(id, name.value));
  if (!renamed) name.value = store.classOf(id)?.name ?? "";
}

/** Whether a file is hidden or in a hidden folder; dropped folders leave these out too. */
const isHidden = (path) => path.split("/").some((part) => part.startsWith("."));

/** A button that opens the system's file dialog. */
function chooser(id, options) {
  const input = h("input", {
    type: "file", hidden: true, ...options,
    onchange: () => {
      const files = [...input.files].filter((file) => !isHidden(file.webkitRelativePath || file.name));
      input.value = "";
      if (files.length) upload(id, files);
      else notify(t.noFiles, { isError: true });
    },
  });
  return { input, button: button("", () => input.click()) };
}

/** Take what was dropped on the class: pictures of another class, or files. */
async function take(id, transfer) {
  const ids = draggedIds(transfer);
  if (ids) return movePictures(ids, id);
  const found = await droppedFiles(transfer);
  if (found.length) upload(id, found.map((one) => one.file));
  else notify(t.noFiles, { isError: true });
}

async function toggleCamera(id, place, opener) {
  if (!place.hidden) {
    place.closeCamera?.();
    return;
  }
  const video = h("video", { muted: true, playsinline: true, "aria-label": texts.camera.view });
  const message = h("p", { className: "quiet", role: "status" }, texts.camera.hint);
  const hold = holdButton(video, id, message);
  const close = button(texts.camera.close, () => place.closeCamera());
  place.hidden = false;
  opener.setAttribute("aria-expanded", "true");
  show(place, video, h("div", { className: "row" }, hold, close), message);
  let stop = () => {};
  let isOpen = true;
  const unsubscribe = store.subscribe(() => place.isConnected || place.closeCamera()); // deleted elsewhere
  place.closeCamera = () => {
    isOpen = false;
    stop();
    unsubscribe();
    removeEventListener("hashchange", place.closeCamera);
    if (place.contains(document.activeElement)) opener.focus();
    place.hidden = true;
    opener.setAttribute("aria-expanded", "false");
  };
  addEventListener("hashchange", place.closeCamera);
  try {
    const end = await openCamera(video);
    if (!isOpen) return end(); // closed before the camera was ready, and perhaps opened again
    stop = end;
    hold.disabled = false;
    hold.focus();
  } catch (error) {
    video.hidden = true;
    setText(message, error.message);
  }
}

/** A button that takes pictures for as long as it is held, by mouse, finger or key. */
function holdButton(video, id, message) {
  const hold = button(texts.camera.hold, () => {}, { className: "main", disabled: true });
  let isHeld = false;
  const begin = async (event) => {
    if (isHeld || (event.type === "keydown" && ![" ", "Enter"].includes(event.key))) return;
    event.preventDefault();
    isHeld = true;
    let count = 0;
    setText(hold, texts.camera.recording);
    while (isHeld && hold.isConnected) {
      upload(id, [await frame(video, `camera-${Date.now()}`)], true);
      count += 1;
      setText(message, texts.camera.taken(count));
      await new Promise((resolve) => setTimeout(resolve, BETWEEN_FRAMES));
    }
    setText(hold, texts.camera.hold);
  };
  const end = () => (isHeld = false);
  for (const kind of ["pointerdown", "keydown"]) hold.addEventListener(kind, begin);
  for (const kind of ["pointerup", "pointercancel", "pointerleave", "keyup", "blur"]) hold.addEventListener(kind, end);
  return hold;
}
