/* The bin: what was deleted can be restored. */

import { api } from "./api.js";
import { button, h, show } from "./dom.js";
import { attempt, confirmed } from "./notices.js";
import { texts } from "./texts.js";

const t = texts.teach;

/** Show the bin; it is redrawn only if it has changed, to keep the focus. */
export function drawBin(bin, entries) {
  bin.hidden = !entries.length;
  const key = JSON.stringify(entries);
  if (bin.dataset.key === key) return;
  bin.dataset.key = key;
  const items = entries.map((entry) => {
    const name = entry.whole ? t.binClass(entry.label, entry.count) : t.binPictures(entry.label, entry.count);
    return h("li", {}, name, button(t.restore, () => attempt(() => api.restore(entry.id)), { "aria-label": `${t.restore}: ${name}` }));
  });
  const empty = button(t.emptyBin, async () => {
    if (await confirmed(t.emptyTitle, t.emptyText, t.emptyBin)) attempt(api.emptyBin);
  });
  show(bin, h("summary", {}, t.bin(entries.length)), h("ul", {}, items), empty);
}
