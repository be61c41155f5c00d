"""Differences of certain requests."""

from contract_tests.peer.row import COUNTS, OTHER_PROMPT, OTHER_TEXT, Accepted

ROWS = (
    Accepted(
        "Fields of a wrong type",
        "Some are ignored, others are converted (`true` to 1).",
        "Status 400 with the right type. null counts as left out.",
        "Otherwise the mistake would go unnoticed.",
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
        "`/tokenize` and `/detokenize` treat it as empty.",
        "It is harmless.",
        r"status 200 for 500",
        requests=r"tokens: (de)?tokenize null",
    ),
    Accepted(
        "`n_predict` and `max_tokens` of 0",
        "One token is generated.",
        "No token is generated.",
        "llama-server's documentation says that 0 only evaluates the prompt.",
        rf"{OTHER_TEXT}|length (tokens|content)|value stop|extra \w+",
        requests=r"chat: max_tokens 0|completion: no tokens|infill: nothing to predict"
        r"|sampling-fields: (n_predict|max_tokens) 0$|messages: max_tokens 0|llama-vscode: prepare",
    ),
    Accepted(
        "Empty stop texts",
        "They end the answer at once.",
        "They are ignored.",
        "Every text contains the empty text, so no text could be generated.",
        rf"{OTHER_TEXT}|length generation_settings\.stop",
        requests=r"sampling-fields: stop (''|\[''\])",
    ),
    Accepted(
        "`n_indent`",
        "A line with too few blanks is noticed one token later.",
        "It is noticed at once.",
        "The text is the same, with one token less generated.",
        COUNTS,
        requests=r"sampling-fields: n_indent",
    ),
    Accepted(
        "Penalties over the whole context",
        "-1 in `repeat_last_n` or `dry_penalty_last_n` is answered with 400.",
        "-1 stands for the size of the context.",
        "The documentation of both servers says so, and clients send it.",
        r"status 200 for 400",
        requests=r"sampling-fields: (repeat_last_n|dry_penalty_last_n) -1|sillytavern: text",
    ),
    Accepted(
        "Many probabilities",
        "`n_probs` has no limit.",
        "The limit is 1024; larger values are answered with 400.",
        "An answer with the whole vocabulary for each token needs unlimited memory.",
        r"status 400 for 200",
        requests=r"sampling-fields: n_probs 100000",
    ),
    Accepted(
        "Values out of their range, in `generation_settings`",
        "They are shown as sent.",
        "They are shown as used: clamped to their range.",
        "The object shows the settings in use. Temperatures and penalties are at most 1000000; "
        "negative values of DRY, Mirostat and the dynamic temperature become 0.",
        r"value generation_settings\.(typical_p|temperature|dynatemp_(range|exponent)|top_k"
        r"|top_n_sigma|repeat_penalty|dry_multiplier|mirostat_(tau|eta)|adaptive_target|n_probs)",
        requests=r"sampling-fields: (typical_p (-1|1\.5)|temperature 1000000000|dynatemp_\w+ -1"
        r"|top_k 2147483648|top_n_sigma -5|repeat_penalty 2000000|dry_multiplier -1"
        r"|mirostat_(tau|eta) -1|adaptive_target -2|n_probs -1)",
    ),
    Accepted(
        "Unknown `reasoning_format` of native completions",
        "Status 400.",
        "It is ignored.",
        "These operations don't parse their answers.",
        r"status 200 for 400",
        requests=r"sampling-fields: reasoning_format ('wrong'|5)",
    ),
    Accepted(
        "LoRA adapters in `generation_settings`",
        "The adapters of the request, unknown ones included.",
        "The adapters in use.",
        "An unknown adapter has no effect.",
        r"length generation_settings\.lora",
        requests=r"sampling-fields: lora",
    ),
    Accepted(
        "`multimodal_data` without media",
        "A model without media input rejects it.",
        "An empty list is accepted.",
        "It contains nothing that the model can't read.",
        r"status 200 for 400",
        requests=r"sampling-fields: prompt \{'prompt_string': 'Once', 'multimodal_data': \[\]\}",
    ),
    Accepted(
        "Transcriptions without a form",
        "A model without audio input answers 501.",
        "A body that is no form is answered with 415 for every model.",
        "The mistake doesn't depend on the model. A form is answered with 501.",
        r"status 415 for 501",
        requests=r"administration: transcriptions",
    ),
    Accepted(
        "End of a grammar",
        "When a grammar is complete, a last token ends the generation.",
        "The answer ends without that token.",
        "The texts are the same, without the time for a token that isn't shown.",
        rf"{COUNTS}|value choices\[\]\.finish_reason",
        requests=r"chat: (grammar|a prefill of (whole )?JSON)"
        r"|completion: (a grammar|grammar and schema)"
        r"|sampling-fields: (grammar 'root|json_schema \{'(enum|const)')"
        r"|instructor: JSON(, streamed)?$"
        r"|streams: a (grammar|user's grammar|schema)",
    ),
    Accepted(
        "Spaces, numbers and tokens in constrained JSON",
        "White space is allowed before commas in some objects, and twice in empty ones. Integers "
        "have up to 16 digits. A required name may consist of any tokens. JSON may be in a "
        "Markdown fence, which is removed.",
        "White space is allowed between any two parts. Integers have any number of digits. A "
        "required text consists of the tokenizer's tokens. A Markdown fence is not allowed.",
        "The constraints differ, but a model that writes JSON generates the same text.",
        rf"{OTHER_TEXT}|value choices\[\]\.finish_reason",
        requests=r"completion: a schema|sampling-fields: json_schema \{'items'"
        r"|chat: (a schema|JSON|json_schema|format without schema)|agents: schema,"
        r"|instructor: (JSON|schema|strict)"
        r"|langchain: structured by a schema|vercel-ai: (an object|an enum)"
        r"|recorded-.*(structured_output|stream)",
    ),
    Accepted(
        "Reasoning before constrained output",
        "After a tag such as `<think>` any text is allowed.",
        "The tag is followed by the text that the template writes there, such as a line end.",
        "The model was trained with it.",
        rf"{OTHER_TEXT}|value choices\[\]\.finish_reason",
        requests=r"chat: thoughts and a schema",
    ),
    Accepted(
        "A forced call",
        "Any text may precede the call, and may use up all requested tokens.",
        "The call comes first; only reasoning may precede it.",
        "A client that forces a call reads only the call.",
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
        "`tool_choice` with an unknown tool",
        "The name is ignored.",
        "Status 400.",
        "The tool can't be called.",
        r"status 400 for 200",
        requests=r"chat: tool choice of another",
    ),
    Accepted(
        "Tools without parameters",
        "The template gets an empty object as their schema.",
        "It gets the schema of an object without properties.",
        "Templates that list the properties fail with an empty object.",
        OTHER_PROMPT,
        requests=r"chat: tool without parameters|agents: MCP tool, empty",
    ),
    Accepted(
        "Built-in tools",
        "`web_search` and similar tools cause status 500 in chats, and are functions in Messages.",
        "They are left out with a log line. If one is forced, the status is 501.",
        "Agents list them together with their functions. This server doesn't have them.",
        rf"{OTHER_PROMPT}|status 200 for 500|value content\[\]\.thinking",
        requests=r"chat: tool of a type unknown|messages: (only )?built-in tools",
    ),
    Accepted(
        "Custom tools",
        "They are left out of Responses.",
        "The model gets them as functions with one text.",
        "OpenAI's API has them.",
        rf"{OTHER_PROMPT}|value .*\.text|length output",
        requests=r"responses: a custom tool|agents: coding agent of Responses",
    ),
    Accepted(
        "Reasoning switched off",
        "`thinking` of the type `disabled`, `reasoning.effort` of `none`, and `enable_thinking` "
        "next to `messages` are ignored.",
        "They switch reasoning off, as `reasoning_effort` of `none` does.",
        "Each API has its own field for it, and agents use it.",
        rf"{OTHER_PROMPT}|(value|missing|extra) content\[\]\.(type|thinking|signature|text)",
        requests=r"agents: coding agent of Messages",
    ),
    Accepted(
        "`functions` and `function_call`",
        "They are ignored.",
        "They work as tools, and the answer has the old form.",
        "OpenAI's API has them, and older clients send them.",
        rf"{OTHER_PROMPT}|type choices\[\]\.message\.content|value choices\[\]\.finish_reason"
        r"|extra choices\[\]\.message\.function_call",
        requests=r"chat: functions|aider: edits as a function",
    ),
    Accepted(
        "Schemas of tools and answers",
        "`true` as a property's schema, recursion, and bounds beyond 64 bits cause status 400.",
        "They are accepted. `X-Specllama-Relaxed` lists parts that can't be enforced.",
        "They are ordinary JSON schemas, and agents send them.",
        r"status 200 for 400",
        requests=r"agents: (MCP tool|schema), (huge bound|recursion|true)",
    ),
    Accepted(
        "Schemas in Responses",
        "`text.format` is ignored.",
        "The answer matches the schema.",
        "OpenAI's API has it.",
        rf"{OTHER_TEXT}|(value|missing) output\[\]\.(role|type"
        r"|content\[\]\.(type|annotations|logprobs))",
        requests=r"responses: (a schema|JSON)|recorded-.*responses",
    ),
    Accepted(
        "`text` of a part of unknown type",
        "Status 400; in Messages, the part is left out.",
        "The text is used.",
        "The client means it for the model.",
        rf"status 200 for 400|{OTHER_PROMPT}",
        requests=r"chat: a part (of a type unknown|without type)|messages: a block unknown",
    ),
    Accepted(
        "Documents in Messages",
        "They are left out.",
        "Text and PDF files are read. Pages without text are shown to models with image input.",
        "Anthropic's API has them. An answer without them would be wrong.",
        OTHER_PROMPT,
        requests=r"messages: a document|media: a document in a message",
    ),
    Accepted(
        "Files",
        "Status 400.",
        "Documents in `file_data` and `file_url` are read; a `file_id` is answered with 501.",
        "OpenAI's API has them. Files that OpenAI stores can't be reached.",
        r"status (501|200) for 400",
        requests=r"chat: a file|media: a document$",
    ),
    Accepted(
        "Images and sounds by URL",
        "Every URL is fetched, private networks included.",
        "Status 501 without `--media-urls`, which allows public addresses.",
        "Otherwise any client could make the server send requests to any other server.",
        r"status 501 for 500",
        requests=r"media: refused, an address",
    ),
    Accepted(
        "`file://` without `--media-path`",
        "Status 400.",
        "Status 501.",
        "An option can allow it, as for URLs.",
        r"status 501 for 400",
        requests=r"media: refused, a path",
    ),
    Accepted(
        "The media marker in a text of a chat",
        "It stands for an image, so the chat is answered with 400.",
        "It is text.",
        "A text must not be able to stand for an image.",
        r"status 200 for 400",
        requests=r"media: a marker in a text",
    ),
    Accepted(
        "`prompt` of answers to native prompts with media",
        "Images and sounds are left out.",
        "`<__media__>` stands in their places.",
        "They show the places of the media.",
        r"value prompt",
        requests=r"media: native",
    ),
    Accepted(
        "Videos",
        "FFmpeg's programs decode them. `modalities.video` is true with any model for images.",
        'A library decodes them, in a process with limits: `pip install "specllama[video]"`. '
        "Without it the status is 501, and `modalities.video` is false. `--video-ffmpeg-dir` has "
        "no effect.",
        "No external program runs on data from a request, and the library bundles codecs under the "
        "GPL, so it is optional.",
        r"value modalities\.video",
        requests=r"media: properties",
        sometimes=True,
    ),
    Accepted(
        "Items, `metadata`, `top_logprobs` and `tools: null` in Responses",
        "An item of an unknown type, `top_logprobs` (which `metadata` may cause) and `tools: null` "
        "are answered with 400.",
        "An unknown item is left out; the others are accepted.",
        "OpenAI's API has them.",
        r"status 200 for 400",
        requests=r"responses: (an item of a type unknown|metadata|top_logprobs|tools null)",
    ),
    Accepted(
        "`conversation` in Responses",
        "It is ignored.",
        "The items of the conversation come first, and the response is added to it. An unknown "
        "conversation is answered with 404.",
        "An answer would ignore earlier turns of the conversation.",
        r"status 404 for 200",
        requests=r"responses: a conversation",
    ),
    Accepted(
        "`prompt` in Responses",
        "It is ignored.",
        "Status 501.",
        "An answer would ignore the text of the template.",
        r"status 501 for 200",
        requests=r"responses: a prompt of the platform",
    ),
    Accepted(
        "`background` in Responses",
        "The field is ignored: the client waits for the answer.",
        "The answer is immediate, without output. The response is generated in the background, and "
        "`GET /v1/responses/{id}` returns it.",
        "This is OpenAI's API. Its clients poll until the response is complete.",
        r"(value|type|length|missing|extra) .*",
        requests=r"responses: in the background",
    ),
    Accepted(
        "Calls whose arguments are no JSON",
        "A chat with such a call is answered with 500.",
        "The template gets the arguments as text.",
        "Chats with a cut-off call in their history can be continued.",
        r"status 200 for 500",
        requests=r"chat: a call with bad arguments",
    ),
    Accepted(
        "`--embeddings`",
        "The server also generates texts.",
        "Completions are answered with 501.",
        "The option's description says that it restricts the server to embeddings.",
        r"status 501 for 200",
        requests=r"embeddings: a (completion|chat) of embeddings",
    ),
    Accepted(
        "Several texts",
        "`n` is at most the number of slots, and `usage` counts one text.",
        "`n` may be greater: the texts wait for each other. `usage` counts all texts.",
        "All texts were generated. In a stream, both servers interleave the texts in any order.",
        rf"{OTHER_PROMPT}|status 200 for 400|(type|value|missing|extra) (choices\[\]\.(delta\.\w+"
        r"|text|index|finish_reason)|timings|usage|index|stop)|type|length .*",
        requests=r"chat: (several|n too many)|completion: (OpenAI, several|OpenAI, best_of"
        r"|OpenAI, two prompts|two prompts, streamed)|sampling-fields: n 3",
    ),
    Accepted(
        "Probabilities in chats",
        "They cover all generated tokens, reasoning and markers included.",
        "They cover the content; `__verbose` has all.",
        "This is OpenAI's API, and clients match them with the content.",
        r"(length|value|missing|extra) choices\[\]\.logprobs.*",
        requests=r"chat: (with probabilities|probabilities alone|top_logprobs too many)",
    ),
    Accepted(
        "`echo` and `suffix` in `/v1/completions`",
        "They are ignored.",
        "`echo` repeats the prompt, with `logprobs` also its probabilities. With `suffix`, the "
        "text is generated to fit before it.",
        "OpenAI's API has them.",
        rf"{OTHER_PROMPT}|value choices\[\]\.finish_reason",
        requests=r"completion: OpenAI, (echo|suffix)",
    ),
    Accepted(
        "Context in `/infill`",
        "Prefix and suffix get shares of a batch, which may leave no room for other files.",
        "They get the room in a batch and in the context, and `input_extra` gets the rest. They "
        "are cut to leave room for the answer.",
        "The model sees more of the code, and no request is rejected if it can be cut.",
        OTHER_PROMPT,
        requests=r"infill: long",
    ),
    Accepted(
        "`tokens` in progress events",
        "One token that was not generated.",
        "An empty list.",
        "The prompt is still being evaluated.",
        r"length tokens",
        requests=r"completion: progress, streamed",
    ),
    Accepted(
        "A router's list",
        "The models in its cache, its directory and its presets.",
        "The same models, or the packaged model if there are none. `args` and `preset` use this "
        "server's option names.",
        "A server without any models of its own works.",
        r"(length|value) data\[\]\.status\.(args(\[\])?|preset|value)",
        requests=r"router: models",
    ),
    Accepted(
        "`GET /props` of a router",
        "Placeholders.",
        "The properties of the default model.",
        "A request without a model name uses it.",
        r"(value|type) (model_alias|model_path|default_generation_settings\..*)",
        requests=r"router: props of the server",
    ),
    Accepted(
        "A router's request without a model",
        "Status 400.",
        "The default model is used. If there is only one model, it is used for any name.",
        "Clients that were made for one model work unchanged.",
        r"status 200 for 400",
        requests=r"router: no model",
    ),
    Accepted(
        "`DELETE /models`",
        "Status 500 if a model can't be removed.",
        "Status 404 for an unknown model, 400 for one that isn't in the cache.",
        "The mistake is the client's. Files outside the cache, and models of presets, are never "
        "removed.",
        r"status 40[04] for 500",
        r"/models\?model=",
    ),
    Accepted(
        "Resumed streams",
        "In some runs a stream that has just ended is gone: status 404, and the lookup is empty.",
        "It is kept.",
        "Clients have to be able to resume it.",
        r"status 200 for 404|length",
        requests=r"streams: (come back|nothing behind the end|looked up)",
        sometimes=True,
    ),
    Accepted(
        "Loading a loaded model",
        "In some runs status 200, as if the model were not loaded yet; otherwise 400.",
        "Status 400.",
        "The answer doesn't depend on when the model was loaded.",
        r"status 400 for 200",
        requests=r"router: load, loaded",
        sometimes=True,
    ),
)
