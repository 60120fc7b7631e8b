/* The confusion matrix: a table whose numbers open the pictures behind them. */

import { pictureAddress } from "./api.js";
import { button, h, show } from "./dom.js";
import { enlarge } from "./notices.js";
import { texts } from "./texts.js";

const t = texts.see;
const MOST_SHOWN = 60;

export function drawMatrix(state, pictures) {
  const { classes, confusion, tests } = state.lesson;
  const behind = h("div", { className: "behind", "aria-live": "polite" }, h("p", { className: "quiet" }, t.behind));
  const open = (row, column, event) => {
    for (const other of event.currentTarget.closest("table").querySelectorAll("[aria-pressed=true]")) other.setAttribute("aria-pressed", "false");
    event.currentTarget.setAttribute("aria-pressed", "true");
    const chosen = [...pictures.values()].filter((one) => one.owner.id === classes[row].id && tests[one.id]?.predicted === classes[column].id);
    const caption = t.cell(confusion[row][column], classes[row].name, classes[column].name);
    const more = chosen.length > MOST_SHOWN ? h("p", { className: "quiet" }, t.first(MOST_SHOWN, chosen.length)) : null;
    show(behind, h("h3", {}, caption), more, h("ul", { className: "strip" }, chosen.slice(0, MOST_SHOWN).map((one) => h("li", {}, thumb(one)))));
  };
  const cell = (row, column) => {
    const count = confusion[row][column];
    const share = count / Math.max(1, confusion[row].reduce((a, b) => a + b, 0));
    const td = h("td", { className: row === column ? "right" : "wrong" });
    td.style.setProperty("--share", count ? 0.15 + 0.85 * share : 0);
    const name = t.cell(count, classes[row].name, classes[column].name);
    td.append(count ? button(String(count), (event) => open(row, column, event), { "aria-label": name, "aria-pressed": "false", title: name }) : h("span", {}, "·"));
    return td;
  };
  const head = h("tr", {}, h("th", { className: "corner" }, `${t.given} \\ ${t.predicted}`), classes.map((one) => h("th", { scope: "col" }, h("span", {}, one.name))));
  const rows = classes.map((one, row) => h("tr", {}, h("th", { scope: "row" }, one.name), classes.map((_, column) => cell(row, column))));
  const table = h("table", { className: "matrix" }, h("thead", {}, head), h("tbody", {}, rows));
  return [
    h("h2", { id: "matrix-title" }, t.confusion),
    h("p", { className: "quiet" }, t.confusionText),
    h("div", { className: "scroll", tabIndex: 0, role: "region", "aria-labelledby": "matrix-title" }, table),
    behind,
  ];
}

function thumb(picture) {
  return button(h("img", { src: pictureAddress(picture), alt: picture.name, loading: "lazy" }), () => enlarge(pictureAddress(picture, true), picture.name), { className: "plain" });
}
