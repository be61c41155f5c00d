// Uses the server with the client that Hey API's openapi-ts generates.
import assert from "node:assert/strict";
import { test } from "node:test";
import { createClient } from "./generated/client/index.js";
import {
  createChatCompletion,
  createCompletion,
  createOpenaiEmbeddings,
  listOpenaiModels,
  listSlots,
  type ChatCompletionChunk,
  type ChatMessage,
} from "./generated/index.js";

const MODEL = "specllama-tiny";
const messages: ChatMessage[] = [{ role: "user", content: "How is the weather in Lima?" }];
const short = { model: MODEL, messages, max_completion_tokens: 8, temperature: 0 };

const texts = (name: string) => createClient({ baseUrl: `${process.env.SERVER_URL}/${name}` });

test("models", async () => {
  const { data } = await listOpenaiModels({ client: texts("models") });
  assert.ok(data);
  assert.deepEqual(data.data.map((each) => each.id), [MODEL]);
});

test("slots", async () => {
  const { data } = await listSlots({ client: texts("slots") });
  assert.ok(data?.[0]);
  assert.equal(data[0].is_processing, false);
});

test("completion", async () => {
  const body = { prompt: "A llama", n_predict: 8, temperature: 0 };
  const { data } = await createCompletion({ client: texts("completion"), body });
  assert.ok(data && typeof data === "object" && "tokens_predicted" in data);
  assert.ok(data.content);
  assert.equal(data.tokens_predicted, 8);
});

test("chat", async () => {
  const { data } = await createChatCompletion({ client: texts("chat"), body: short });
  assert.ok(data && typeof data === "object");
  assert.ok(data.choices[0]?.message.content);
  assert.equal(data.usage.completion_tokens, 8);
});

test("tools", async () => {
  const parameters = {
    type: "object",
    properties: { city: { type: "string", enum: ["Lima", "Quito"] } },
    required: ["city"],
  };
  const { data } = await createChatCompletion({
    client: texts("tools"),
    body: {
      model: MODEL,
      messages,
      temperature: 0,
      tools: [{ type: "function", function: { name: "weather", parameters } }],
      tool_choice: "required",
      parallel_tool_calls: false,
    },
  });
  assert.ok(data && typeof data === "object");
  const call = data.choices[0]?.message.tool_calls?.[0];
  assert.ok(call?.type === "function");
  assert.equal(call.function.name, "weather");
  assert.match(JSON.parse(call.function.arguments).city, /^(Lima|Quito)$/);
});

test("stream", async () => {
  const { stream } = await texts("stream").sse.post<{ 200: ChatCompletionChunk | "[DONE]" }>({
    url: "/v1/chat/completions",
    headers: { "Content-Type": "application/json" },
    body: { ...short, stream: true },
  });
  let text = "";
  for await (const chunk of stream) {
    if (chunk !== "[DONE]") text += chunk.choices[0]?.delta.content ?? "";
  }
  assert.ok(text);
});

test("embeddings", async () => {
  const client = createClient({ baseUrl: `${process.env.EMBEDDINGS_URL}/embeddings` });
  const body = { model: MODEL, input: ["a llama", "a city"] };
  const { data } = await createOpenaiEmbeddings({ client, body });
  assert.ok(data && "data" in data);
  assert.equal(data.data.length, 2);
  assert.ok(data.data[0]?.embedding.length);
});

test("error", async () => {
  const { error, response } = await createChatCompletion({
    client: texts("error"),
    body: { model: MODEL, messages: [{ role: "user", content: "llama ".repeat(9000) }] },
  });
  assert.equal(response?.status, 400);
  assert.ok(error);
  assert.match(error.error.message, /exceeds the available context size/);
});
