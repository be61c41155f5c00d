// Views of the calls of tools and of their results. All texts in them are untrusted.

import { h, icon, visible } from "./dom.js";
import { argumentsOf } from "./tools.js";

const MAX_NAME = 200; // characters
const MAX_OUTPUT = 4000; // of a tool that is still running
const SHORT = 1000; // results up to this length are unfolded
const OUTCOMES = { declined: "Declined: ", failed: "Failed: ", stopped: "Stopped: " };

// Returns the view of a call. `state` describes a call that is being handled: with `answer`, a function,
// the user is asked; otherwise the tool is running, with its `output`.
export function callView(call, state) {
  const name = visible(call.name, MAX_NAME);
  const params = argumentsOf(call);
  // The view shows what the page will send, for example with two fields of the same name.
  const shown = visible(params ? JSON.stringify(params, null, 2) : call.arguments);
  return h("div", { class: "call" },
    h("details", { open: true },
      h("summary", {}, icon("tools"), h("span", {}, "Calls "), h("code", {}, name)),
      h("pre", { tabindex: "0", "aria-label": `Arguments of ${name}` }, shown)),
    state && (state.answer ? question(name, state) : running(name, state)));
}

function question(name, { tool, answer }) {
  const choice = (label, value, kind, title) =>
    h("button", { type: "button", class: `${kind} compact`, title, onclick: () => answer(value) }, label);
  return h("div", { class: "consent", role: "group", "aria-label": `May the model call ${name}?` },
    h("p", {}, "May the model call this tool",
      tool.mcp ? " of an MCP server" : " of this server", tool.writes ? ", which may change something?" : "?"),
    h("div", { class: "actions start" },
      choice("Allow once", "once", "primary", "Ask again at the next call"),
      choice("Always allow", "always", "plain", "Don't ask for this tool, until its definition changes"),
      choice("Decline", "decline", "plain", "The model learns that you declined"),
      choice("Never allow", "never", "plain danger", "Decline all calls of this tool")));
}

function running(name, { output }) {
  return h("div", { class: "call-state" }, h("p", { class: "active" }, `${name} is running …`),
    output && h("pre", { tabindex: "0", "aria-label": `Output of ${name}` }, visible(output.slice(-MAX_OUTPUT))));
}

// Returns the view of a message with a result.
export function resultView({ name = "", content, finish }) {
  const outcome = Object.hasOwn(OUTCOMES, finish ?? "") ? OUTCOMES[finish] : "Result of ";
  const label = name ? [outcome, h("code", {}, visible(name, MAX_NAME))] : ["Result of a tool"];
  return h("details", { class: "result", open: content.length <= SHORT },
    h("summary", {}, h("span", {}, label), icon("down")),
    h("pre", { tabindex: "0", "aria-label": "Result" }, visible(content)));
}
