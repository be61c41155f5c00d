// The generation of one answer: the request for a conversation, and the reading of its stream.

import { events, request } from "./api.js";
import { newId } from "./dom.js";
import { contentOf } from "./files.js";
import { requestFields, setting } from "./settings.js";

// Returns the request for the next message. `tools` are the server's that the model may call.
export function requestBody(conversation, messages, model, tools) {
  const system = String(setting("systemMessage", conversation)).trim();
  return {
    ...(model ? { model } : {}),
    messages: [...(system ? [{ role: "system", content: system }] : []), ...messages.map(sent)],
    ...withTools(requestFields(conversation), tools),
    stream: true,
    stream_options: { include_usage: true },
    return_progress: true,
    timings_per_token: true,
  };
}

// Adds the server's tools to the functions of the settings, which win over tools of the same name. No
// model can call tools while its answer has to follow a grammar.
function withTools(fields, tools) {
  const own = fields.tools ?? [];
  if (!tools.length || fields.grammar != null || fields.json_schema != null || !Array.isArray(own)) return fields;
  const names = new Set(own.map((each) => each?.function?.name));
  const added = tools.filter(({ name }) => !names.has(name)).map(({ definition }) => definition);
  return { ...fields, tools: [...own, ...added] };
}

function sent(message) {
  if (message.role === "tool") {
    return { role: "tool", tool_call_id: message.callId, content: message.content };
  }
  if (message.role === "user") return { role: "user", content: contentOf(message.content, message.files) };
  const calls = message.calls?.map(({ id, name, arguments: text }) => ({
    id, type: "function", function: { name, arguments: text },
  }));
  return {
    role: "assistant",
    content: message.content || (calls ? null : ""),
    // Templates include the reasoning while the model is calling tools, and leave it out later.
    ...(message.reasoning ? { reasoning_content: message.reasoning } : {}),
    ...(calls ? { tool_calls: calls } : {}),
  };
}

// Adds the generated parts to `answer`, and calls `changed` after each. A stopped answer keeps its
// parts. Throws ApiError, and the errors of a broken connection.
export async function generate(body, answer, signal, changed) {
  try {
    const response = await request("v1/chat/completions", { body, signal });
    for await (const chunk of events(response)) {
      if (chunk.error) throw new Error(chunk.error.message ?? String(chunk.error));
      take(answer, chunk);
      changed();
    }
  } catch (error) {
    if (!signal.aborted) throw error;
    answer.finish = "stopped";
  } finally {
    delete answer.progress;
    if (answer.calls) identify(answer);
  }
  if (!answer.finish) throw new Error("the connection ended before the answer was complete");
}

// Gives each call an id of its own, by which its result is found.
function identify(answer) {
  const known = new Set();
  answer.calls = answer.calls.filter(Boolean);
  for (const call of answer.calls) {
    if (!call.id || known.has(call.id)) call.id = newId();
    known.add(call.id);
  }
}

function take(answer, chunk) {
  if (typeof chunk.model === "string") answer.model = chunk.model;
  if (chunk.timings) answer.timings = chunk.timings;
  if (chunk.prompt_progress) answer.progress = chunk.prompt_progress;
  const choice = chunk.choices?.[0];
  if (!choice) return;
  const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta ?? {};
  if (reasoning) answer.reasoning = (answer.reasoning ?? "") + reasoning;
  if (content) answer.content += content;
  if (reasoning || content || calls) delete answer.progress;
  for (const { index, id, function: part } of calls ?? []) {
    answer.calls ??= [];
    const call = (answer.calls[index] ??= { id: "", name: "", arguments: "" });
    if (id) call.id = id;
    if (part?.name) call.name += part.name;
    if (part?.arguments) call.arguments += part.arguments;
  }
  if (choice.finish_reason) answer.finish = choice.finish_reason;
}
