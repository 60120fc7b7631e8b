/* The upload queue: a few pictures at once, with one report at the end. */

import { api } from "./api.js";
import { dismiss, notify } from "./notices.js";
import { store } from "./store.js";
import { texts } from "./texts.js";

const AT_ONCE = 3;
const MOST_NAMED = 6;
const queue = [];
let running = 0;
let batch = newBatch();
let onProgress = () => {};

function newBatch() {
  return { total: 0, done: 0, added: new Map(), skipped: [] };
}

/** Call a function with { done, total } while pictures are uploaded, and with null afterwards. */
export const onUploads = (listener) => (onProgress = listener);

/** Add files to a class; quietly if the caller reports how many. */
export function upload(classId, files, isQuiet = false) {
  batch.isQuiet = isQuiet;
  for (const file of files) queue.push({ classId, file });
  batch.total += files.length;
  onProgress(batch);
  while (running < AT_ONCE && queue.length) work();
}

async function work() {
  running += 1;
  while (queue.length) {
    const { classId, file } = queue.shift();
    await send(classId, file);
    batch.done += 1;
    onProgress(batch);
  }
  running -= 1;
  if (!running && batch.total) finish();
}

async function send(classId, file) {
  try {
    const limit = store.state.limits.bytes;
    if (file.size > limit) throw new Error(texts.teach.tooLarge(limit));
    await api.addPicture(classId, file.name, file);
    batch.added.set(classId, (batch.added.get(classId) ?? 0) + 1);
  } catch (error) {
    batch.skipped.push(texts.teach.skippedOne(file.name, error.message));
  }
}

function finish() {
  const { added, skipped, isQuiet } = batch;
  batch = newBatch();
  onProgress(null);
  const count = [...added.values()].reduce((a, b) => a + b, 0);
  const names = [...added.keys()].map((id) => store.classOf(id)?.name).filter(Boolean);
  if (count) dismiss("error");
  if (names.length && !isQuiet) {
    const words = names.length === 1 ? texts.teach.added(count, names[0]) : texts.teach.addedToMany(count, names.length);
    notify(words, { key: "added" });
  }
  if (skipped.length) {
    const more = skipped.length - MOST_NAMED;
    const lines = skipped.slice(0, MOST_NAMED).concat(more > 0 ? [texts.teach.skippedMore(more)] : []);
    notify(texts.teach.skipped(skipped.length), { details: lines, isError: true, key: "skipped" });
  } else if (count) {
    dismiss("skipped");
  }
}
