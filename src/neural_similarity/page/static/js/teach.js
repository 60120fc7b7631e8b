/* Teach: columns of classes that take pictures. */

import { api } from "./api.js";
import { drawBin } from "./bin.js";
import { classCard, updateCard } from "./class-card.js";
import { button, h, keyed, setText, show } from "./dom.js";
import { droppedFiles, dropTarget, pastedFiles } from "./files.js";
import { attempt, notify } from "./notices.js";
import { clearSelection, eraseSelected, onSelection, selected } from "./picture-grid.js";
import { store } from "./store.js";
import { texts } from "./texts.js";
import { movePictures } from "./undo.js";
import { onUploads, upload } from "./uploads.js";

const t = texts.teach;

export function startTeach(view) {
  const hint = h("p", { className: "lead" });
  const loose = h("p", { className: "note", hidden: true });
  const columns = h("div", { className: "columns" });
  const adder = newClassCard();
  const progress = h("p", { className: "uploading", role: "status", hidden: true });
  const bin = h("details", { className: "bin" });
  const where = h("p", { className: "quiet" });
  const bar = selectionBar();
  show(view, h("h1", { id: "teach-title" }, t.title), hint, loose, progress, h("div", { className: "board" }, columns, adder), bar, bin, where);

  store.subscribe((state) => {
    setText(hint, hintFor(state));
    loose.hidden = !state.loose.count;
    setText(loose, state.loose.count ? t.loose(state.loose.count, state.loose.names) : "");
    keyed(columns, state.classes, (one) => one.id, (one) => classCard(one.id), updateCard);
    drawBin(bin, state.bin);
    setText(where, t.where(state.folder));
  });
  onUploads((batch) => {
    progress.hidden = !batch;
    if (batch) setText(progress, t.uploading(batch.done, batch.total));
  });
  document.addEventListener("paste", (event) => {
    const files = pastedFiles(event);
    const card = document.activeElement?.closest?.(".class");
    const target = card?.dataset.id ?? store.state?.classes.at(-1)?.id;
    if (view.hidden || !files.length) return;
    if (target) upload(target, files);
    else notify(t.pasteNowhere, { isError: true });
  });
}

function hintFor(state) {
  if (!state.classes.length) return t.empty;
  return state.classes.length === 1 ? t.oneClass : t.start;
}

function newClassCard() {
  const name = h("input", { id: "new-class", required: true, autocomplete: "off", maxlength: 200 });
  const form = h(
    "form",
    {
      className: "card adder",
      onsubmit: async (event) => {
        event.preventDefault();
        if (await attempt(() => api.addClass(name.value))) name.value = "";
        name.focus();
      },
    },
    h("label", { htmlFor: "new-class" }, t.newClass),
    h("div", { className: "row" }, name, h("button", { type: "submit", className: "main" }, t.add)),
    h("p", { className: "quiet" }, t.newHint),
  );
  dropTarget(form, async (transfer) => addFolders(await droppedFiles(transfer)));
  return form;
}

/** Make a class from each folder; pictures outside folders become a separate class. */
async function addFolders(found) {
  if (!found.length) notify(t.noFiles, { isError: true });
  const { classes } = store.state;
  const folders = found.map((one) => plain(one.folder));
  const loose = freeName([...classes.map((one) => plain(one.name)), ...folders], classes.length + 1);
  const byFolder = Map.groupBy(found, (one) => plain(one.folder) || loose);
  for (const [folder, files] of byFolder) {
    const there = store.state.classes.find((one) => plain(one.name) === folder);
    const id = there?.id ?? (await attempt(() => api.addClass(folder)))?.id;
    if (id) upload(id, files.map((one) => one.file));
  }
}

/** A name as the server writes it; folders on disk may write it differently. */
const plain = (name) => name.normalize("NFC").trim().replace(/\s+/g, " ");

/** "Class 3", or the next number that no class has. */
function freeName(taken, number) {
  const lower = taken.map((name) => name.toLowerCase());
  while (lower.includes(t.dropped(number).toLowerCase())) number += 1;
  return t.dropped(number);
}

function selectionBar() {
  const count = h("span", { "aria-live": "polite" });
  const target = h("select", { "aria-label": t.moveLabel });
  const bar = h(
    "div",
    { className: "selection", role: "region", "aria-label": t.selected(0), hidden: true },
    count,
    target,
    button(t.erase, eraseSelected, { className: "danger" }),
    button(t.selectNone, clearSelection),
  );
  target.addEventListener("change", async () => {
    const ids = [...selected];
    if (target.value) await movePictures(ids, target.value);
    clearSelection();
  });
  onSelection(() => {
    bar.hidden = !selected.size;
    setText(count, t.selected(selected.size));
    bar.setAttribute("aria-label", t.selected(selected.size));
    const classes = store.state?.classes ?? [];
    show(target, h("option", { value: "" }, t.moveTo), classes.map((one) => h("option", { value: one.id }, one.name)));
    target.value = "";
  });
  return bar;
}
