/* Runs the model on a picture; everything it needs is in this file. */

const byId = (id) => document.getElementById(id);
const facts = JSON.parse(byId("facts").textContent);
const [words, verdict, bars, shown, video, live] = ["words", "verdict", "bars", "shown", "video", "live"].map(byId);
byId("title").textContent = document.title = facts.name;

function bytesOf(id) {
  const text = atob(byId(id).textContent.trim());
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i += 1) bytes[i] = text.charCodeAt(i);
  byId(id).remove();
  return bytes;
}

async function load() {
  const source = URL.createObjectURL(new Blob([new TextDecoder().decode(bytesOf("runtime"))], { type: "text/javascript" }));
  const ort = await import(source);
  const unzipped = new Blob([bytesOf("wasm")]).stream().pipeThrough(new DecompressionStream("gzip"));
  ort.env.wasm.wasmBinary = await new Response(unzipped).arrayBuffer();
  ort.env.wasm.numThreads = 1;
  const session = await ort.InferenceSession.create(bytesOf("model"), { executionProviders: ["wasm"] });
  return { ort, session };
}

const loading = load();
loading.then(
  () => {
    words.textContent = "";
    byId("choose").disabled = live.disabled = false;
  },
  (error) => (words.textContent = `The model cannot run in this browser: ${error.message}`),
);

function pixelsOf(picture, width, height) {
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "white";
  context.fillRect(0, 0, width, height);
  context.drawImage(picture, 0, 0);
  return context.getImageData(0, 0, width, height);
}

async function classify(pixels) {
  const { ort, session } = await loading;
  const { image_size: side, mean } = facts.preprocessing;
  const image = new ort.Tensor("float32", prepared(pixels, facts.preprocessing), [1, mean.length, side, side]);
  const { scores, distance } = await session.run({ image });
  const most = Math.max(...scores.data);
  const powers = [...scores.data].map((score) => Math.exp(score - most));
  const sum = powers.reduce((a, b) => a + b, 0);
  const shares = facts.classes.map((name, place) => ({ name: String(name), share: powers[place] / sum }));
  shares.sort((a, b) => b.share - a.share);
  const known = facts.largest_distance === null || distance === undefined || distance.data[0] <= facts.largest_distance;
  show(shares, known);
}

function show(shares, known) {
  const percent = (share) => `${(100 * share).toFixed(0)} %`;
  verdict.textContent = known ? `${shares[0].name}, ${percent(shares[0].share)}` : "None of these";
  bars.replaceChildren(
    ...shares.slice(0, 10).map(({ name, share }) => {
      const [item, label, bar, fill, value] = ["li", "span", "span", "i", "span"].map((tag) => document.createElement(tag));
      label.textContent = name;
      bar.className = "bar";
      fill.style.width = `${100 * share}%`;
      value.textContent = percent(share);
      bar.append(fill);
      item.append(label, bar, value);
      return item;
    }),
  );
}

async function tryFile(file) {
  if (!file) return;
  endLive();
  try {
    const bitmap = await createImageBitmap(file, { imageOrientation: "from-image", colorSpaceConversion: "none" });
    shown.src = URL.createObjectURL(file);
    shown.hidden = false;
    words.textContent = "Classifying …";
    await classify(pixelsOf(bitmap, bitmap.width, bitmap.height));
    words.textContent = "";
  } catch {
    words.textContent = "This file is not a readable picture.";
  }
}

let stream = null;
let opening = 0; // grows when the camera is opened or closed: the browser may ask in between
const stop = (some) => some?.getTracks().forEach((track) => track.stop());

function endLive() {
  opening += 1;
  stop(stream);
  stream = null;
  video.hidden = true;
  live.textContent = "Live camera";
}

live.addEventListener("click", async () => {
  if (stream) return endLive();
  endLive();
  const mine = opening;
  try {
    const opened = await navigator.mediaDevices.getUserMedia({ video: { width: { ideal: 640 } } });
    if (mine !== opening) return stop(opened);
    video.srcObject = stream = opened;
    video.hidden = !(shown.hidden = true);
    live.textContent = "Stop camera";
    await video.play();
  } catch {
    if (mine !== opening) return;
    endLive();
    return (words.textContent = "No camera is available. Choose a picture instead.");
  }
  while (mine === opening) {
    await classify(pixelsOf(video, video.videoWidth, video.videoHeight));
    await new Promise(requestAnimationFrame);
  }
});

byId("choose").addEventListener("click", () => byId("file").click());
byId("file").addEventListener("change", (event) => tryFile(event.target.files[0]));
addEventListener("paste", (event) => tryFile(event.clipboardData.files[0]));
for (const kind of ["dragover", "drop"]) {
  addEventListener(kind, (event) => {
    event.preventDefault();
    byId("zone").classList.toggle("over", kind === "dragover");
    if (kind === "drop") tryFile(event.dataTransfer.files[0]);
  });
}
