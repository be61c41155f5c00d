// The AI SDK, with its providers for OpenAI, OpenAI-like servers, Anthropic and Ollama.
import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateText, Output, streamText, tool } from "ai";
import { createOllama } from "ollama-ai-provider-v2";
import { z } from "zod";
import { City, LONG, MODEL, QUESTION, TOO_LONG, tried } from "./servers.js";

const compatible = (url) =>
  createOpenAICompatible({
    name: "specllama",
    baseURL: `${url}/v1`,
    apiKey: "none",
    includeUsage: true,
    supportsStructuredOutputs: true,
  });
const openai = (url) => createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
const anthropic = (url) => createAnthropic({ baseURL: `${url}/v1`, apiKey: "none" });
const ollama = (url) => createOllama({ baseURL: `${url}/api` });

const once = { maxRetries: 0, temperature: 0 };
const short = { ...once, prompt: QUESTION, maxOutputTokens: 12 };
const weather = tool({
  description: "The weather of a city",
  inputSchema: z.object({ city: z.enum(["Lima", "Quito"]) }),
});
const calling = { ...once, prompt: QUESTION, tools: { weather }, toolChoice: "required" };

async function streamed(model) {
  const result = streamText({ ...short, model });
  let text = "";
  for await (const piece of result.textStream) text += piece;
  assert.ok(text);
  assert.ok((await result.usage).outputTokens > 0);
}

async function calls(model, maxOutputTokens, providerOptions) {
  const { toolCalls } = await generateText({ ...calling, model, maxOutputTokens, providerOptions });
  assert.match(toolCalls[0].input.city, /^(Lima|Quito)$/);
}

const city = Output.object({ schema: City });
async function object(model) {
  const result = await generateText({ ...once, model, prompt: QUESTION, output: city });
  City.parse(result.output);
}

tried("chat", async (url) => {
  const { text } = await generateText({ ...short, model: compatible(url)(MODEL) });
  assert.ok(text);
});

tried("chat_openai", async (url) => {
  const { text } = await generateText({ ...short, model: openai(url).chat(MODEL) });
  assert.ok(text);
});

tried("chat_responses", async (url) => {
  const { text } = await generateText({ ...short, model: openai(url).responses(MODEL) });
  assert.ok(text);
});

tried("chat_completions", async (url) => {
  const { text } = await generateText({ ...short, model: openai(url).completion(MODEL) });
  assert.ok(text);
});

tried("chat_anthropic", async (url) => {
  const { text } = await generateText({ ...short, model: anthropic(url)(MODEL) });
  assert.ok(text);
});

tried("chat_ollama", async (url) => {
  const { text } = await generateText({ ...short, model: ollama(url)(MODEL) });
  assert.ok(text);
});

tried("stream", (url) => streamed(compatible(url)(MODEL)));
tried("stream_openai", (url) => streamed(openai(url).chat(MODEL)));
tried("stream_responses", (url) => streamed(openai(url).responses(MODEL)));
tried("stream_anthropic", (url) => streamed(anthropic(url)(MODEL)));
tried("stream_ollama", (url) => streamed(ollama(url)(MODEL)));

const single = { openai: { parallelToolCalls: false } };
tried("tools", (url) => calls(openai(url).chat(MODEL), 200, single));
tried("tools_responses", (url) => calls(openai(url).responses(MODEL), 200, single));
tried("tools_anthropic", (url) =>
  calls(anthropic(url)(MODEL), 200, { anthropic: { disableParallelToolUse: true } }),
);

tried("structured_output", (url) => object(compatible(url)(MODEL)));
tried("structured_output_openai", (url) => object(openai(url).chat(MODEL)));
tried("structured_output_responses", (url) => object(openai(url).responses(MODEL)));
tried("structured_output_ollama", (url) => object(ollama(url)(MODEL)));

tried("structured_output_streamed", async (url) => {
  const model = compatible(url)(MODEL);
  const result = streamText({ ...once, model, prompt: QUESTION, output: city });
  let last;
  for await (last of result.partialOutputStream);
  City.parse(last);
});

tried("embeddings", async (_, url) => {
  const model = compatible(url).embeddingModel(MODEL);
  const { embeddings } = await embedMany({ model, values: ["a llama", "a city"], maxRetries: 0 });
  assert.equal(embeddings.length, 2);
  assert.ok(embeddings[0].length > 0);
});

tried("error", async (url) => {
  const asked = generateText({ ...once, model: compatible(url)(MODEL), prompt: LONG });
  await assert.rejects(asked, TOO_LONG);
});
