/* Changes that can be undone: each offers that, for as long as it is possible. */

import { api } from "./api.js";
import { attempt, notify } from "./notices.js";
import { store } from "./store.js";
import { texts } from "./texts.js";

const t = texts.teach;

/** Move pictures to the bin. */
export async function erasePictures(ids) {
  const answer = await attempt(() => api.deletePictures(ids));
  if (answer) offerRestore(t.erased(ids.length), answer);
}

/** Move a class to the bin. */
export async function eraseClass(id) {
  const name = store.classOf(id)?.name;
  const answer = await attempt(() => api.deleteClass(id));
  if (answer) offerRestore(t.classErased(name), answer);
}

/** Move pictures to another class. */
export async function movePictures(ids, to) {
  const name = store.classOf(to)?.name ?? "";
  const answer = await attempt(() => api.movePictures(ids, to));
  if (!answer?.ids.length) return;
  const isPossible = (state) => state.moves.includes(answer.move);
  offer(t.moved(answer.ids.length, name), answer.revision, isPossible, () => api.undoMove(answer.move));
}

function offerRestore(message, { entries, revision }) {
  const isPossible = (state) => state.bin.some((one) => entries.includes(one.id));
  offer(message, revision, isPossible, () => restoreAll(entries));
}

/** Restore what is still in the bin; fails if nothing is. */
async function restoreAll(entries) {
  let gone = null;
  let count = 0;
  for (const entry of entries) {
    try {
      await api.restore(entry);
      count += 1;
    } catch (error) {
      if (error.status !== 404) throw error;
      gone = error;
    }
  }
  if (!count) throw gone;
}

function offer(message, revision, isPossible, undo) {
  const run = () =>
    attempt(async () => {
      await undo();
      notify(t.restored);
    });
  // A state from before the change cannot tell.
  const isCurrent = (state) => state.revision < revision || isPossible(state);
  notify(message, { action: { text: texts.undo, run }, isCurrent });
}
