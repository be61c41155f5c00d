// Requests to the page's own server. The API key is kept in the session storage.

import { h } from "./dom.js";

const KEY = "specllama.key";

export class ApiError extends Error {
  constructor(status, message, type) {
    super(message);
    this.status = status;
    this.type = type;
  }
}

let asking = null;

// Asks the user for an API key, once for all waiting requests. Returns false if the user cancels.
function askKey(rejected) {
  asking ??= new Promise((resolve) => {
    const input = h("input", {
      type: "password", id: "api-key", autocomplete: "off", required: true, spellcheck: "false",
    });
    const dialog = h(
      "dialog",
      { class: "dialog small", "aria-labelledby": "key-title" },
      h(
        "form",
        { method: "dialog" },
        h("h2", { id: "key-title" }, "API key"),
        h(
          "p",
          { class: "hint" },
          rejected ? "The server rejected this key. " : "This server needs a key. ",
          "It is kept until you close this tab.",
        ),
        h("label", { for: "api-key" }, "Key"),
        input,
        h(
          "div",
          { class: "actions" },
          h("button", { type: "button", class: "plain", onclick: () => dialog.close() }, "Cancel"),
          h("button", { type: "submit", class: "primary", value: "use" }, "Use this key"),
        ),
      ),
    );
    dialog.addEventListener("close", () => {
      const given = dialog.returnValue === "use" && input.value.trim();
      if (given) sessionStorage.setItem(KEY, given);
      dialog.remove();
      asking = null;
      resolve(Boolean(given));
    });
    document.body.append(dialog);
    dialog.showModal();
  });
  return asking;
}

// Returns the answer to a request, with an API key if the server needs one. Throws ApiError for
// failures.
export async function request(path, { body, signal, method, quiet = false } = {}) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const response = await fetch(path, {
      method: method ?? (body === undefined ? "GET" : "POST"),
      headers: {
        Accept: "application/json, text/event-stream, text/plain",
        ...(body === undefined ? {} : { "Content-Type": "application/json" }),
        ...(key ? { Authorization: `Bearer ${key}` } : {}),
      },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      credentials: "omit",
      cache: "no-store",
    });
    if (response.ok) return response;
    const error = await failure(response);
    if (response.status !== 401 || quiet) throw error;
    if (sessionStorage.getItem(KEY) === key && !(await askKey(Boolean(key)))) throw error;
  }
}

async function failure(response) {
  let message = `${response.status} ${response.statusText}`;
  let type = "";
  try {
    const { error } = await response.json();
    if (typeof error === "string") message = error;
    else ({ message = message, type = "" } = error);
  } catch {
    // A proxy in between may answer with data that isn't JSON.
  }
  return new ApiError(response.status, String(message), String(type));
}

export async function json(path, options) {
  return (await request(path, options)).json();
}

// Returns a response whose body fails after `most` bytes.
export function limited(response, most) {
  let seen = 0;
  const counter = new TransformStream({
    transform(bytes, controller) {
      seen += bytes.byteLength;
      if (seen > most) controller.error(new Error(`the answer is larger than ${most >> 20} MiB`));
      else controller.enqueue(bytes);
    },
  });
  return new Response(response.body.pipeThrough(counter), response);
}

// Returns the JSON document of such a response. (`Response.json` would report another error.)
export async function parsedBody(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) text += part.value;
  try {
    return JSON.parse(text);
  } catch {
    throw new Error("the answer is not JSON");
  }
}

// Yields the JSON documents of a stream of server-sent events, up to `[DONE]`.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let data = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split(/\r?\n/);
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
        else if (line === "" && data.length) {
          const text = data.join("\n");
          data = [];
          if (text === "[DONE]") return;
          yield JSON.parse(text);
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
