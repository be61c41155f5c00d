"""Values for fields whose schema doesn't describe useful values: grammars, JSON schemas, tools,
conversations, images, names of models."""

import base64
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from contract_tests.fuzz.values import ODD, Maker, Values
from contract_tests.kit.json_schemas import EXTRAS, PATTERNS
from tests.support.media_files import FILES, blank_png, png_of_size, wav_file
from tests.support.video_files import video_file

GRAMMARS = (
    *('root ::= "yes" | "no"', "root ::= [a-z]+", 'root ::= ("a" | root "b")', "root ::= root"),
    *('root ::= a{0,3}\na ::= [0-9] "\\n"', "root ::= [^\\x00]*", 'root ::= ""', "", "root ::="),
    *('root ::= "unclosed', "root ::= b", 'root ::= "a"{99999}', "root ::= [z-a]", "start: /a+/"),
    *('%llguidance {}\nstart: "a" | "b"', 'root ::= "\\uD83E"', "root ::= .", 'root ::= "🦙"+ # x'),
)  # fmt: skip
TRIGGERS = ({"type": 0, "value": 1}, {"type": 1, "value": "<tool_call>"}, {"type": 2, "value": "("})
TOOL = {
    "name": "weather",
    "description": "The weather in a town.",
    "parameters": {
        "type": "object",
        "properties": {"town": {"type": "string"}, "days": {"type": "integer", "maximum": 9}},
        "required": ["town"],
    },
}
FUNCTION = {"type": "function", "function": TOOL}


