// What the user has set: how the page looks, and what goes into every request.

import { button, h, notify } from "./dom.js";

const PLACE = "specllama.settings";

// Names are those of requests, and of llama-server's --ui-config.
const NUMBERS = [
  ["temperature", "Temperature", "How much chance there is in the choice of tokens.", 0, 5, 0.05],
  ["top_k", "Top K", "Choose from so many tokens; 0 is all.", 0, 1000, 1],
  ["top_p", "Top P", "Choose from the most likely tokens that together have this probability.", 0, 1, 0.01],
  ["min_p", "Min P", "Leave out what is less likely than this part of the likeliest.", 0, 1, 0.01],
  ["repeat_penalty", "Repeat penalty", "1 is none.", 0, 5, 0.05],
  ["presence_penalty", "Presence penalty", "0 is none.", -2, 2, 0.05],
  ["frequency_penalty", "Frequency penalty", "0 is none.", -2, 2, 0.05],
  ["max_tokens", "Most tokens", "Of an answer; -1 is any number.", -1, 1000000, 1],
  ["seed", "Seed", "The same seed gives the same answer.", -1, 4294967295, 1],
];
const TEXTS = [
  ["jsonSchema", "JSON schema", "Answers are JSON of this schema.", '{"type": "object", "properties": {}}'],
  ["tools", "Tools", "A list of functions that the model may call, as in requests to /v1/chat/completions.",
    '[{"type": "function", "function": {"name": "…"}}]'],
  ["custom", "More fields", "An object of other fields for every request.", '{"cache_prompt": true}'],
];
const KNOWN = new Set(["theme", "systemMessage", ...[...NUMBERS, ...TEXTS].map(([name]) => name)]);

let own = read();
let given = {}; // by --ui-config

function read() {
  try {
    const found = JSON.parse(localStorage.getItem(PLACE) ?? "{}");
    return Object.fromEntries(Object.entries(found).filter(([name]) => KNOWN.has(name)));
  } catch {
    return {};
  }
}

export function offer(settings) {
  given = settings ?? {};
  applyTheme();
}

export const setting = (name) => own[name] ?? given[name] ?? "";

export function set(name, value) {
  if (value === "") delete own[name];
  else own[name] = value;
  localStorage.setItem(PLACE, JSON.stringify(own));
}

export function isDark() {
  const theme = setting("theme");
  return theme === "dark" || (theme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
}

export function applyTheme() {
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
}

// The fields of a request that the settings give. Throws Error if one of the texts isn't JSON.
export function requestFields() {
  const fields = parsed("custom") ?? {};
  for (const [name] of NUMBERS) {
    const value = setting(name);
    if (value !== "" && Number.isFinite(Number(value))) fields[name] = Number(value);
  }
  const schema = parsed("jsonSchema");
  if (schema) {
    fields.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  }
  const tools = parsed("tools");
  if (tools) fields.tools = tools;
  return fields;
}

function parsed(name) {
  const value = setting(name);
  if (typeof value !== "string") return value;
  if (!value.trim()) return null;
  try {
    return JSON.parse(value);
  } catch (error) {
    const label = TEXTS.find(([each]) => each === name)[1];
    throw new Error(`${label} in the settings is not JSON: ${error.message}`);
  }
}

// The dialog of all settings; `defaults` are those of the server.
export function openSettings(defaults, actions) {
  const dialog = h("dialog", { class: "dialog", "aria-labelledby": "settings-title" });
  const fields = [
    h("fieldset", {}, h("legend", {}, "Appearance"), themeField()),
    h("fieldset", {}, h("legend", {}, "Conversation"),
      textField("systemMessage", "System prompt", "Goes before every conversation.", "")),
    h("fieldset", {}, h("legend", {}, "Sampling"), h("p", { class: "hint" }, "What is empty is up to the server."),
      h("div", { class: "grid" }, NUMBERS.map((each) => numberField(defaults, ...each)))),
    h("fieldset", {}, h("legend", {}, "Requests"), TEXTS.map((each) => textField(...each))),
    h("fieldset", {}, h("legend", {}, "Kept conversations"),
      h("p", { class: "hint" }, "They are kept in this browser, and nowhere else."),
      h("div", { class: "actions start" }, actions.map(([label, act, kind]) =>
        h("button", { type: "button", class: kind ?? "plain", onclick: () => act(dialog) }, label)))),
  ];
  dialog.append(
    h("div", { class: "dialog-head" }, h("h2", { id: "settings-title" }, "Settings"),
      button("close", "Close", () => dialog.close())),
    h("div", { class: "dialog-body" }, fields),
  );
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  document.body.append(dialog);
  dialog.showModal();
}

function themeField() {
  const options = [["", "As the system"], ["light", "Light"], ["dark", "Dark"]];
  const select = h("select", { id: "set-theme", onchange: () => { set("theme", select.value); applyTheme(); } },
    options.map(([value, label]) => h("option", { value }, label)));
  select.value = setting("theme");
  return h("div", { class: "field" }, h("label", { for: "set-theme" }, "Theme"), select);
}

function numberField(defaults, name, label, hint, min, max, step) {
  const standard = defaults[name] ?? given[name];
  const input = h("input", {
    id: `set-${name}`, type: "number", min, max, step: step < 1 ? "any" : step, inputmode: "decimal",
    value: own[name] ?? "", "aria-describedby": `hint-${name}`,
    placeholder: given[name] ?? (Number.isFinite(standard) && name !== "seed" ? +standard.toFixed(4) : ""),
    oninput: () => input.validity.valid && set(name, input.value === "" ? "" : Number(input.value)),
  });
  return h("div", { class: "field" }, h("label", { for: `set-${name}` }, label), input,
    h("small", { id: `hint-${name}`, class: "hint" }, hint));
}

function textField(name, label, hint, placeholder) {
  const value = setting(name);
  const area = h("textarea", {
    id: `set-${name}`, rows: name === "systemMessage" ? 4 : 3, spellcheck: "false", placeholder,
    class: name === "systemMessage" ? "" : "mono", "aria-describedby": `hint-${name}`,
    value: typeof value === "string" ? value : JSON.stringify(value, null, 1),
    oninput: () => set(name, area.value),
    onchange: () => {
      try {
        if (name !== "systemMessage") parsed(name);
      } catch (error) {
        notify(error.message, "error");
      }
    },
  });
  return h("div", { class: "field" }, h("label", { for: `set-${name}` }, label), area,
    h("small", { id: `hint-${name}`, class: "hint" }, hint));
}
