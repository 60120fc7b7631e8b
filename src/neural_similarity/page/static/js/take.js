/* Take away: the model as a zip, and how to use it. */

import { api } from "./api.js";
import { button, h, setText, show } from "./dom.js";
import { attempt } from "./notices.js";
import { store } from "./store.js";
import { texts } from "./texts.js";

const t = texts.take;

export function startTake(view) {
  const nothing = h("p", { className: "lead" }, t.nothing);
  const files = h("dl", { className: "files" });
  const missing = h("p", { className: "quiet" });
  const progress = h("p", { role: "status" });
  const bar = h("progress", { "aria-label": t.pack, hidden: true });
  const pack = button(t.pack, () => attempt(api.pack), { className: "main" });
  const download = h("a", { className: "button main", href: "/api/take-away", hidden: true });
  const use = h("div", { className: "card" });
  const card = h("div", { className: "card" }, h("p", {}, t.text), files, missing, h("p", { className: "row" }, pack, download), bar, progress);
  const board = h("div", { className: "take" }, card, use);
  show(view, h("h1", { id: "take-title" }, t.title), nothing, board);
  store.subscribe((state) => {
    const { packing } = state;
    nothing.hidden = Boolean(state.lesson);
    board.hidden = !state.lesson;
    drawFiles(files, missing, packing);
    drawUse(use, packing.folder);
    const isWorking = packing.state === "working";
    const isReady = packing.state === "ready";
    pack.disabled = isWorking;
    pack.classList.toggle("main", !isReady || !packing.is_current);
    setText(pack, isReady ? t.again : t.pack);
    download.hidden = !isReady;
    if (isReady) setText(download, t.download(packing.name, packing.bytes));
    bar.hidden = !isWorking;
    if (isWorking && packing.total) Object.assign(bar, { max: packing.total, value: packing.done });
    else bar.removeAttribute("value");
    setText(progress, messageFor(packing));
  });
}

function messageFor(packing) {
  if (packing.state === "working") return t.steps[packing.step](packing.done, packing.total);
  if (packing.state === "failed") return packing.message;
  return packing.state === "ready" && !packing.is_current ? t.outdated : "";
}

function drawFiles(place, missing, packing) {
  const names = ["labels", "report", "readme", "model"];
  if (packing.has_browser_page) names.unshift("page");
  if (packing.has_onnx) names.unshift("onnx");
  if (place.dataset.key === names.join()) return;
  place.dataset.key = names.join();
  show(place, names.flatMap((name) => [h("dt", {}, h("code", {}, t.files[name][0])), h("dd", {}, t.files[name][1])]));
  setText(missing, packing.has_onnx ? (packing.has_browser_page ? "" : t.noPage) : t.noOnnx);
}

function drawUse(place, folder) {
  if (place.firstChild) return;
  const python = `from neural_similarity.adapt import FewShotClassifier\n\nclassifier = FewShotClassifier.load("${folder}")\nprint(classifier.predict(["photo.jpg"]))`;
  show(place, h("h2", {}, t.use), h("h3", {}, t.command), h("pre", { tabIndex: 0 }, h("code", {}, `nsl predict ${folder} photo.jpg`)),
    h("h3", {}, t.python), h("pre", { tabIndex: 0 }, h("code", {}, python)));
}
