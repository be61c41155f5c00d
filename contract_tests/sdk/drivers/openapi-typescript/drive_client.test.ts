// Uses the server with openapi-fetch and the types that openapi-typescript generates.
import assert from "node:assert/strict";
import { test } from "node:test";
import createClient from "openapi-fetch";
import type { components, paths } from "./generated/schema.js";

type Schemas = components["schemas"];

const MODEL = "specllama-tiny";
const messages: Schemas["ChatMessage"][] = [{ role: "user", content: "How is the weather in Lima?" }];
const short = { model: MODEL, messages, max_completion_tokens: 8, temperature: 0 };

const texts = (name: string) =>
  createClient<paths>({ baseUrl: `${process.env.SERVER_URL}/${name}` });

test("models", async () => {
  const { data } = await texts("models").GET("/v1/models");
  assert.ok(data);
  assert.deepEqual(data.data.map((each) => each.id), [MODEL]);
});

test("slots", async () => {
  const { data } = await texts("slots").GET("/slots");
  assert.ok(data?.[0]);
  assert.equal(data[0].is_processing, false);
});

test("completion", async () => {
  const body = { prompt: "A llama", n_predict: 8, temperature: 0 };
  const { data } = await texts("completion").POST("/completion", { body });
  assert.ok(data && "tokens_predicted" in data);
  assert.ok(data.content);
  assert.equal(data.tokens_predicted, 8);
});

test("chat", async () => {
  const { data } = await texts("chat").POST("/v1/chat/completions", { body: short });
  assert.ok(data && "choices" in data);
  assert.ok(data.choices[0]?.message.content);
  assert.equal(data.usage.completion_tokens, 8);
});

test("tools", async () => {
  const parameters = {
    type: "object",
    properties: { city: { type: "string", enum: ["Lima", "Quito"] } },
    required: ["city"],
  };
  const { data } = await texts("tools").POST("/v1/chat/completions", {
    body: {
      model: MODEL,
      messages,
      temperature: 0,
      tools: [{ type: "function", function: { name: "weather", parameters } }],
      tool_choice: "required",
      parallel_tool_calls: false,
    },
  });
  assert.ok(data && "choices" in data);
  const call = data.choices[0]?.message.tool_calls?.[0];
  assert.ok(call?.type === "function");
  assert.equal(call.function.name, "weather");
  assert.match(JSON.parse(call.function.arguments).city, /^(Lima|Quito)$/);
});

test("stream", async () => {
  const { data, error } = await texts("stream").POST("/v1/chat/completions", {
    body: { ...short, stream: true },
    parseAs: "stream",
  });
  assert.ok(data, JSON.stringify(error));
  const received = await new Response(data).text();
  const events = received.split("\n\n").filter((each) => each.startsWith("data: "));
  assert.equal(events.pop(), "data: [DONE]");
  const chunks = events.map((each): Schemas["ChatCompletionChunk"] => JSON.parse(each.slice(6)));
  assert.ok(chunks.map((each) => each.choices[0]?.delta.content ?? "").join(""));
});

test("embeddings", async () => {
  const client = createClient<paths>({ baseUrl: `${process.env.EMBEDDINGS_URL}/embeddings` });
  const { data } = await client.POST("/v1/embeddings", {
    body: { model: MODEL, input: ["a llama", "a city"] },
  });
  assert.ok(data && "data" in data);
  assert.equal(data.data.length, 2);
  assert.ok(data.data[0]?.embedding.length);
});

test("error", async () => {
  const { error, response } = await texts("error").POST("/v1/chat/completions", {
    body: { model: MODEL, messages: [{ role: "user", content: "llama ".repeat(9000) }] },
  });
  assert.equal(response.status, 400);
  assert.ok(error);
  assert.match(error.error.message, /exceeds the available context size/);
});
