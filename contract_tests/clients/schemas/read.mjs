// Reads a server's answers with the providers of the AI SDK, each with the provider's own schemas.
// Prints a JSON object: by the name of each reading, the kinds of parts that were read, or the error.
const [url, model] = process.argv.slice(2);
const tools = [
  {
    type: "function",
    name: "weather",
    description: "The weather of a city",
    inputSchema: { type: "object", properties: { city: { type: "string" } } },
  },
];
const prompt = [{ role: "user", content: [{ type: "text", text: "How is the weather?" }] }];

const models = {
  anthropic: ({ createAnthropic }) => ({
    messages: createAnthropic({ baseURL: `${url}/v1`, apiKey: "none" })(model),
  }),
  compatible: ({ createOpenAICompatible }) => {
    const provider = createOpenAICompatible({ name: "any", baseURL: `${url}/v1`, includeUsage: true });
    return { chat: provider(model), completion: provider.completionModel(model) };
  },
  openai: ({ createOpenAI }) => {
    const provider = createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
    return {
      chat: provider.chat(model),
      completion: provider.completion(model),
      responses: provider.responses(model),
    };
  },
  ollama: ({ createOllama }) => ({ chat: createOllama({ baseURL: `${url}/api` })(model) }),
};

async function parts(given) {
  const { stream } = await given;
  const found = new Set();
  for await (const part of stream) {
    if (part.type === "error") throw part.error;
    found.add(part.type);
  }
  return [...found];
}

// The message of the validation itself, without the errors that wrap it.
function messageOf(error) {
  let cause = error;
  while (cause.cause) cause = cause.cause;
  return `${error.name}: ${cause.message ?? JSON.stringify(cause)}`;
}

const read = {};
for (const [library, make] of Object.entries(models)) {
  for (const version of ["newest", "before"]) {
    const made = make(await import(`${library}-${version}`));
    for (const [kind, provider] of Object.entries(made)) {
      const options = { prompt, ...(kind === "completion" ? {} : { tools }) };
      const name = `${library}-${version} ${kind}`;
      for (const [way, ask] of [
        ["whole", async () => (await provider.doGenerate(options)).content.map((part) => part.type)],
        ["streamed", () => parts(provider.doStream(options))],
      ]) {
        try {
          read[`${name} ${way}`] = await ask();
        } catch (error) {
          read[`${name} ${way}`] = messageOf(error);
        }
      }
    }
  }
}
console.log(JSON.stringify(read));
