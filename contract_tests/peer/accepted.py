"""Differences that are meant, each with its reason; also a page of the documentation:

python -m contract_tests.peer.accepted > docs/coming-from-llama-server.md
"""

import re
from dataclasses import dataclass

from contract_tests.peer.comparison import Difference
from contract_tests.peer.request import Request


@dataclass(frozen=True)
class Accepted:
    """A row of the table. A difference belongs to it if its cause matches `causes` in full, and
    the path of its request, if given, matches `paths` from the start."""

    title: str
    there: str
    here: str
    reason: str
    causes: str
    paths: str = ""

    def covers(self, request: Request, difference: Difference) -> bool:
        return bool(
            re.fullmatch(self.causes, difference.cause) and re.match(self.paths, request.path)
        )


ACCEPTED = (
    Accepted(
        "Bad requests",
        "Malformed JSON, and fields of a wrong type, are status 500.",
        "They are status 400.",
        "The fault is the client's: a 500 makes clients try again what can't succeed.",
        r"status (400|501) for 500",
    ),
    Accepted(
        "Requests that end the server",
        "Some requests run into an assertion, which ends the process.",
        "They are served or refused.",
        "One client must not take the server from all others.",
        r"status \d+ for 0",
    ),
    Accepted(
        "Words of errors",
        "The message comes from where the fault was noticed.",
        "It names the field and what is right. The texts that clients look for are the same.",
        "`error.type` and `error.code` are for programs, the message is for people.",
        r"wording .*error\.message",
    ),
    Accepted(
        "More fields in answers",
        "",
        "Some answers have more fields: counts, settings in force, the `param` of an error.",
        "The documents of the APIs name them; clients ignore fields that they don't know.",
        r"extra (?!(.*\.)?(message|delta)\.(content|reasoning_content|tool_calls)$"
        r"|content\[\]\.(id|name|input)$).*",
    ),
    Accepted(
        "Name of the model",
        "Answers name the model as the server does; only chats name it as the request did.",
        "All answers name it as the request did.",
        "Clients compare the two names.",
        r"value model",
    ),
    Accepted(
        "`tokens_cached`",
        "All tokens of the slot when the answer ends.",
        "Tokens of the prompt that were taken from the cache.",
        "That is what its documentation says it is.",
        r"value .*tokens_cached",
    ),
    Accepted(
        "Seed in `generation_settings`",
        "The seed of the request, 4294967295 for a random one.",
        "The seed that was drawn.",
        "With it the text can be had again.",
        r"value generation_settings\.seed",
    ),
    Accepted(
        "How an answer is parsed, in `generation_settings`",
        "`reasoning_format`, `chat_format` and `generation_prompt` are what the server would use.",
        "They are what the operation does: the native ones don't parse.",
        "The native operations leave thoughts in the text on both servers.",
        r"value generation_settings\.(reasoning_format|chat_format|generation_prompt)"
        r"|length generation_settings\.preserved_tokens",
    ),
    Accepted(
        "JSON schemas in `generation_settings`",
        "`grammar` is the grammar that a schema is turned into.",
        "`json_schema` is the schema, `grammar` is empty.",
        "Schemas are compiled as they are.",
        r"value generation_settings\.grammar",
    ),
    Accepted(
        "Truncated responses",
        "Their status is `completed`.",
        "It is `incomplete`, with `incomplete_details`.",
        "OpenAI's API says so, and its clients look for it.",
        r"(value (output\[\]\.|item\.)?status|type completed_at|event name)",
        r"(/v1)?/responses$",
    ),
    Accepted(
        "Details of models for Ollama's clients",
        "Sizes, families and quantizations are empty texts.",
        "They are there, and sizes are numbers.",
        "Ollama's clients expect them.",
        r"(value|type|length) models\[\]\..*",
        r"(/v1)?/models$|/api/tags$",
    ),
    Accepted(
        "List of models",
        "It wants a key.",
        "It is public, like health.",
        "The documents of the server say so.",
        r"status 200 for 401",
        r"(/v1)?/models$",
    ),
    Accepted(
        "Vectors of several inputs",
        "The vector of a text may depend on the texts beside it.",
        "It is the one that the text has alone.",
        "A text has one vector.",
        r"value .*embedding.*",
        r"(/v1)?/embeddings?$",
    ),
    Accepted(
        "`dimensions` of vectors",
        "The field is ignored.",
        "Vectors are cut and made unit vectors again.",
        "OpenAI's API has the field.",
        r"length .*embedding.*",
        r"(/v1)?/embeddings?$",
    ),
    Accepted(
        "Order of checks",
        "An operation that is switched off answers 501, whatever the request is.",
        "A request that isn't described is 400 or 404 first.",
        "Nothing of it can be served anyway.",
        r"status 40[04] for 501",
        r"/slots/",
    ),
    Accepted(
        "Bias of a token",
        "`logit_bias` is a list of pairs, or an object.",
        "It may be a list of objects with `token` and `bias`, too.",
        "`generation_settings` has that form, so it can be sent again.",
        r"length generation_settings\.logit_bias",
    ),
    Accepted(
        "Ollama's paths",
        "`/api/tags` and `/api/show` are not there.",
        "They are.",
        "The documents of the server name them.",
        r"status 200 for 404",
        r"/api/",
    ),
    Accepted(
        "Wrong methods",
        "Status 404.",
        "Status 405, and `Allow` says what is right.",
        "That is HTTP's status for it.",
        r"status 405 for 404",
    ),
    Accepted(
        "Web UI",
        "There is a page for chats.",
        "There is none, and `ui` in `/props` is false.",
        "It is a program of its own.",
        r"value ui",
        r"/props",
    ),
    Accepted(
        "`next_token` in `/slots`",
        "A list of one object.",
        "The object.",
        "The documents show an object.",
        r"type \[\]\.next_token",
        r"/slots",
    ),
    Accepted(
        "Which slot",
        "A request goes to the slot that was not used for longest.",
        "It goes to where the cache serves it best, or to the first free one.",
        "Prefixes are shared between slots.",
        r"(value|length) (\[\]\.n_prompt_tokens.*|generation_settings\..*)",
        r"/slots",
    ),
    Accepted(
        "`llamacpp:n_tokens_max`",
        "A counter.",
        "A gauge of the same name.",
        "It is a maximum, and Prometheus' counters end with `_total`.",
        r"missing llamacpp:n_tokens_max counter",
    ),
    Accepted(
        "Type of an error in Messages",
        "A prompt that is too long is an `exceed_context_size_error`.",
        "It is an `invalid_request_error`, whose message has the words of both APIs.",
        "Anthropic's clients know the types of Anthropic's API alone.",
        r"value error\.type",
        r"/v1/messages",
    ),
    Accepted(
        "Stop sequences in Messages",
        "`stop_reason` is `end_turn`.",
        "It is `stop_sequence`, and `stop_sequence` says which.",
        "Anthropic's API says so.",
        r"(value|type) (delta\.)?stop_(reason|sequence)",
        r"/v1/messages",
    ),
    Accepted(
        "Preflight requests",
        "They have a body of the type `text/html`, without content.",
        "They have none.",
        "Nobody reads it.",
        r"header missing Content-Type",
    ),
    Accepted(
        "End of the chat template",
        "`/props` shows it without its last line end.",
        "It is as in the model's file.",
        "Jinja drops the line end anyway.",
        r"value chat_template",
        r"/props",
    ),
)


def reason(request: Request, difference: Difference) -> str | None:
    """The title of the row that explains the difference."""
    return next((each.title for each in ACCEPTED if each.covers(request, difference)), None)


INTRODUCTION = """# Coming from llama-server

What works with llama-server works here: the same options, paths, fields and answers. `nox -s peer`
sends the same requests to both and compares the answers, all but ids, times and how much of a
prompt was cached. What differs on purpose is this.

| | llama-server | specllama | why |
|---|---|---|---|"""


def page() -> str:
    rows = (f"| {each.title} | {each.there} | {each.here} | {each.reason} |" for each in ACCEPTED)
    return "\n".join([INTRODUCTION, *rows, ""])


if __name__ == "__main__":
    print(page(), end="")
