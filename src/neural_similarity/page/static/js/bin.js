/* The bin: what was deleted can come back. */

import { api } from "./api.js";
import { button, h, show } from "./dom.js";
import { attempt, confirmed, notify } from "./notices.js";
import { texts } from "./texts.js";

const t = texts.teach;

/** Move pictures to the bin, and offer to bring them back. */
export async function erasePictures(ids) {
  const answer = await attempt(() => api.deletePictures(ids));
  if (answer) offerUndo(t.erased(ids.length), answer.entries);
}

export function offerUndo(message, entries) {
  const run = () =>
    attempt(async () => {
      for (const entry of entries) await api.restore(entry);
      notify(t.restored);
    });
  notify(message, { action: { text: texts.undo, run } });
}

/** Show what is in the bin; drawn anew only if that has changed, so that focus stays. */
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
