// Where the servers are, and what all tests ask them.
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

// A test of one kind of request. It gets the addresses of a server for texts and of one for
// embeddings, without an API's prefix; a recorded one has paths of its own.
export function tried(name, check) {
  const suffix = RECORDED ? `/${name}` : "";
  test(name, () => check(SERVER_URL + suffix, EMBEDDINGS_URL + suffix));
}
