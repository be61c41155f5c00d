// Attachments of a message: texts, PDFs, and images, sounds and videos if the server supports them.

import { h, button, icon, notify } from "./dom.js";

const MAX_TEXT = 2 << 20; // bytes
const MAX_MEDIA = 24 << 20;
const PDF = "application/pdf";
const IMAGES = ["image/png", "image/jpeg", "image/gif", "image/webp", "image/bmp"];
const SOUNDS = { "audio/wav": "wav", "audio/x-wav": "wav", "audio/wave": "wav", "audio/vnd.wave": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3" };
const VIDEOS = ["video/mp4", "video/webm", "video/quicktime", "video/x-matroska", "video/x-msvideo", "video/mpeg"];

// Returns the file types for the file picker.
export function accepted(modalities) {
  const kinds = ["text/*", PDF, ".md", ".json", ".yaml", ".yml", ".toml", ".py", ".js", ".ts", ".rs", ".go", ".c", ".h", ".cpp", ".java", ".sh", ".sql", ".csv", ".log", ".xml"];
  if (modalities.vision) kinds.push(...IMAGES);
  if (modalities.audio) kinds.push("audio/wav", "audio/mpeg");
  if (modalities.video) kinds.push(...VIDEOS);
  return kinds.join(",");
}

// Returns files as attachments, and notifies the user about unsupported files.
export async function readFiles(files, modalities) {
  const read = [];
  for (const file of files) {
    try {
      read.push(await readFile(file, modalities));
    } catch (error) {
      notify(`${file.name}: ${error.message}`, "error");
    }
  }
  return read;
}

async function readFile(file, modalities) {
  const name = file.name || "pasted";
  if (file.type.startsWith("image/") && file.type !== "image/svg+xml") {
    if (!modalities.vision) throw new Error("this model doesn't support images");
    if (!IMAGES.includes(file.type)) throw new Error("images must be PNG, JPEG, GIF, WebP or BMP");
    return { kind: "image", name, data: await dataUrl(file, file.type) };
  }
  if (file.type.startsWith("audio/")) {
    if (!modalities.audio) throw new Error("this model doesn't support sounds");
    if (!SOUNDS[file.type]) throw new Error("sounds must be WAV or MP3");
    return { kind: "audio", name, data: await dataUrl(file, SOUNDS[file.type] === "wav" ? "audio/wav" : "audio/mpeg") };
  }
  if (file.type === PDF) return { kind: "pdf", name, data: await dataUrl(file, PDF) };
  if (file.type.startsWith("video/")) {
    if (!modalities.video) throw new Error("videos are not supported");
    if (!VIDEOS.includes(file.type)) throw new Error("videos must be MP4, WebM, QuickTime, Matroska, AVI or MPEG");
    return { kind: "video", name, data: await dataUrl(file, file.type) };
  }
  if (file.size > MAX_TEXT) throw new Error("texts may have at most 2 MiB");
  const data = new Uint8Array(await file.arrayBuffer());
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(data);
    if (text.includes("\0")) throw new Error();
    return { kind: "text", name, data: text };
  } catch {
    throw new Error("this is not a text in UTF-8");
  }
}

async function dataUrl(file, type) {
  if (file.size > MAX_MEDIA) throw new Error("files may have at most 24 MiB");
  const bytes = new Uint8Array(await file.arrayBuffer());
  let binary = "";
  for (let at = 0; at < bytes.length; at += 32768) {
    binary += String.fromCharCode(...bytes.subarray(at, at + 32768));
  }
  return `data:${type};base64,${btoa(binary)}`;
}

// Returns the `content` of a user's message in a request.
export function contentOf(text, files) {
  if (!files?.length) return text;
  const texts = files.filter((each) => each.kind === "text");
  const whole = [...texts.map((each) => `File ${each.name}:\n\n${each.data}`), text].filter(Boolean).join("\n\n");
  const media = files.filter((each) => each.kind !== "text");
  if (!media.length) return whole;
  return [...media.map(mediaPart), ...(whole ? [{ type: "text", text: whole }] : [])];
}

function mediaPart({ kind, name, data }) {
  if (kind === "pdf") return { type: "file", file: { filename: name, file_data: data } };
  if (kind === "image") return { type: "image_url", image_url: { url: data } };
  if (kind === "video") return { type: "input_video", input_video: { url: data } };
  const [head, encoded] = data.split(",");
  return { type: "input_audio", input_audio: { data: encoded, format: head.includes("wav") ? "wav" : "mp3" } };
}

// Returns the element of an attachment, with a button for `remove` if given.
export function fileView(file, remove) {
  const inside =
    file.kind === "image" ? h("img", { src: file.data, alt: file.name })
    : file.kind === "audio" ? h("audio", { src: file.data, controls: true, "aria-label": file.name })
    : file.kind === "video" ? h("video", { src: file.data, controls: true, "aria-label": file.name })
    : file.kind === "pdf" ? h("span", { class: "name" }, icon("file"), h("span", {}, file.name))
    : h("details", {}, h("summary", {}, icon("file"), h("span", {}, file.name)),
        h("pre", { tabindex: "0" }, file.data.slice(0, 20000)));
  return h("div", { class: `file ${file.kind}` }, inside,
    remove && button("close", `Remove ${file.name}`, remove, { class: "icon-button remove" }));
}
