/* Files that people drop, paste or choose: whole folders too. */

import { notify } from "./notices.js";
import { texts } from "./texts.js";

const t = texts.teach;
const MOST_NAMED = 6;

/** What was dropped: [{ folder, file }], where folder is the name of the outermost folder, or "". */
export async function droppedFiles(transfer) {
  const entries = [...transfer.items]
    .filter((item) => item.kind === "file")
    .map((item) => item.webkitGetAsEntry?.() ?? item.getAsFile()); // all at once: they expire soon
  const found = [];
  const unreadable = [];
  for (const entry of entries) {
    if (entry instanceof File) found.push({ folder: "", file: entry });
    else if (entry) await collect(entry, entry.isDirectory ? entry.name : "", found, unreadable);
  }
  if (unreadable.length) report(unreadable);
  return found;
}

/** Add the files of an entry to `found`; the names of what the browser cannot read, to `unreadable`. */
async function collect(entry, folder, found, unreadable) {
  if (entry.name.startsWith(".")) return;
  try {
    if (entry.isFile) {
      found.push({ folder, file: await new Promise((resolve, reject) => entry.file(resolve, reject)) });
      return;
    }
    const reader = entry.createReader();
    for (;;) {
      const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
      if (!some.length) return; // a folder is read in pieces
      for (const one of some) await collect(one, folder, found, unreadable);
    }
  } catch {
    unreadable.push(entry.name);
  }
}

function report(names) {
  const lines = names.slice(0, MOST_NAMED).map((name) => t.skippedOne(name, t.unreadable));
  const more = names.length - MOST_NAMED;
  notify(t.skipped(names.length), { details: more > 0 ? [...lines, t.skippedMore(more)] : lines, isError: true, key: "unreadable" });
}

/** The pictures on the clipboard. */
export const pastedFiles = (event) =>
  [...(event.clipboardData?.files ?? [])].filter((file) => file.type.startsWith("image/"));

/** Let an element take files: `onDrop` gets the event's data, `accepts` decides which kinds. */
export function dropTarget(element, onDrop, accepts = (types) => types.includes("Files")) {
  let depth = 0; // events fire for every child too
  const isOurs = (event) => accepts([...event.dataTransfer.types]);
  element.addEventListener("dragenter", (event) => {
    if (!isOurs(event)) return;
    event.preventDefault();
    depth += 1;
    element.classList.add("over");
  });
  element.addEventListener("dragover", (event) => isOurs(event) && event.preventDefault());
  element.addEventListener("dragleave", (event) => {
    if (isOurs(event)) depth -= 1;
    if (depth <= 0) element.classList.remove("over");
  });
  element.addEventListener("drop", (event) => {
    if (!isOurs(event)) return;
    event.preventDefault();
    event.stopPropagation();
    depth = 0;
    element.classList.remove("over");
    onDrop(event.dataTransfer);
  });
}
