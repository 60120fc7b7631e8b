/* See: how good it is, what it mixes up, which labels look wrong, and what would help. */

import { api, pictureAddress } from "./api.js";
import { curveChart, historyChart } from "./charts.js";
import { button, h, setText, show } from "./dom.js";
import { drawMatrix } from "./matrix.js";
import { attempt, enlarge } from "./notices.js";
import { store } from "./store.js";
import { percent, texts } from "./texts.js";
import { movePictures } from "./undo.js";

const t = texts.see;
const MOST_SUSPECTS = 24; // shown at once; the others follow as these are answered

export function startSee(view) {
  const nothing = h("p", { className: "lead" }, t.nothing);
  const score = h("div", { className: "card score" });
  const advice = h("div", { className: "card" });
  const wrong = h("div", { className: "card wide" });
  const matrix = h("div", { className: "card wide" });
  const history = h("div", { className: "card" });
  const curve = h("div", { className: "card" });
  const board = h("div", { className: "see" }, score, advice, wrong, matrix, history, curve);
  show(view, h("h1", { id: "see-title" }, t.title), nothing, board);
  const draw = () => {
    const { state } = store;
    nothing.hidden = Boolean(state.lesson);
    board.hidden = !state.lesson;
    if (!state.lesson || view.hidden) return;
    drawScore(score, state);
    drawOnce(advice, adviceFor(state), () => [h("h2", {}, t.advice), h("ul", { className: "advice" }, adviceFor(state).map((line) => h("li", {}, line)))]);
    drawOnce(wrong, suspectsOf(state), () => wrongLabels(state));
    drawOnce(matrix, [state.lesson.confusion, state.lesson.classes, state.lesson.tests], () => drawMatrix(state, picturesById(state)));
    drawOnce(history, state.history, () => [h("h2", {}, t.history), h("p", { className: "quiet" }, t.historyText), historyChart(state.history)]);
    drawOnce(curve, curveValues(state.lesson), () => [h("h2", {}, t.curve), h("p", { className: "quiet" }, t.curveText), curveChart(state.lesson)]);
  };
  store.subscribe(draw);
  view.addEventListener("shown", () => store.state && draw());
}

const curveValues = ({ curve, accuracy, per_class: perClass, twice_as_many: share }) => [curve, accuracy, perClass, share];

/** Redraw a part only if its values have changed, to keep focus and open details. */
function drawOnce(place, values, make) {
  const key = JSON.stringify(values);
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  show(place, ...make());
}

/** All pictures by identifier, with their classes. */
export function picturesById(state) {
  const all = new Map();
  for (const one of state.classes) for (const picture of one.pictures) all.set(picture.id, { ...picture, owner: one });
  return all;
}

function drawScore(place, state) {
  const { lesson } = state;
  if (!place.firstChild) {
    place.parts = {
      number: h("p", { className: "big" }), words: h("p", {}), bar: h("div", { className: "interval", role: "presentation" }, h("i"), h("b")),
      range: h("p", {}), note: h("p", { className: "quiet" }), now: h("p", { className: "quiet" }),
    };
    const { number, words, bar, range, note, now } = place.parts;
    show(place, h("h2", {}, t.accuracy), number, words, bar, range, note, now);
  }
  const { number, words, bar, range, note, now } = place.parts;
  const known = lesson.accuracy !== null;
  setText(number, known ? percent(lesson.accuracy) : t.unknown);
  number.classList.toggle("none", !known);
  setText(words, known ? "" : t.untested);
  setText(range, known ? t.interval(...lesson.interval) : "");
  setText(note, known ? t.tested(lesson.tested, lesson.method) : "");
  setText(now, lesson.is_current ? (lesson.is_complete ? "" : t.quick) : t.outdated);
  bar.hidden = !known;
  if (known) {
    const [low, high] = lesson.interval;
    bar.style.setProperty("--low", low);
    bar.style.setProperty("--high", high);
    bar.style.setProperty("--at", lesson.accuracy);
  }
}

function adviceFor(state) {
  const { lesson, limits } = state;
  const names = (classes) => classes.map((one) => one.name).join(", ");
  const few = state.classes.filter((one) => one.pictures.length < limits.few);
  const untested = lesson.classes.filter((one) => lesson.accuracy !== null && lesson.untested.includes(one.id));
  const doubtful = suspectsOf(state).length;
  const lines = [
    doubtful ? t.doubtful(doubtful) : null,
    few.length ? t.few(names(few)) : null,
    untested.length ? t.notTested(names(untested)) : null,
    lesson.conflicts.length ? t.conflicts(lesson.conflicts.length) : null,
    lesson.copies ? t.copies(lesson.copies) : null,
    moreFor(lesson),
    state.hint,
  ].filter(Boolean);
  return lines.length ? lines : [t.fine];
}

function moreFor({ accuracy, twice_as_many: share, per_class: perClass }) {
  if (share === null) return null;
  const many = Math.round(2 * perClass);
  return share - accuracy < 0.005 ? t.noMore(many) : t.more(share, many);
}

function suspectsOf(state) {
  const all = picturesById(state);
  return state.lesson.suspects
    .map((one) => ({ ...one, picture: all.get(one.id) }))
    .filter((one) => one.picture?.owner.id === one.given);
}

function wrongLabels(state) {
  const suspects = suspectsOf(state);
  const nameOf = (id) => state.lesson.classes.find((one) => one.id === id).name;
  const cards = suspects.slice(0, MOST_SUSPECTS).map(({ id, given, predicted, probability, picture }) => {
    const words = t.looksLike(nameOf(given), nameOf(predicted), probability);
    return h(
      "li",
      {},
      button(h("img", { src: pictureAddress(picture), alt: "" }), () => enlarge(pictureAddress(picture, true), words), { className: "plain", "aria-label": words }),
      h("div", {}, h("p", {}, words),
        h("p", { className: "row" },
          button(t.move(nameOf(predicted)), () => movePictures([id], predicted), { className: "main" }),
          button(t.keep(nameOf(given)), () => attempt(() => api.keepLabel(id))))),
    );
  });
  const text = h("p", { className: "quiet" }, suspects.length ? t.wrongText : t.wrongNone);
  const more = suspects.length > MOST_SUSPECTS ? h("p", { className: "quiet" }, t.first(MOST_SUSPECTS, suspects.length)) : null;
  return [h("h2", {}, t.wrong), text, more, suspects.length ? h("ul", { className: "suspects" }, cards) : null];
}
