// The part of the settings about the server's tools: the ones that the model may call, and the user's
// consent to calls.

import { h, replace, visible } from "./dom.js";
import { numberField, selectField, set, setting } from "./settings.js";
import { ROUNDS } from "./turn.js";

const CONSENT = [["ask", "Ask before each call"], ["always", "Call without asking"], ["never", "Decline all calls"]];
const MAX_NAME = 200; // characters
const MAX_DESCRIPTION = 1500;

// Returns the fields for all conversations, or for `one`. They follow changes of the list.
export function toolFields(tools, one) {
  const place = h("fieldset", { class: "tools-fields" });
  let listed = null;
  const draw = () => {
    listed = tools.list;
    place.hidden = !listed.length;
    replace(place, listed.length ? fields(tools, one, draw) : []);
  };
  const changed = () => {
    if (!place.isConnected) tools.removeEventListener("change", changed);
    else if (listed !== tools.list) draw();
  };
  tools.addEventListener("change", changed);
  draw();
  return place;
}

function fields(tools, one, draw) {
  const forget = () => { tools.forgetAnswers(); draw(); };
  return [
    h("legend", {}, "Tools of the server"),
    h("p", { class: "hint" }, "The model may call these tools. Names and descriptions are written by the authors of the tools."),
    h("div", { class: "grid" },
      switchField("serverTools", "All tools", one),
      numberField(one, { toolRounds: ROUNDS }, "toolRounds", "Rounds of calls", "The maximum before the model waits for you.", 1, 1000, 1)),
    h("ul", { class: "tool-list" }, tools.list.map((tool) => row(tools, tool, one))),
    !one && h("div", { class: "actions start" },
      h("button", { type: "button", class: "plain compact", onclick: forget }, "Ask again for all tools")),
  ];
}

const choices = (name, one) => ({
  value: one ? (one.settings?.[name] ?? "") : setting(name) || "on",
  options: [...(one ? [["", "as in all conversations"]] : []), ["on", "On"], ["off", "Off"]],
  onchange: (chosen) => set(name, chosen, one),
});

function switchField(name, label, one) {
  const { value, options, onchange } = choices(name, one);
  return selectField(name, label, value, options, onchange);
}

function row(tools, tool, one) {
  const name = visible(tool.name, MAX_NAME);
  const notes = [tool.mcp && "MCP", tool.writes && "may change something"].filter(Boolean).join(", ");
  const { value, options, onchange } = choices(`tool:${tool.name}`, one);
  return h("li", {},
    h("details", {},
      h("summary", {}, h("code", {}, name), notes && h("small", {}, notes)),
      h("p", { class: "hint" }, visible(tool.description, MAX_DESCRIPTION)),
      h("pre", { tabindex: "0", "aria-label": `Arguments of ${name}` }, visible(JSON.stringify(tool.parameters, null, 1)))),
    h("div", { class: "field tool-choices" },
      select(`Use of ${name}`, value, options, onchange),
      !one && select(`Consent to ${name}`, tools.consent(tool), CONSENT, (chosen) => tools.remember(tool, chosen))));
}

function select(label, value, options, onchange) {
  const made = h("select", { "aria-label": label, onchange: () => onchange(made.value) },
    options.map(([each, text]) => h("option", { value: each }, text)));
  made.value = value;
  return made;
}
