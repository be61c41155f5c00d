// The user's settings: the look of the page, and fields of every request.

import { button, h, notify, replace } from "./dom.js";

const PLACE = "specllama.settings";

// Names are those of requests, and of llama-server's --ui-config.
const NUMBERS = [
  ["temperature", "Temperature", "The randomness of the choice of tokens.", 0, 5, 0.05],
  ["top_k", "Top K", "Choose from this number of the likeliest tokens; 0 means all.", 0, 1000, 1],
  ["top_p", "Top P", "Choose from the likeliest tokens that together have this probability.", 0, 1, 0.01],
  ["min_p", "Min P", "Exclude tokens less likely than this fraction of the likeliest token's probability.", 0, 1, 0.01],
  ["repeat_penalty", "Repeat penalty", "1 means no penalty.", 0, 5, 0.05],
  ["presence_penalty", "Presence penalty", "0 means no penalty.", -2, 2, 0.05],
  ["frequency_penalty", "Frequency penalty", "0 means no penalty.", -2, 2, 0.05],
  ["max_tokens", "Token limit", "The maximum for an answer; -1 means no limit.", -1, 1000000, 1],
  ["seed", "Seed", "The same seed gives the same answer.", -1, 4294967295, 1],
];
const TEXTS = [
  ["jsonSchema", "JSON schema", "Answers are JSON that follows this schema.", '{"type": "object", "properties": {}}'],
  ["tools", "Functions", "A list of functions that the model may call, as in requests to /v1/chat/completions. You enter their results.",
    '[{"type": "function", "function": {"name": "…"}}]'],
  ["custom", "More fields", "An object with further fields for every request.", '{"cache_prompt": true}'],
];
export const THINKING = [["auto", "Thinking: server default"], ["on", "Thinking: on"], ["off", "Thinking: off"]];
const OF_REQUESTS = new Set(["systemMessage", "thinking", "serverTools", "toolRounds", ...[...NUMBERS, ...TEXTS].map(([name]) => name)]);
const MAX_TEXT = 1 << 20; // characters of a setting

// Whether a setting of this name exists. `tool:NAME` is "off" for a tool that the model may not call.
const isKnown = (name) => OF_REQUESTS.has(name) || name.startsWith("tool:");

let own = read();
let given = {}; // from --ui-config

function read() {
  try {
    const found = JSON.parse(localStorage.getItem(PLACE) ?? "{}");
    return Object.fromEntries(Object.entries(found).filter(([name]) => name === "theme" || isKnown(name)));
  } catch {
    return {};
  }
}

export function offer(settings) {
  given = settings ?? {};
  applyTheme();
}

// Returns a setting. Settings of the conversation itself win over the others.
export const setting = (name, conversation = null) =>
  conversation?.settings?.[name] ?? own[name] ?? given[name] ?? "";

// Sets a setting for all conversations, or for one, which the caller stores.
export function set(name, value, conversation = null) {
  const values = conversation ? (conversation.settings ??= {}) : own;
  if (value === "") delete values[name];
  else values[name] = value;
  if (!conversation) localStorage.setItem(PLACE, JSON.stringify(own));
}

export const hasOwn = (conversation) => Object.keys(conversation.settings ?? {}).length > 0;

// Returns the valid settings of a conversation among untrusted values.
export function settingsOf(values) {
  return Object.fromEntries(Object.entries(values).filter(([name, value]) =>
    isKnown(name) &&
    (Number.isFinite(value) || (typeof value === "string" && value.length <= MAX_TEXT))));
}

