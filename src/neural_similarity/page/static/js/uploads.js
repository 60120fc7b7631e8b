/* The upload queue: a few pictures at once, with one report at the end. */

import { api } from "./api.js";
import { dismiss, notify } from "./notices.js";
import { store } from "./store.js";
import { texts } from "./texts.js";

const AT_ONCE = 3;
const MOST_NAMED = 6;
const queue = []; // [{ classId, file }]
const sending = new Set(); // those that have left the queue
let renaming = null;
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
  if (!files.length) return; // nothing would end the batch
  batch.isQuiet = isQuiet;
  for (const file of files) queue.push({ classId, file });
  batch.total += files.length;
  onProgress(batch);
  while (running < AT_ONCE && queue.length) work();
}

/** Rename a class. Its identifier comes from its name, so pictures on their way to it get the new one. */
export function renameClass(id, name) {
  renaming = follow(id, name);
  return renaming;
}

async function follow(old, name) {
  const renamed = await api.renameClass(old, name);
  if (renamed.id === old) return renamed;
  for (const entry of [...queue, ...sending]) if (entry.classId === old) entry.classId = renamed.id;
  const count = batch.added.get(old);
  if (batch.added.delete(old)) batch.added.set(renamed.id, count);
  return renamed;
}

async function work() {
  running += 1;
  while (queue.length) {
    const entry = queue.shift();
    sending.add(entry);
    await send(entry);
    sending.delete(entry);
    batch.done += 1;
    onProgress(batch);
  }
  running -= 1;
  if (!running && batch.total) finish();
}

async function send(entry) {
  const { classId, file } = entry;
  try {
    const limit = store.state.limits.bytes;
    if (file.size > limit) throw new Error(texts.teach.tooLarge(limit));
    await api.addPicture(classId, file.name, file);
    batch.added.set(entry.classId, (batch.added.get(entry.classId) ?? 0) + 1);
  } catch (error) {
    if (error.status === 404) await renaming?.catch(() => {}); // the class may have a new name by then
    if (entry.classId !== classId) return send(entry);
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
