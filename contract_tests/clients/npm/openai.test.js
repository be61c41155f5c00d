// OpenAI's client.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { City, LONG, MODEL, PARAMETERS, QUESTION, TOO_LONG, tried } from "./servers.js";

const client = (url) => new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: QUESTION }];
const weather = { name: "weather", description: "The weather of a city", parameters: PARAMETERS };
const tools = [{ type: "function", function: weather }];
const short = { model: MODEL, messages, temperature: 0, max_completion_tokens: 12 };

tried("models", async (url) => {
  const ids = [];
  for await (const each of client(url).models.list()) ids.push(each.id);
  assert.deepEqual(ids, [MODEL]);
});

tried("models_retrieve", async (url) => {
  assert.equal((await client(url).models.retrieve(MODEL)).id, MODEL);
});

tried("chat", async (url) => {
  const answer = await client(url).chat.completions.create(short);
  assert.ok(answer.choices[0].message.content);
  assert.ok(answer.usage.completion_tokens > 0);
});

tried("chat_responses", async (url) => {
  const body = { model: MODEL, input: QUESTION, max_output_tokens: 12, temperature: 0 };
  assert.ok((await client(url).responses.create(body)).output_text);
});

tried("stream", async (url) => {
  const stream = client(url).chat.completions.stream(short);
  let text = "";
  for await (const chunk of stream) text += chunk.choices[0]?.delta?.content ?? "";
  assert.ok(text);
  assert.equal(await stream.finalContent(), text);
});

tried("stream_responses", async (url) => {
  const format = zodTextFormat(City, "city");
  const body = { model: MODEL, input: QUESTION, temperature: 0, text: { format } };
  const stream = client(url).responses.stream(body);
  let text = "";
  for await (const event of stream) {
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  assert.equal((await stream.finalResponse()).output_text, text);
  City.parse(JSON.parse(text));
});

tried("tools", async (url) => {
  const calling = { tools, tool_choice: "required", parallel_tool_calls: false };
  const asked = { model: MODEL, messages, temperature: 0, ...calling };
  const { message } = (await client(url).chat.completions.create(asked)).choices[0];
  const [call] = message.tool_calls;
  assert.match(JSON.parse(call.function.arguments).city, /^(Lima|Quito)$/);
  const result = { role: "tool", tool_call_id: call.id, content: "20 degrees" };
  const history = [...messages, message, result];
  const telling = { ...short, messages: history, tools, tool_choice: "none" };
  const answer = await client(url).chat.completions.create(telling);
  assert.ok(answer.choices[0].message.content);
});

tried("structured_output", async (url) => {
  const response_format = zodResponseFormat(City, "city");
  const body = { model: MODEL, messages, temperature: 0, response_format };
  const answer = await client(url).chat.completions.parse(body);
  City.parse(answer.choices[0].message.parsed);
});

tried("embeddings", async (_, url) => {
  const body = { model: MODEL, input: ["a llama", "a city"] };
  const { data } = await client(url).embeddings.create(body);
  assert.equal(data.length, 2);
  assert.ok(data[0].embedding.length > 0);
});

tried("error", async (url) => {
  const body = { model: MODEL, messages: [{ role: "user", content: LONG }] };
  await assert.rejects(client(url).chat.completions.create(body), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    return TOO_LONG.test(error.message);
  });
});
