// CompatCanary, a conformance kit for OpenAI's API: its profile with Chat Completions and Responses.
import assert from "node:assert/strict";
import { scanEndpoint } from "compatcanary";
import { MODEL, tried } from "./servers.js";

tried("conformance", async (url) => {
  const options = { model: MODEL, apiKey: "none", profile: "modern", timeoutMs: 1_800_000 };
  const { results } = await scanEndpoint({ ...options, baseUrl: `${url}/v1` });
  assert.ok(results.length >= 7);
  assert.deepEqual(results.filter((each) => each.status !== "pass"), []);
});
