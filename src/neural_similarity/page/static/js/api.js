/* Requests to the server. An error is an Error whose message is one sentence to show. */

import { texts } from "./texts.js";

async function request(method, path, options = {}) {
  let answer;
  try {
    answer = await fetch(`/api/${path}`, { method, ...options });
  } catch {
    throw new Error(texts.gone.away);
  }
  const values = await answer.json().catch(() => ({}));
  if (!answer.ok) throw Object.assign(new Error(values.error ?? texts.error), { status: answer.status });
  return values;
}

const json = (values) => ({ headers: { "content-type": "application/json" }, body: JSON.stringify(values) });

export const api = {
  state: () => request("GET", "state"),
  addClass: (name) => request("POST", "classes", json({ name })),
  renameClass: (id, name) => request("PATCH", `classes/${id}`, json({ name })),
  deleteClass: (id) => request("DELETE", `classes/${id}`),
  addPicture: (id, name, file) =>
    request("POST", `classes/${id}/pictures?name=${encodeURIComponent(name)}`, { body: file }),
  movePictures: (ids, to) => request("POST", "move", json({ ids, to })),
  undoMove: (move) => request("POST", `moves/${move}/undo`),
  deletePictures: (ids) => request("POST", "delete", json({ ids })),
  keepLabel: (id) => request("POST", `keep/${id}`),
  restore: (entry) => request("POST", `bin/${entry}/restore`),
  emptyBin: () => request("DELETE", "bin"),
  tryPicture: (file) => request("POST", "try", { body: file }),
  pack: () => request("POST", "take-away"),
};

export const pictureAddress = (picture, large = false) =>
  `/api/pictures/${picture.id}?v=${picture.version}${large ? "&large=true" : ""}`;
