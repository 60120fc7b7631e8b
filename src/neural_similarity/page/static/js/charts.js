/* Two small charts of accuracy, each with its numbers as a table for those who cannot see it. */

import { h, svg } from "./dom.js";
import { percent, texts } from "./texts.js";

const t = texts.see;
const WIDTH = 460;
const HEIGHT = 230;
const LEFT = 44;
const BOTTOM = 34;
const TOP = 12;
const RIGHT = 14;

/** Accuracy as pictures were added, with its interval. */
export function historyChart(history) {
  const points = history.map((one) => ({ x: one.pictures, y: one.accuracy, low: one.low, high: one.high }));
  const ordered = points.filter((one, place) => place === 0 || one.x !== points[place - 1].x).sort((a, b) => a.x - b.x);
  return chart(ordered, t.axisPictures, t.history, points.at(-1), null);
}

/** Accuracy with fewer pictures of each class, now, and with twice as many. */
export function curveChart(lesson) {
  const points = lesson.curve.map(([x, y]) => ({ x, y }));
  if (lesson.accuracy !== null && points.length) points.push({ x: lesson.per_class, y: lesson.accuracy, name: t.now });
  const next = lesson.twice_as_many === null ? null : { x: 2 * lesson.per_class, y: lesson.twice_as_many, name: t.expected };
  return chart(points, t.axisPerClass, t.curve, points.at(-1), next);
}

/** `newest` is named to screen readers; `next` is only expected. */
function chart(points, axis, title, newest, next) {
  if (points.length < 2) return h("p", { className: "nothing" }, t.tooEarly);
  const all = next ? [...points, next] : points;
  const xs = all.map((one) => one.x);
  const ys = all.flatMap((one) => [one.low ?? one.y, one.high ?? one.y]);
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
  const y0 = Math.min(0.5, Math.max(0, Math.floor(10 * Math.min(...ys)) / 10)); // small steps look small
  const x = (value) => LEFT + ((value - x0) / (x1 - x0 || 1)) * (WIDTH - LEFT - RIGHT);
  const y = (value) => TOP + (1 - (value - y0) / (1 - y0 || 1)) * (HEIGHT - TOP - BOTTOM);
  const path = (some) => some.map((one, place) => `${place ? "L" : "M"}${x(one.x).toFixed(1)} ${y(one.y).toFixed(1)}`).join("");
  const picture = svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "img", "aria-label": `${title}: ${percent(newest.y)}` },
    ticks(y0, 1, 4).map((value) => [
      svg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value), class: "gridline" }),
      svg("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, percent(value)),
    ]),
    [x0, x1].map((value, place) => svg("text", { x: x(value), y: HEIGHT - 16, "text-anchor": place ? "end" : "start" }, String(Math.round(value)))),
    svg("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, axis),
    band(points, x, y),
    svg("path", { d: path(points), class: "line" }),
    next ? svg("path", { d: path([points.at(-1), next]), class: "line next" }) : null,
    all.map((one) => svg("circle", { cx: x(one.x), cy: y(one.y), r: one === next ? 5 : 4, class: one === next ? "dot next" : "dot" })),
  );
  return h("div", {}, picture, numbers(all, axis));
}

function band(points, x, y) {
  if (points.some((one) => one.low === undefined)) return null;
  const up = points.map((one) => `${x(one.x)},${y(one.high)}`);
  const down = points.map((one) => `${x(one.x)},${y(one.low)}`).reverse();
  return svg("polygon", { points: [...up, ...down].join(" "), class: "band" });
}

function ticks(low, high, most) {
  const step = [0.05, 0.1, 0.2, 0.25, 0.5].find((size) => (high - low) / size <= most) ?? 0.5;
  const values = [];
  for (let value = high; value >= low - 1e-9; value -= step) values.push(value);
  return values;
}

function numbers(points, axis) {
  const rows = points.map((one) => h("tr", {}, h("td", {}, String(Math.round(one.x))), h("td", {}, percent(one.y, 1) + (one.name ? ` (${one.name})` : ""))));
  const head = h("tr", {}, h("th", { scope: "col" }, axis), h("th", { scope: "col" }, t.accuracy));
  return h("details", { className: "numbers" }, h("summary", {}, t.numbers), h("table", {}, h("thead", {}, head), h("tbody", {}, rows)));
}