@cache
def media() -> Sequence[tuple[str, bytes]]:
    """Returns files of images, sounds, a video and other things, with the names of their types."""
    good = [*FILES.items(), ("MP4", video_file(n_pictures=3))]
    cut = [(name, data[: len(data) // 2]) for name, data in good]
    odd = [
        *(("PNG", data) for data in (b"", b"\x89PNG", blank_png(1, 1), blank_png(500, 7))),
        *(("PNG", png_of_size(*size)) for size in ((0, 0), (1, 2**31 - 1), (60_000, 60_000))),
        *(("WAV", wav_file([], 1)), ("WAV", wav_file([0.5] * 50, 2**29)), ("PDF", b"%PDF-1.7\n")),
    ]
    return [*good, *good, *cut, *odd]


def json_schema(values: Values, depth: int = 0) -> Any:
    """Returns a JSON schema, sometimes with a keyword that few servers support."""
    dice = values.dice
    kinds = ("string", "integer", "number", "boolean", "null", "array", "object", "enum", "const")
    kind = dice.choice(kinds if depth < 3 else kinds[:5])
    schema: dict[str, Any] = {"type": kind}
    inner = depth + 1
    match kind:
        case "enum":
            schema = {"enum": [dice.choice((1, "a", None, "\ud800", [], 1.5)) for _ in range(3)]}
        case "const":
            schema = {"const": dice.choice((1, "a", None, "é\n", {"a": []}))}
        case "string" if values.chance(0.5):
            schema |= dice.choice(
                ({"pattern": dice.choice(PATTERNS)}, {"maxLength": dice.choice((0, 3, 2**31))})
            )
        case "integer" | "number" if values.chance(0.5):
            schema |= {"minimum": dice.choice((0, -5, 1e300)), "maximum": dice.choice((5, -6, 7.5))}
        case "array":
            schema |= {"items": json_schema(values, inner), "maxItems": dice.choice((0, 2, 9999))}
        case "object":
            names = dice.sample(("a", "b", "größe", "", 'say "x"'), dice.randint(0, 3))
            schema["properties"] = {name: json_schema(values, inner) for name in names}
            schema["required"] = dice.choice((names, names[:1], ["missing"]))
            schema["additionalProperties"] = dice.choice((False, True, {}))
    if values.chance(0.12):
        schema |= dice.choice(EXTRAS)
    if depth == 0 and values.chance(0.1):
        loop = {"anyOf": [{"$ref": "#/$defs/x"}, schema]}
        schema = {"$ref": "#/$defs/x", "$defs": {"x": dice.choice((schema, loop))}}
    return values.mutated(schema) if depth == 0 and values.chance(0.15) else schema


def tool(values: Values) -> Any:
    named = {**TOOL, "name": values.dice.choice(("weather", "f", "a-b", "x" * 64, "ü", ""))}
    if values.chance(0.4):
        named["parameters"] = json_schema(values)
    flat = {"type": "function", **named}
    anthropic = {"name": named["name"], "input_schema": named["parameters"]}
    nested = {"type": "function", "function": named}
    odd = (
        {"type": "custom", "name": "text"},
        {"type": "web_search"},
        {"type": "custom", "custom": {}},
    )
    return values.dice.choice((nested, nested, flat, flat, anthropic, anthropic, *odd))


def image(values: Values) -> str:
    return base64.b64encode(values.dice.choice(media())[1]).decode()


def url(values: Values) -> str:
    """Returns a URL of an image in one of the usual forms. No server fetches it."""
    kind, data = values.dice.choice(media())
    encoded = base64.b64encode(data).decode()
    odd = ("file:///etc/passwd", "http://127.0.0.1:1/x", "file://a.png", "data:,x", encoded, "")
    return values.dice.choice((*[f"data:image/{kind.lower()};base64,{encoded}"] * 6, *odd))


def part(values: Values) -> Any:
    """Returns a part of a message's content, in the formats of several APIs."""
    words: Any = values.dice.choice((values.words(), values.dice.choice(ODD)))
    source = {"type": "base64", "media_type": "image/png", "data": image(values)}
    return values.dice.choice(
        (
            *({"type": name, "text": words} for name in ("text", "text", "input_text", "refusal")),
            {"type": "image_url", "image_url": {"url": url(values)}},
            {"type": "input_image", "image_url": url(values)},
            {"type": "image", "source": source},
            {"type": "input_audio", "input_audio": {"data": image(values), "format": "wav"}},
            {"type": "input_video", "input_video": {"data": image(values)}},
            {"type": "thinking", "thinking": words, "signature": ""},
            {"type": "tool_result", "tool_use_id": "call_1", "content": words},
            {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"town": words}},
        )
    )


def message(values: Values) -> Any:
    dice = values.dice
    role = dice.choice(("user", "user", "user", "assistant", "system", "developer", "tool"))
    content: Any = values.words() if values.chance(0.7) else dice.choice(ODD)
    if values.chance(0.25):
        content = [part(values) for _ in range(dice.randint(0, 3))]
    said: dict[str, Any] = {"role": role, "content": content}
    if role == "assistant" and values.chance(0.4):
        call: Any = {
            "name": "weather",
            "arguments": dice.choice(("{}", '{"town": "Lima"}', "{", {})),
        }
        said["tool_calls"] = [{"id": "call_1", "type": "function", "function": call}]
    if role == "assistant" and values.chance(0.3):
        said["reasoning_content"] = values.words()
    if role == "tool":
        said["tool_call_id"] = dice.choice(("call_1", "call_2", ""))
    return said


def messages(values: Values) -> Any:
    return [message(values) for _ in range(values.dice.choice((1, 1, 2, 3, 5)))]


def items(values: Values) -> Any:
    """Returns the input of a response."""
    dice, call = values.dice, {"call_id": "call_1"}
    known = (
        message(values),
        {"type": "message", "role": "user", "content": [part(values)]},
        {"type": "function_call", **call, "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", **call, "output": values.words()},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "item_reference", "id": "msg_0"},
    )
    return values.words() if values.chance(0.4) else dice.choices(known, k=dice.randint(0, 4))


def prompt(values: Values) -> Any:
    dice = values.dice
    ids = [dice.choice((0, 1, 2, 5, 300, 1000, 4000, -1)) for _ in range(dice.randint(0, 6))]
    media_prompt = {"prompt_string": "<__media__> a", "multimodal_data": [image(values)]}
    return dice.choice(
        (
            *(values.words(20), values.words(), ids, [ids, values.words()], [values.words(), 5]),
            *(dice.choice(ODD), [], [values.words(), values.words()], {"prompt_string": "a"}),
            media_prompt,
        )
    )


def response_format(values: Values) -> Any:
    schema = json_schema(values)
    named = {"name": "n", "schema": schema, "strict": values.chance(0.5)}
    return values.dice.choice(
        (
            *({"type": "json_object"}, {"type": "text"}, {"type": "json_object", "schema": schema}),
            *({"type": "json_schema", "json_schema": named}, {"type": "json_schema", **named}),
            {"type": "json_schema"},
        )
    )


def logit_bias(values: Values) -> Any:
    dice = values.dice
    biases = (1, -1.5, 1e9, False, -100, 100)
    pairs = [[dice.choice((5, "a", 0, 4095, -1)), dice.choice(biases)] for _ in range(3)]
    return dice.choice((pairs, {"5": 1, "a": -1}, [{"id": 5, "bias": 1}], {}))


def conversation(values: Values) -> str:
    """Returns one of few names, so that clients share conversations."""
    return f"conversation-{values.dice.randrange(6)}"


def knowing(models: Sequence[str]) -> Mapping[str, Maker]:
    """Returns the makers by field name; `models` are the server's model names."""

    def model(values: Values) -> Any:
        known = [*models, *models, *models] or ["any"]
        return values.dice.choice((*known, "missing", "a/b:Q8_0", *ODD[:6]))

    def tools(values: Values) -> Any:
        return [tool(values) for _ in range(values.dice.randint(0, 3))]

    def images(values: Values) -> Any:
        return [image(values) for _ in range(values.dice.randint(0, 2))]

    return {
        "model": model,
        "json_schema": json_schema,
        "schema": json_schema,
        "input_schema": json_schema,
        "format": lambda values: values.dice.choice(("json", json_schema(values), "", None)),
        "grammar": lambda values: values.dice.choice(GRAMMARS),
        "grammar_triggers": lambda values: [values.dice.choice(TRIGGERS)],
        "response_format": response_format,
        "tools": tools,
        "messages": messages,
        "input": items,
        "prompt": prompt,
        "logit_bias": logit_bias,
        "images": images,
        "image_data": lambda values: [{"data": image(values), "id": values.dice.randint(-1, 2)}],
        "X-Conversation-Id": conversation,
        "conv_id": conversation,
        "conversation_ids": lambda values: [conversation(values), values.words()],
        "filename": lambda values: values.dice.choice(("a.bin", "b.bin", "none", "../x", *ODD[:9])),
        "lora": lambda values: [{"id": values.dice.randint(-1, 3), "scale": values.dice.random()}],
        "stop": lambda values: values.dice.choice(
            (values.words(2), [values.words(1)], [""], ODD[1])
        ),
    }
