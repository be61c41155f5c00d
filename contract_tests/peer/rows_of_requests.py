"""What differs for some requests alone."""

from contract_tests.peer.row import COUNTS, OTHER_PROMPT, OTHER_TEXT, Accepted

ROWS = (
    Accepted(
        "Fields of a wrong type",
        "Some are ignored, some count as what can be made of them (`true` is 1).",
        "They are status 400, which says what is right. null counts as left out.",
        "What is not what it seems to be would go unnoticed.",
        r"status 400 for 200",
        requests=r"sampling-fields: (id_slot '|\w+ True$|samplers (\{|7)|stop (\[None|5|\{)"
        r"|logit_bias 'a'|grammar 5|response_fields ('|\[5)|lora \[5|prompt \[\[\]\]"
        r"|stream_options 5)"
        r"|chat: (top_logprobs below|template arguments of a wrong type)"
        r"|infill: prompt of a wrong type|messages: messages null"
        r"|tokens: tokenize a flag of a wrong type|streams: looked up by a text",
    ),
    Accepted(
        "null where a text or a list is required",
        "Status 500.",
        "`/tokenize` and `/detokenize` take it as nothing.",
        "It works, and harms nobody.",
        r"status 200 for 500",
        requests=r"tokens: (de)?tokenize null",
    ),
    Accepted(
        "No tokens asked for",
        "`n_predict` and `max_tokens` of 0 generate one token.",
        "They generate none.",
        "The documents say that 0 reads the prompt alone.",
        rf"{OTHER_TEXT}|length (tokens|content)|value stop|extra \w+",
        requests=r"chat: max_tokens 0|completion: no tokens|infill: nothing to predict"
        r"|sampling-fields: (n_predict|max_tokens) 0$|messages: max_tokens 0|llama-vscode: prepare",
    ),
    Accepted(
        "Empty stop texts",
        "They end the answer at once.",
        "They are ignored.",
        "Every text contains the empty one, so that nothing could be generated.",
        rf"{OTHER_TEXT}|length generation_settings\.stop",
        requests=r"sampling-fields: stop (''|\[''\])",
    ),
    Accepted(
        "`n_indent`",
        "A line with too few blanks is noticed one token late.",
        "It is noticed at once.",
        "The text is the same, and a token less is generated.",
        COUNTS,
        requests=r"sampling-fields: n_indent",
    ),
    Accepted(
        "Penalties over the whole context",
        "`repeat_last_n` and `dry_penalty_last_n` of -1 are status 400.",
        "-1 is the size of the context.",
        "The documents of both servers say so, and clients send it.",
        r"status 200 for 400",
        requests=r"sampling-fields: (repeat_last_n|dry_penalty_last_n) -1|sillytavern: text",
    ),
    Accepted(
        "Many probabilities",
        "`n_probs` has no bound.",
        "1024 is the most, more is status 400.",
        "An answer with a whole vocabulary for each token takes memory without limit.",
        r"status 400 for 200",
        requests=r"sampling-fields: n_probs 100000",
    ),
    Accepted(
        "Values out of their range, in `generation_settings`",
        "They are shown as given.",
        "They are shown as they are used: at the end of their range that is next to them.",
        "What is shown is what is in force. Temperatures and penalties above 1000000 count as "
        "that, negative ones of DRY, Mirostat and the dynamic temperature as 0.",
        r"value generation_settings\.(typical_p|temperature|dynatemp_(range|exponent)|top_k"
        r"|top_n_sigma|repeat_penalty|dry_multiplier|mirostat_(tau|eta)|adaptive_target|n_probs)",
        requests=r"sampling-fields: (typical_p (-1|1\.5)|temperature 1000000000|dynatemp_\w+ -1"
        r"|top_k 2147483648|top_n_sigma -5|repeat_penalty 2000000|dry_multiplier -1"
        r"|mirostat_(tau|eta) -1|adaptive_target -2|n_probs -1)",
    ),
    Accepted(
        "Unknown `reasoning_format` of native completions",
        "It is status 400.",
        "It is ignored.",
        "These operations don't parse their answers.",
        r"status 200 for 400",
        requests=r"sampling-fields: reasoning_format ('wrong'|5)",
    ),
    Accepted(
        "LoRA adapters in `generation_settings`",
        "The list of the request, adapters that are not there among them.",
        "The adapters in force.",
        "An unknown one changes nothing.",
        r"length generation_settings\.lora",
        requests=r"sampling-fields: lora",
    ),
    Accepted(
        "`multimodal_data` without media",
        "A model for texts alone refuses it.",
        "An empty list is no media.",
        "There is nothing that the model can't take.",
        r"status 200 for 400",
        requests=r"sampling-fields: prompt \{'prompt_string': 'Once', 'multimodal_data': \[\]\}",
    ),
    Accepted(
        "Transcriptions without a form",
        "A model for texts alone answers 501.",
        "A body that is no form is refused with 415, whatever the model is.",
        "What a client sends is wrong for every model; a form gets 501.",
        r"status 415 for 501",
        requests=r"administration: transcriptions",
    ),
    Accepted(
        "End of a grammar",
        "A last token, which ends the generation, follows where a grammar has nothing more.",
        "The answer ends there.",
        "The texts are the same, without the wait for a token that nobody sees.",
        rf"{COUNTS}|value choices\[\]\.finish_reason",
        requests=r"chat: (grammar|a prefill of (whole )?JSON)"
        r"|completion: (a grammar|grammar and schema)"
        r"|sampling-fields: (grammar 'root|json_schema \{'(enum|const)')"
        r"|instructor: JSON(, streamed)?$"
        r"|streams: a (grammar|user's grammar|schema)",
    ),
    Accepted(
        "Spaces, numbers and tokens in constrained JSON",
        "White space may stand before commas in some objects, and twice in empty ones; integers "
        "have 16 digits. A name that must come is spelled in any tokens. JSON may stand in a "
        "fence of Markdown, which is taken away.",
        "White space may stand between any two parts; an integer has as many digits as it needs. "
        "A text that must come is in the tokens that the tokenizer makes of it. JSON is alone.",
        "Other constraints of the same schemas: a model that writes JSON writes the same.",
        rf"{OTHER_TEXT}|value choices\[\]\.finish_reason",
        requests=r"completion: a schema|sampling-fields: json_schema \{'items'"
        r"|chat: (a schema|JSON|json_schema|format without schema)|agents: schema,"
        r"|instructor: (JSON|schema|strict)"
        r"|langchain: structured by a schema|vercel-ai: (an object|an enum)"
        r"|recorded-.*(structured_output|stream)",
    ),
    Accepted(
        "Thoughts before a constrained answer",
        "Behind a tag such as `<think>` any text may follow.",
        "What the model's template writes behind the tag follows: a line end, say.",
        "It is what the model has learnt.",
        rf"{OTHER_TEXT}|value choices\[\]\.finish_reason",
        requests=r"chat: thoughts and a schema",
    ),
    Accepted(
        "A call that is demanded",
        "Any text may come before it, and take all tokens that were asked for.",
        "The call comes first; thoughts may come before it.",
        "Whoever demands a call reads nothing else.",
        rf"{OTHER_TEXT}|value choices\[\]\.finish_reason"
        r"|(type|extra|missing|value|length) (choices\[\]\.message\."
        r"(content|tool_calls(\[\]\.function\.arguments)?|reasoning_content)|content|content\[\]\.(type|text|id|name|input)"
        r"|output|output\[\]\.(role|type|content|call_id|name|arguments))",
        requests=r"chat: (a tool, required|a tool by name|tools in parallel)"
        r"|recorded-.*: \d+ (tools|structured_output)"
        r"|messages: a tool(, streamed| by name)?$|responses: a tool(, streamed)?$"
        r"|instructor: tools|langchain: structured by a tool",
    ),
    Accepted(
        "Tools that are not there",
        "`tool_choice` with the name of none of the tools is ignored.",
        "It is status 400.",
        "A call of it can't be made.",
        r"status 400 for 200",
        requests=r"chat: tool choice of another",
    ),
    Accepted(
        "Tools without parameters",
        "The template sees an empty object as their schema.",
        "It sees a schema of an object without properties.",
        "Templates that go through the properties fail with an empty object.",
        OTHER_PROMPT,
        requests=r"chat: tool without parameters|agents: MCP tool, empty",
    ),
    Accepted(
        "Built-in tools",
        "`web_search` and the like are status 500 in chats, functions in Messages.",
        "They are left out, and the log says so. Status 501 if one is demanded.",
        "Agents list them beside their functions. This server has none of them.",
        rf"{OTHER_PROMPT}|status 200 for 500|value content\[\]\.thinking",
        requests=r"chat: tool of a type unknown|messages: (only )?built-in tools",
    ),
    Accepted(
        "Tools that take a text",
        "Custom tools are left out of Responses.",
        "The model sees them as functions of one text.",
        "OpenAI's API has them.",
        rf"{OTHER_PROMPT}|value .*\.text|length output",
        requests=r"responses: a custom tool|agents: coding agent of Responses",
    ),
    Accepted(
        "Thoughts that are switched off",
        "`thinking` of the type `disabled`, `reasoning.effort` of `none` and `enable_thinking` "
        "beside `messages` are ignored.",
        "They switch thoughts off, as `reasoning_effort` of `none` does.",
        "Each API has its own way to say so, and agents use it.",
        rf"{OTHER_PROMPT}|(value|missing|extra) content\[\]\.(type|thinking|signature|text)",
        requests=r"agents: coding agent of Messages",
    ),
    Accepted(
        "`functions` and `function_call`",
        "They are ignored.",
        "They are tools, and the answer has the same form.",
        "OpenAI's API has them, and older clients send them.",
        rf"{OTHER_PROMPT}|type choices\[\]\.message\.content|value choices\[\]\.finish_reason"
        r"|extra choices\[\]\.message\.function_call",
        requests=r"chat: functions|aider: edits as a function",
    ),
    Accepted(
        "Schemas of tools and answers",
        "`true` as the schema of a property, recursion, and a bound beyond 64 bits are status 400.",
        "They are taken. What can't be enforced is left out, see `X-Specllama-Relaxed`.",
        "They are ordinary JSON schemas, and agents send them.",
        r"status 200 for 400",
        requests=r"agents: (MCP tool|schema), (huge bound|recursion|true)",
    ),
    Accepted(
        "Schemas in Responses",
        "`text.format` is ignored.",
        "The answer fulfils it.",
        "OpenAI's API has it.",
        rf"{OTHER_TEXT}|(value|missing) output\[\]\.(role|type"
        r"|content\[\]\.(type|annotations|logprobs))",
        requests=r"responses: (a schema|JSON)|recorded-.*responses",
    ),
    Accepted(
        "`text` of a part of unknown type",
        "Status 400, or, in Messages, the part is left out.",
        "The text is read.",
        "It was meant for the model.",
        rf"status 200 for 400|{OTHER_PROMPT}",
        requests=r"chat: a part (of a type unknown|without type)|messages: a block unknown",
    ),
    Accepted(
        "Documents in Messages",
        "They are left out.",
        "Texts and PDF files are read; pages without a text are shown to models that see.",
        "Anthropic's API has them; an answer without them would be wrong.",
        OTHER_PROMPT,
        requests=r"messages: a document|media: a document in a message",
    ),
    Accepted(
        "Files",
        "Status 400.",
        "Documents are read from `file_data` and `file_url`; a `file_id` is status 501.",
        "OpenAI's API has them. What is kept by OpenAI can't be reached.",
        r"status (501|200) for 400",
        requests=r"chat: a file|media: a document$",
    ),
    Accepted(
        "Images and sounds by URL",
        "Every URL is fetched, those of private networks as well.",
        "They are status 501 without `--media-urls`, which fetches from public addresses.",
        "Whoever may send requests could have the server ask any other.",
        r"status 501 for 500",
        requests=r"media: refused, an address",
    ),
    Accepted(
        "`file://` without `--media-path`",
        "Status 400.",
        "Status 501.",
        "An option would allow it, as with URLs.",
        r"status 501 for 400",
        requests=r"media: refused, a path",
    ),
    Accepted(
        "The media marker in a text of a chat",
        "It stands for an image, so that the chat is status 400.",
        "It is text.",
        "A text of anybody can't take the place of an image.",
        r"status 200 for 400",
        requests=r"media: a marker in a text",
    ),
    Accepted(
        "`prompt` of answers to native prompts with media",
        "Images and sounds are left out.",
        "`<__media__>` stands in their places.",
        "It shows where they are.",
        r"value prompt",
        requests=r"media: native",
    ),
    Accepted(
        "Films",
        "They are taken where an external program decodes them.",
        "They are status 501, and `modalities.video` is false.",
        "No program is started with what a request has sent.",
        r"value modalities\.video",
        requests=r"media: properties",
    ),
    Accepted(
        "Items, `metadata`, `top_logprobs` and `tools: null` in Responses",
        "An item of an unknown type, `top_logprobs` (of which `metadata` may make one) and "
        "`tools: null` are status 400.",
        "An unknown item is left out, and the others are taken.",
        "OpenAI's API has them.",
        r"status 200 for 400",
        requests=r"responses: (an item of a type unknown|metadata|top_logprobs|tools null)",
    ),
    Accepted(
        "`conversation` and `prompt` in Responses",
        "They are ignored.",
        "They are status 501.",
        "The answer would not be one to what was asked: earlier turns would be missing.",
        r"status 501 for 200",
        requests=r"responses: (a conversation|a prompt of the platform)",
    ),
    Accepted(
        "`background` in Responses",
        "It is ignored: the client waits for the answer.",
        "The answer comes at once, without output; the response is generated meanwhile, and "
        "`GET /v1/responses/{id}` shows it.",
        "So it is with OpenAI, whose clients ask until it is there.",
        r"(value|type|length|missing|extra) .*",
        requests=r"responses: in the background",
    ),
    Accepted(
        "Calls with arguments that are no JSON",
        "A chat with one is status 500.",
        "The template gets the text.",
        "Cut-off calls stand in the history of chats, which can go on.",
        r"status 200 for 500",
        requests=r"chat: a call with bad arguments",
    ),
    Accepted(
        "`--embeddings`",
        "Such a server completes texts, too.",
        "Completions are status 501.",
        "The option restricts the server to embeddings, as its description says.",
        r"status 501 for 200",
        requests=r"embeddings: a (completion|chat) of embeddings",
    ),
    Accepted(
        "Several texts",
        "`n` is at most the number of slots, and `usage` counts one text.",
        "`n` may be greater, the texts wait for each other; `usage` counts all.",
        "All were generated. In a stream the texts come in turn on both servers, in no set order.",
        rf"{OTHER_PROMPT}|status 200 for 400|(type|value|missing|extra) (choices\[\]\.(delta\.\w+"
        r"|text|index|finish_reason)|timings|usage|index|stop)|type|length .*",
        requests=r"chat: (several|n too many)|completion: (OpenAI, several|OpenAI, best_of"
        r"|OpenAI, two prompts|two prompts, streamed)|sampling-fields: n 3",
    ),
    Accepted(
        "Probabilities in chats",
        "They are those of all generated tokens, thoughts and markers among them.",
        "They are those of the content; `__verbose` has all.",
        "OpenAI's API says so, and clients join them to the content.",
        r"(length|value|missing|extra) choices\[\]\.logprobs.*",
        requests=r"chat: (with probabilities|probabilities alone|top_logprobs too many)",
    ),
    Accepted(
        "`echo` and `suffix` in `/v1/completions`",
        "They are ignored.",
        "`echo` repeats the prompt, with `logprobs` its probabilities; the text is filled in "
        "before `suffix`.",
        "OpenAI's API has them.",
        rf"{OTHER_PROMPT}|value choices\[\]\.finish_reason",
        requests=r"completion: OpenAI, (echo|suffix)",
    ),
    Accepted(
        "Room in `/infill`",
        "Prefix and suffix get shares of a batch, which may leave no room for the context's rest.",
        "They get what is free in a batch and in the context, `input_extra` what is left. What "
        "leaves no room for the answer is cut.",
        "More of the code is seen, and nothing that can be cut is refused.",
        OTHER_PROMPT,
        requests=r"infill: long",
    ),
    Accepted(
        "`tokens` in progress events",
        "One that was not generated.",
        "None.",
        "A prompt is being read then.",
        r"length tokens",
        requests=r"completion: progress, streamed",
    ),
    Accepted(
        "A router's list",
        "The models of its cache, its directory and its presets.",
        "The same; the model that comes with the package where there are none. `args` and `preset` "
        "are spelt with this server's options.",
        "It serves without any model of one's own.",
        r"(length|value) data\[\]\.status\.(args(\[\])?|preset|value)",
        requests=r"router: models",
    ),
    Accepted(
        "`GET /props` of a router",
        "Placeholders.",
        "What the default model has.",
        "It is what a request without a name gets.",
        r"(value|type) (model_alias|model_path|default_generation_settings\..*)",
        requests=r"router: props of the server",
    ),
    Accepted(
        "A router's request that names no model",
        "Status 400.",
        "It goes to the default model; where there is one model, any name goes there as well.",
        "Clients that know one model need no change.",
        r"status 200 for 400",
        requests=r"router: no model",
    ),
    Accepted(
        "`DELETE /models`",
        "What can't be removed is status 500.",
        "Status 404 for an unknown model, 400 for one that isn't in the cache.",
        "It is the request's fault. Nothing outside of the cache is ever removed, and a preset's "
        "model never.",
        r"status 40[04] for 500",
        r"/models\?model=",
    ),
    Accepted(
        "Streams that clients come back to",
        "In some runs a stream that has just ended is gone: status 404, and not looked up.",
        "It is kept.",
        "Clients are to find it.",
        r"status 200 for 404|length",
        requests=r"streams: (come back|nothing behind the end|looked up)",
        sometimes=True,
    ),
    Accepted(
        "Loading a model that is loaded",
        "In some runs status 200, as if it were not loaded yet; otherwise 400.",
        "Status 400.",
        "The answer doesn't depend on how long ago the model was loaded.",
        r"status 400 for 200",
        requests=r"router: load, loaded",
        sometimes=True,
    ),
)
