/* Starts the page: texts, views, and the status line. */

import { h, setText, show } from "./dom.js";
import { startSee } from "./see.js";
import { listen, onServerChange, store } from "./store.js";
import { startTake } from "./take.js";
import { startTeach } from "./teach.js";
import { textAt, texts } from "./texts.js";
import { startTry } from "./try.js";

const VIEWS = { teach: startTeach, see: startSee, try: startTry, take: startTake };
const byId = (id) => document.getElementById(id);

for (const element of document.querySelectorAll("[data-text]")) element.textContent = textAt(element.dataset.text);
byId("views").setAttribute("aria-label", texts.views);
for (const [name, start] of Object.entries(VIEWS)) start(byId(`view-${name}`));

function chooseView(moveFocus) {
  const name = location.hash.slice(1) in VIEWS ? location.hash.slice(1) : "teach";
  for (const other of Object.keys(VIEWS)) {
    byId(`view-${other}`).hidden = other !== name;
    const link = document.querySelector(`nav a[href="#${other}"]`);
    if (other === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${textAt(`${name}.name`)} · ${store.state?.project ?? "nsl teach"}`;
  byId(`view-${name}`).dispatchEvent(new Event("shown"));
  if (moveFocus) {
    scrollTo(0, 0);
    byId("main").focus({ preventScroll: true });
  }
}
addEventListener("hashchange", () => chooseView(true));

/** The status line, also for screen readers: what is going on, and the accuracy. */
function drawSummary(state) {
  const { stage, done, total } = state.status;
  const { lesson } = state;
  const place = byId("summary");
  const activity = { features: () => texts.status.features(done, total), learning: () => texts.status.learning,
    comparing: () => texts.status.comparing, failed: () => texts.status.failed }[stage]?.() ?? "";
  let result = texts.status.nothing;
  if (lesson) result = lesson.accuracy === null ? texts.status.untested : texts.status.accuracy(lesson.accuracy, lesson.interval);
  if (!place.firstChild) show(place, h("strong", {}), h("span", { className: "activity" }));
  setText(place.firstChild, result);
  setText(place.lastChild, activity);
  place.classList.toggle("old", Boolean(lesson) && !lesson.is_current);
  place.classList.toggle("busy", Boolean(activity) && stage !== "failed");
}

store.subscribe((state) => {
  setText(byId("project"), state.project);
  drawSummary(state);
});
onServerChange((server) => {
  byId("gone").hidden = server === "here";
  setText(byId("gone"), server === "here" ? "" : texts.gone[server]);
});
// A picture dropped outside its target must not replace the page.
for (const kind of ["dragover", "drop"]) addEventListener(kind, (event) => event.preventDefault());

await store.refresh();
chooseView(false);
listen();
