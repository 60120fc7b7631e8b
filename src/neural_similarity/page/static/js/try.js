/* Try: a picture or the camera in, probabilities and the most similar learned pictures out. */

import { api, pictureAddress } from "./api.js";
import { frame, openCamera } from "./camera.js";
import { button, h, keyed, setText, show } from "./dom.js";
import { droppedFiles, dropTarget, pastedFiles } from "./files.js";
import { attempt } from "./notices.js";
import { store } from "./store.js";
import { percent, texts } from "./texts.js";

const t = texts.try;

export function startTry(view) {
  const nothing = h("p", { className: "lead" }, t.nothing);
  const shown = h("img", { className: "tried", alt: t.yours, hidden: true });
  const video = h("video", { className: "tried", muted: true, playsinline: true, hidden: true, "aria-label": texts.camera.view });
  const words = h("p", { className: "quiet" }, t.drop);
  const input = h("input", { type: "file", accept: "image/*", hidden: true, onchange: () => { tryFile(input.files[0]); input.value = ""; } });
  const live = button(t.live, () => (stop ? endLive() : beginLive()), { "aria-pressed": "false" });
  const zone = h("div", { className: "card zone" }, shown, video, words, h("p", { className: "row" }, button(t.choose, () => input.click(), { className: "main" }), live), input);
  const answer = answerCard();
  const board = h("div", { className: "try" }, zone, answer);
  show(view, h("h1", { id: "try-title" }, t.title), nothing, board);
  dropTarget(zone, async (transfer) => tryFile((await droppedFiles(transfer))[0]?.file));
  document.addEventListener("paste", (event) => !view.hidden && tryFile(pastedFiles(event)[0]));
  store.subscribe((state) => {
    nothing.hidden = Boolean(state.lesson);
    board.hidden = !state.lesson;
  });

  let stop = null;
  let opening = 0; // grows when the camera is opened or closed: the browser may ask in between
  let last = 0; // only the answer to the newest picture is shown

  async function tryFile(file) {
    if (!file) return;
    endLive();
    if (shown.src) URL.revokeObjectURL(shown.src);
    shown.src = URL.createObjectURL(file);
    shown.hidden = false;
    setText(words, t.busy);
    await ask(file);
    setText(words, t.drop);
  }

  async function ask(file) {
    const mine = (last += 1);
    const result = await attempt(() => api.tryPicture(file));
    if (result && mine === last) drawAnswer(answer, result);
    return result;
  }

  async function beginLive() {
    endLive();
    const mine = opening;
    shown.hidden = true;
    video.hidden = false;
    try {
      const close = await openCamera(video, () => mine === opening);
      if (mine !== opening) return close();
      stop = close;
      live.setAttribute("aria-pressed", "true");
      setText(live, t.stop);
      for (;;) {
        const one = await frame(video);
        if (mine !== opening || view.hidden || !(await ask(one))) break;
      }
      if (mine === opening) endLive();
    } catch (error) {
      if (mine !== opening) return;
      endLive();
      setText(words, error.message);
    }
  }

  function endLive() {
    opening += 1;
    stop?.();
    stop = null;
    video.hidden = true;
    live.setAttribute("aria-pressed", "false");
    setText(live, t.live);
  }
}

function answerCard() {
  const verdict = h("p", { className: "verdict", role: "status" });
  const unlike = h("p", { className: "quiet" }, t.unknownText);
  const bars = h("ul", { className: "bars", "aria-label": t.probabilities });
  const title = h("h2", {}, t.nearest);
  const strip = h("ul", { className: "strip named" });
  const card = h("div", { className: "card answer", hidden: true }, verdict, unlike, bars, title, strip);
  return Object.assign(card, { parts: { verdict, unlike, bars, strip } });
}

function drawAnswer(card, answer) {
  const { verdict, unlike, bars, strip } = card.parts;
  const [best] = answer.classes;
  card.hidden = false;
  card.classList.toggle("unknown", !answer.known);
  setText(verdict, answer.known ? t.result(best.name, best.probability) : t.unknown);
  unlike.hidden = answer.known;
  keyed(bars, answer.classes.slice(0, 10), (one) => one.id, makeBar, updateBar);
  show(strip, answer.nearest.map((one) =>
    h("li", {}, h("img", { src: pictureAddress(one), alt: "" }), h("span", {}, t.similar(one.class, one.similarity)))));
}

function makeBar(one) {
  return h("li", {}, h("span", { className: "bar-name" }, one.name), h("span", { className: "bar" }, h("i", {})), h("span", { className: "bar-value" }));
}

function updateBar(bar, one) {
  bar.querySelector("i").style.setProperty("--share", one.probability);
  setText(bar.lastChild, percent(one.probability));
}
