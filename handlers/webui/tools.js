// The tools of the server: the ones that the model may call, the user's consent, and the calls.
// Names, definitions and results are untrusted texts.

import { ApiError, events, limited, parsedBody, request } from "./api.js";
import { notify } from "./dom.js";
import { setting } from "./settings.js";

const PLACE = "specllama.tools";
const ABSENT = new Set([403, 404, 405, 501]);
const MAX_ANSWER = 8 << 20; // bytes, of a list or of a result
const MAX_TOOLS = 500;
const MAX_NAME = 200; // characters
const MAX_DEFINITION = 1 << 16;
const MAX_RESULT = 1 << 16;
export const DECLINED = "The user declined this call.";
const STOPPED = "The user stopped this call before it returned. It may have had an effect.";

export class Tools extends EventTarget {
  list = [];
  absent = false; // the server has no tools, or not for this user
  listed = Promise.resolve(); // fulfilled when the list was read for the first time

  // Reads the list. Servers without tools answer with an error; the page is then the same as without
  // this module. After other errors the last list stays.
  async refresh() {
    if (this.absent) return;
    const before = this.list;
    try {
      this.take(await parsedBody(limited(await request("tools", { quiet: true }), MAX_ANSWER)));
    } catch (error) {
      if (!(error instanceof ApiError) || !ABSENT.has(error.status)) return;
      this.absent = true;
      this.list = [];
    }
    if (this.list !== before) this.dispatchEvent(new Event("change"));
  }

  take(given) {
    if (!Array.isArray(given)) return;
    const found = given.slice(0, MAX_TOOLS).map(toolOf).filter(Boolean);
    const byName = new Map(found.toReversed().map((tool) => [tool.name, tool]));
    const list = found.filter((tool) => byName.get(tool.name) === tool);
    if (list.length === this.list.length && list.every(({ identity }, at) => identity === this.list[at].identity)) return;
    this.list = list;
    const left = given.length - list.length;
    if (left) notify(`The page can't use ${left} of the server's tools: their definitions are too large, double or not of the right form.`, "error");
  }

  // Returns the tools that the model may call in a conversation.
  offered(conversation) {
    if (setting("serverTools", conversation) === "off") return [];
    return this.list.filter(({ name }) => setting(`tool:${name}`, conversation) !== "off");
  }

  // Returns "always", "never" or "ask". The consent to all calls ends when the tool's definition
  // changes, since the user has agreed to another tool then.
  consent({ name, identity }) {
    const { answer, of } = answers().get(name) ?? {};
    if (answer === "never") return answer;
    return answer === "always" && of === identity ? answer : "ask";
  }

  remember({ name, identity }, answer) {
    const known = answers();
    known.delete(name);
    if (answer !== "ask") known.set(name, { answer, of: answer === "always" ? identity : "" });
    try {
      localStorage.setItem(PLACE, JSON.stringify([...known]));
    } catch (error) {
      notify(`The browser can't store your answer: ${error.message}`, "error");
    }
  }

  forgetAnswers() {
    localStorage.removeItem(PLACE);
  }

  // Handles a call of the model. `ask` returns the user's answer: "once", "always", "decline" or
  // "never". `changed` gets the output of a tool that is still running. Returns the fields of the
  // message with the result; null if the user stopped the turn before the call.
  async handle(call, conversation, { ask, changed, signal }) {
    const tool = this.offered(conversation).find(({ name }) => name === call.name);
    if (!tool) return failure(`there is no tool ${call.name}`);
    const params = argumentsOf(call);
    if (!params) return failure("the arguments are not a JSON object");
    let answer = this.consent(tool);
    if (answer === "ask") {
      answer = await ask(tool);
      if (!signal.aborted && (answer === "always" || answer === "never")) this.remember(tool, answer);
    }
    if (signal.aborted) return null;
    if (answer !== "once" && answer !== "always") return { content: DECLINED, finish: "declined" };
    changed("");
    try {
      return await result(tool, params, signal, changed);
    } catch (error) {
      return signal.aborted ? { content: STOPPED, finish: "stopped" } : failure(error.message);
    }
  }
}

// Returns the arguments of a call as an object; null for any other text.
export function argumentsOf(call) {
  try {
    const found = JSON.parse(call.arguments.trim() || "{}");
    return isObject(found) ? found : null;
  } catch {
    return null;
  }
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

// Returns the user's remembered answers by the tool's name.
function answers() {
  try {
    const found = JSON.parse(localStorage.getItem(PLACE) ?? "[]");
    return new Map(found.filter(([name, value]) => typeof name === "string" && isObject(value)));
  } catch {
    return new Map();
  }
}

// Returns an element of the server's list as a tool; null if it hasn't the right form.
function toolOf(given) {
  const name = given?.tool;
  const about = given?.definition?.function;
  if (typeof name !== "string" || !name || name.length > MAX_NAME || about?.name !== name) return null;
  const description = typeof about.description === "string" ? about.description : "";
  const parameters = isObject(about.parameters) ? about.parameters : { type: "object", properties: {} };
  const tool = {
    name, description, parameters,
    mcp: given.type === "mcp",
    writes: given.permissions?.write === true,
    definition: { type: "function", function: { name, description, parameters } },
  };
  tool.identity = JSON.stringify([tool.mcp, tool.writes, tool.definition]);
  return tool.identity.length > MAX_DEFINITION ? null : tool;
}

// Calls a tool. A shell streams its output, if the server can do that.
async function result({ name: tool, mcp }, params, signal, changed) {
  let response;
  try {
    const stream = !mcp && tool === "exec_shell_command" ? { stream: true } : {};
    response = await request("tools", { body: { tool, params, ...stream }, signal });
  } catch (error) {
    // The server refuses to stream the output of most tools, and doesn't run them then.
    if (error.status !== 404 || mcp) throw error;
    response = await request("tools", { body: { tool, params }, signal });
  }
  response = limited(response, MAX_ANSWER);
  if (response.headers.get("Content-Type")?.startsWith("text/event-stream")) {
    return streamed(response, changed);
  }
  const answer = await parsedBody(response);
  if (typeof answer?.plain_text_response === "string") return { content: bounded(answer.plain_text_response) };
  const content = bounded(JSON.stringify(answer));
  return answer?.error === undefined ? { content } : { content, finish: "failed" };
}

async function streamed(response, changed) {
  let text = "";
  for await (const { chunk, done, error } of events(response)) {
    if (typeof chunk === "string") changed((text += chunk));
    if (error) return failure(`${error}\n${text}`);
    if (done) return { content: bounded(text) };
  }
  return failure(`the connection ended before the tool was done\n${text}`);
}

const failure = (message) => ({ content: bounded(JSON.stringify({ error: String(message) })), finish: "failed" });

// Returns a text for the model, which reads all of it: not too long, and without halves of characters.
function bounded(text) {
  const rest = text.length - MAX_RESULT;
  const cut = rest > 0 ? `${text.slice(0, MAX_RESULT)}\n[${rest} more characters were left out]` : text;
  return cut.toWellFormed?.() ?? cut;
}
