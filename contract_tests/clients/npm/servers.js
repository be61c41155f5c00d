// The servers' addresses, and the requests that all tests share.
import { test } from "node:test";
import { z } from "zod";

export const MODEL = "specllama-tiny";
export const QUESTION = "How is the weather in Lima?";
export const City = z.object({ name: z.enum(["Lima", "Quito"]), coastal: z.boolean() });
export const LONG = "llama ".repeat(9000);
export const TOO_LONG = /exceeds the available context size/;
export const PARAMETERS = {
  type: "object",
  properties: { city: { type: "string", enum: ["Lima", "Quito"] } },
  required: ["city"],
  additionalProperties: false,
};

const { SERVER_URL, EMBEDDINGS_URL, RECORDED } = process.env;

// Tests one kind of request. `check` gets the addresses of a server that generates text and of one
// for embeddings, without an API's prefix. While recording, each test has a separate path.
export function tried(name, check) {
  const suffix = RECORDED ? `/${name}` : "";
  test(name, () => check(SERVER_URL + suffix, EMBEDDINGS_URL + suffix));
}
