// Ollama's client.
import assert from "node:assert/strict";
import { Ollama } from "ollama";
import { z } from "zod";
import { City, LONG, MODEL, PARAMETERS, QUESTION, TOO_LONG, tried } from "./servers.js";

const client = (url) => new Ollama({ host: url });
const messages = [{ role: "user", content: QUESTION }];
const short = { model: MODEL, messages, options: { temperature: 0, num_predict: 12 } };

tried("models", async (url) => {
  const { models } = await client(url).list();
  assert.deepEqual(models.map((each) => each.model), [MODEL]);
});

tried("chat", async (url) => {
  const answer = await client(url).chat(short);
  assert.ok(answer.message.content);
});

tried("chat_generate", async (url) => {
  const { options } = short;
  const answer = await client(url).generate({ model: MODEL, prompt: "Once upon a time", options });
  assert.ok(answer.response);
});

tried("stream", async (url) => {
  let text = "";
  let last;
  for await (last of await client(url).chat({ ...short, stream: true })) {
    text += last.message.content;
  }
  assert.ok(text);
  assert.ok(last.done);
});

tried("tools", async (url) => {
  const weather = { name: "weather", description: "The weather", parameters: PARAMETERS };
  const tools = [{ type: "function", function: weather }];
  // A call that the limit of tokens cuts off isn't returned.
  const answer = await client(url).chat({ ...short, options: { ...short.options, num_predict: 200 }, tools });
  assert.ok(answer.message.content || answer.message.tool_calls);
});

tried("structured_output", async (url) => {
  const body = { model: MODEL, messages, format: z.toJSONSchema(City), options: { temperature: 0 } };
  City.parse(JSON.parse((await client(url).chat(body)).message.content));
});

tried("embeddings", async (_, url) => {
  const { embeddings } = await client(url).embed({ model: MODEL, input: ["a llama", "a city"] });
  assert.equal(embeddings.length, 2);
});

tried("error", async (url) => {
  const body = { model: MODEL, messages: [{ role: "user", content: LONG }] };
  await assert.rejects(client(url).chat(body), TOO_LONG);
});
