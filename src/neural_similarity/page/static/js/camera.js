/* The camera: pictures while a button is held, and a live view. */

import { texts } from "./texts.js";

const SIDE = 640;

/** Show the camera in a <video>; returns what closes it. The error's message is a sentence for people. */
export async function openCamera(video, isWanted = () => true) {
  if (!navigator.mediaDevices?.getUserMedia) throw new Error(texts.camera.none);
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { width: { ideal: SIDE } }, audio: false });
  } catch (error) {
    const reason = { NotAllowedError: "denied", NotReadableError: "busy" }[error.name] ?? "none";
    throw new Error(texts.camera[reason]);
  }
  const close = () => {
    for (const track of stream.getTracks()) track.stop();
    if (video.srcObject === stream) video.srcObject = null; // a newer opening may have replaced it
  };
  try {
    if (!isWanted()) return close; // the video belongs to a newer opening
    video.srcObject = stream;
    await video.play();
  } catch {
    close();
    throw new Error(texts.camera.busy);
  }
  return close;
}

/** The current frame as a JPEG file. */
export function frame(video, name = "camera") {
  const canvas = document.createElement("canvas");
  const scale = Math.min(1, SIDE / Math.max(video.videoWidth, video.videoHeight));
  canvas.width = Math.round(video.videoWidth * scale);
  canvas.height = Math.round(video.videoHeight * scale);
  canvas.getContext("2d").drawImage(video, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => {
    canvas.toBlob((blob) => resolve(new File([blob], `${name}.jpg`, { type: "image/jpeg" })), "image/jpeg", 0.92);
  });
}
