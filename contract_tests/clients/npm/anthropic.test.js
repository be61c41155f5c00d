// Anthropic's client.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { LONG, MODEL, PARAMETERS, QUESTION, TOO_LONG, tried } from "./servers.js";

const client = (url) => new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: QUESTION }];
const short = { model: MODEL, messages, temperature: 0, max_tokens: 12 };
const tools = [{ name: "weather", description: "The weather", input_schema: PARAMETERS }];

tried("models", async (url) => {
  const ids = [];
  for await (const each of client(url).models.list()) ids.push(each.id);
  assert.deepEqual(ids, [MODEL]);
});

tried("chat", async (url) => {
  const answer = await client(url).messages.create(short);
  assert.ok(answer.content[0].text);
  assert.ok(answer.usage.output_tokens > 0);
});

tried("stream", async (url) => {
  const stream = client(url).messages.stream(short);
  let text = "";
  stream.on("text", (piece) => (text += piece));
  assert.equal(await stream.finalText(), text);
  assert.ok(text);
});

tried("tools", async (url) => {
  const tool_choice = { type: "any", disable_parallel_tool_use: true };
  const asked = { ...short, max_tokens: 200, tools, tool_choice };
  const { content } = await client(url).messages.create(asked);
  const use = content.find((each) => each.type === "tool_use");
  assert.match(use.input.city, /^(Lima|Quito)$/);
  const result = { type: "tool_result", tool_use_id: use.id, content: "20 degrees" };
  const history = [
    ...messages,
    { role: "assistant", content },
    { role: "user", content: [result] },
  ];
  const telling = { ...short, messages: history, tools, tool_choice: { type: "none" } };
  assert.ok((await client(url).messages.create(telling)).content.length);
});

tried("error", async (url) => {
  const body = { ...short, messages: [{ role: "user", content: LONG }] };
  await assert.rejects(client(url).messages.create(body), (error) => {
    assert.ok(error instanceof Anthropic.BadRequestError);
    return TOO_LONG.test(error.message);
  });
});