export function isDark() {
  const theme = setting("theme");
  return theme === "dark" || (theme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
}

export function applyTheme() {
  document.documentElement.dataset.theme = isDark() ? "dark" : "light";
}

// Returns the fields of a request from the settings. Throws Error if one of the texts isn't JSON.
export function requestFields(conversation) {
  const fields = parsed("custom", conversation) ?? {};
  for (const [name] of NUMBERS) {
    const value = setting(name, conversation);
    if (value !== "" && Number.isFinite(Number(value))) fields[name] = Number(value);
  }
  const thinking = setting("thinking", conversation);
  if (thinking === "on" || thinking === "off") {
    fields.chat_template_kwargs = { ...fields.chat_template_kwargs, enable_thinking: thinking === "on" };
  }
  const schema = parsed("jsonSchema", conversation);
  if (schema) {
    fields.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  }
  const tools = parsed("tools", conversation);
  if (tools) fields.tools = tools;
  return fields;
}

// Returns the names of the functions in the settings, whose results the user enters.
export function functionsOf(conversation) {
  try {
    return new Set(requestFields(conversation).tools?.map((each) => each?.function?.name));
  } catch {
    return new Set();
  }
}

function parsed(name, conversation) {
  const value = setting(name, conversation);
  if (typeof value !== "string") return value;
  if (!value.trim()) return null;
  try {
    return JSON.parse(value);
  } catch (error) {
    const label = TEXTS.find(([each]) => each === name)[1];
    throw new Error(`${label} in the settings is not JSON: ${error.message}`);
  }
}

// Opens the dialog of all settings, for all conversations or for the open one. `defaults` are the
// server's. `more` returns the fields of the server's tools, which are shown first with `first`.
export function openSettings(defaults, conversation, changed, actions, more, first = false) {
  const dialog = h("dialog", { class: "dialog", "aria-labelledby": "settings-title" });
  const fields = h("div", {});
  const scope = h("select", { id: "set-scope", onchange: () => draw() },
    [["all", "All conversations"], ["one", "This conversation"]].map(([value, label]) => h("option", { value }, label)));
  function draw() {
    const one = scope.value === "one" ? conversation : null;
    replace(fields,
      one ? null : h("fieldset", {}, h("legend", {}, "Appearance"), themeField()),
      h("fieldset", {}, h("legend", {}, "Conversation"),
        textField(one, "systemMessage", "System prompt", "Instructions before the messages.", ""), thinkingField(one)),
      h("fieldset", {}, h("legend", {}, "Sampling"),
        h("p", { class: "hint" }, one ? "Empty fields have the values of all conversations." : "Empty fields have the server's defaults."),
        h("div", { class: "grid" }, NUMBERS.map((each) => numberField(one, defaults, ...each)))),
      more(one),
      h("fieldset", {}, h("legend", {}, "Requests"), TEXTS.map((each) => textField(one, ...each))),
      one ? null : h("fieldset", {}, h("legend", {}, "Stored conversations"),
        h("p", { class: "hint" }, "They are stored only in this browser."),
        h("div", { class: "actions start" }, actions.map(([label, act, kind]) =>
          h("button", { type: "button", class: kind ?? "plain", onclick: () => act(dialog) }, label)))));
  }
  draw();
  dialog.append(
    h("div", { class: "dialog-head" }, h("h2", { id: "settings-title" }, "Settings"),
      button("close", "Close", () => dialog.close())),
    h("div", { class: "dialog-body" },
      h("fieldset", {}, h("div", { class: "field" }, h("label", { for: "set-scope" }, "Settings of"), scope)), fields),
  );
  dialog.addEventListener("close", () => { dialog.remove(); changed(); });
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  document.body.append(dialog);
  dialog.showModal();
  if (first) dialog.querySelector(".tools-fields")?.scrollIntoView();
}

export function selectField(name, label, value, options, onchange) {
  const select = h("select", { id: `set-${name}`, onchange: () => onchange(select.value) },
    options.map(([each, text]) => h("option", { value: each }, text)));
  select.value = value;
  return h("div", { class: "field" }, h("label", { for: `set-${name}` }, label), select);
}

function themeField() {
  const options = [["", "Same as the system"], ["light", "Light"], ["dark", "Dark"]];
  return selectField("theme", "Theme", setting("theme"), options, (value) => { set("theme", value); applyTheme(); });
}

function thinkingField(one) {
  const options = THINKING.map(([value, label]) => [value, label.replace(/^.*: /, "")]);
  const value = one ? (one.settings?.thinking ?? "") : setting("thinking") || "auto";
  return selectField("thinking", "Thinking", value, [...(one ? [["", "as in all conversations"]] : []), ...options],
    (chosen) => set("thinking", chosen, one));
}

export function numberField(one, defaults, name, label, hint, min, max, step) {
  const values = one ? (one.settings ?? {}) : own;
  const inherited = one ? (own[name] ?? given[name]) : given[name];
  const standard = defaults[name];
  const input = h("input", {
    id: `set-${name}`, type: "number", min, max, step: step < 1 ? "any" : step, inputmode: "decimal",
    value: values[name] ?? "", "aria-describedby": `hint-${name}`,
    placeholder: inherited ?? (Number.isFinite(standard) && name !== "seed" ? +standard.toFixed(4) : ""),
    oninput: () => input.validity.valid && set(name, input.value === "" ? "" : Number(input.value), one),
  });
  return h("div", { class: "field" }, h("label", { for: `set-${name}` }, label), input,
    h("small", { id: `hint-${name}`, class: "hint" }, hint));
}

const written = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 1));

function textField(one, name, label, hint, example) {
  const area = h("textarea", {
    id: `set-${name}`, rows: name === "systemMessage" ? 4 : 3, spellcheck: "false",
    class: name === "systemMessage" ? "" : "mono", "aria-describedby": `hint-${name}`,
    placeholder: (one && written(setting(name))) || example,
    value: written(one ? (one.settings?.[name] ?? "") : setting(name)),
    oninput: () => set(name, area.value, one),
    onchange: () => {
      try {
        if (name !== "systemMessage") parsed(name, one);
      } catch (error) {
        notify(error.message, "error");
      }
    },
  });
  return h("div", { class: "field" }, h("label", { for: `set-${name}` }, label), area,
    h("small", { id: `hint-${name}`, class: "hint" }, hint));
}
