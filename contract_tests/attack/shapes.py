"""All attacks, in the order of their table rows: small requests, odd bytes and harm to processes
that harmed earlier versions of this server."""

import json
from collections.abc import Callable
from typing import Any

from contract_tests.attack.honest import PROMPT
from contract_tests.attack.shape import CLOSED, Harm, Launch, Raw, Request, Shape

MIB = 1 << 20
REFUSED = frozenset({400})
SERVED_OR_REFUSED = frozenset({200, 400, 413})
HEAD = frozenset({431})
OK = frozenset({200})
GONE = frozenset({401, 404})
FOREIGN = {"Origin": "https://evil.example"}
H2C = {
    "Connection": "Upgrade, HTTP2-Settings, close",
    "Upgrade": "h2c",
    "HTTP2-Settings": "AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
}
NAMES = [f"p{i}" for i in range(64)]
GRAMMAR = 'root ::= "x" ((("a"{1000}){1000}){%d})'


def completion(**fields: Any) -> Callable[[int], Any]:
    return lambda _: {"prompt": "Once", "n_predict": 8, **fields}


def chat(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 8}


def itself(name: str) -> dict[str, Any]:
    properties = {each: {"$ref": f"#/$defs/{name}"} for each in NAMES}
    return {"type": "object", "required": NAMES, "properties": properties}


def exclusive(number: int) -> Any:
    schema = {
        "title": f"number {number}",
        "$defs": {"a": itself("a"), "b": itself("b")},
        "oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
    }
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    return {**chat("Go"), "response_format": form}


def optional(number: int) -> Any:
    schema = {"properties": {f"p{number}_{i}": {"type": "null"} for i in range(10_000)}}
    return {"prompt": "Once", "n_predict": 8, "json_schema": schema}


def nested(_: int) -> bytes:
    """Returns 50 MB of objects, nested 50 deep."""
    one = b'{"a":' * 50 + b"1" + b"}" * 50
    beginning = json.dumps(chat("Go")).encode()[:-1] + b',"metadata":{"all":['
    return beginning + b",".join([one] * (50 * 10**6 // len(one))) + b"]}}"


def keys(_: int) -> Any:
    return {"prompt": "Once", "n_predict": 8, **{f"key number {i}": i for i in range(1_000_000)}}


def biases(_: int) -> Any:
    return {"prompt": "Once", "n_predict": 8, "logit_bias": [["a b c" * 22, -1]] * 95_000}


def items(_: int) -> Any:
    message = {"type": "message", "role": "user", "content": "Once upon a time" * 10}
    return {"input": [message] * 62_000, "max_output_tokens": 8}


def special_tokens(_: int) -> Any:
    messages = [{"role": "user", "content": "<|im_start|>" * 4}] * 20_000
    return {"messages": messages, "max_tokens": 8}


def repetitions(number: int) -> Any:
    return {"prompt": "Once", "grammar": GRAMMAR % (999 - number)}


def many(n: int, **fields: Any) -> Any:
    return completion(n_cmpl=n, ignore_eos=True, **fields)


def run(tool: str, **params: Any) -> Callable[[int], Any]:
    return lambda _: {"tool": tool, "params": params}


UNREAD = completion(n_predict=-1, ignore_eos=True, stream=True, n_probs=100)
POST = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"

SHAPES = (
    Shape(row=1, name="branches-that-refer-to-themselves", what="`oneOf` of two `$ref`s whose 64"
          " required properties refer to themselves", times=4, leaves=True,
          sends=Request("/v1/chat/completions", exclusive)),
    Shape(row=2, name="endless-header", what="one header line of 64 MiB, no key", times=2,
          sends=Raw(lambda: b"GET /health HTTP/1.1\r\nX: " + b"x" * 64 * MIB), statuses=HEAD),
    Shape(row=2, name="endless-target", what="a request line of 64 MiB, no key", times=2,
          sends=Raw(lambda: b"GET /" + b"x" * 64 * MIB), statuses=HEAD),
    Shape(row=2, name="many-headers", what="a million header lines, no key", times=2,
          sends=Raw(lambda: b"GET /health HTTP/1.1\r\n" + b"X: y\r\n" * 10**6 + b"\r\n"),
          statuses=HEAD),
    Shape(row=3, name="nested-objects", what="50 MB of nested objects", times=2,
          sends=Request("/v1/chat/completions", nested), statuses=SERVED_OR_REFUSED),
    Shape(row=3, name="million-keys", what="an object with a million keys", times=2,
          sends=Request("/completion", keys), statuses=SERVED_OR_REFUSED),
    Shape(row=3, name="many-biases", what="11 MB of texts in `logit_bias`", times=2,
          sends=Request("/completion", biases), statuses=SERVED_OR_REFUSED),
    Shape(row=3, name="many-items", what="14 MB of items for Responses", times=2,
          sends=Request("/v1/responses", items), statuses=SERVED_OR_REFUSED),
    Shape(row=4, name="special-tokens", what="20,000 messages of special tokens", times=4,
          leaves=True, sends=Request("/v1/chat/completions", special_tokens)),
    Shape(row=4, name="emoji", what="a prompt of 700 KB of emoji", times=4, leaves=True,
          sends=Request("/completion", completion(prompt="\U0001f600" * 175_000))),
    Shape(row=5, name="long-prompt-many-texts", what="a prompt of 5 MB, `n_cmpl: 1024`",
          sends=Request("/completion", many(1024, prompt="Once upon " * 500_000)),
          statuses=REFUSED | {413}),
    Shape(row=6, name="many-probabilities", what="`n_cmpl: 1024, n_probs: 1024, n_predict: 2000`",
          leaves=True, sends=Request("/completion", many(1024, n_probs=1024, n_predict=2000))),
    Shape(row=7, name="grammar-of-repetitions", what="nested repetitions, different"
          " each time", times=6, statuses=REFUSED,
          sends=Request("/completion", repetitions)),
    Shape(row=8, name="page-reads-slots", what="a page of another origin reads `/slots`",
          sends=Request("/slots", method="GET", headers=FOREIGN), secret=PROMPT,
          statuses=frozenset({200})),
    Shape(row=8, name="rebound-name", what="a page whose host name leads"
          " to this server (DNS rebinding)",
          sends=Request("/slots", method="GET", headers={"Host": "evil.example"}),
          statuses=frozenset({403})),
    Shape(row=8, name="page-posts-form", what="a form of another origin, sent to `/models/unload`",
          sends=Request("/models/unload", lambda _: b"model=specllama-tiny",
                        headers={**FOREIGN, "Content-Type": "text/plain"}),
          statuses=frozenset({403})),
    Shape(row=9, name="upgrade-h2c", what="`Upgrade: h2c` with a body", times=4,
          sends=Request("/tokenize", lambda _: {"content": "Once"}, headers=H2C),
          statuses=frozenset({200})),
    Shape(row=10, name="silence", what="connections that send nothing", times=64,
          sends=Raw(lambda: b""), statuses=frozenset({CLOSED})),
    Shape(row=10, name="half-heads", what="heads that never end", times=64,
          sends=Raw(lambda: b"GET /health HTTP/1.1\r\nHost: local"), statuses=frozenset({408})),
    Shape(row=10, name="half-bodies", what="bodies that never end", times=64, leaves=True,
          sends=Raw(lambda: POST + b"Content-Length: 99\r\n\r\n{")),
    Shape(row=10, name="unread-streams", what="endless streams that no client reads", times=6,
          leaves=True, sends=Request("/completion", UNREAD)),
    Shape(row=11, name="paused-server", what=Harm.PAUSE.value, sends=Harm.PAUSE),
    Shape(row=12, name="many-texts", what="`n_cmpl: 1024`", times=2, leaves=True,
          sends=Request("/completion", many(1024, n_predict=200))),
    Shape(row=13, name="models-without-key", what="`GET /models` without a key",
          sends=Request("/models", method="GET", key=False), statuses=frozenset({200}),
          secret=".gguf"),
    Shape(row=14, name="killed-engine", what=Harm.KILL_ENGINE.value, times=3,
          sends=Harm.KILL_ENGINE),
    Shape(row=15, name="optional-properties", what="10,000 optional properties", times=4,
          statuses=frozenset({200, 400}), sends=Request("/completion", optional)),
    Shape(row=16, name="long-length", what="`Content-Length` with 5,000 digits", statuses=REFUSED,
          sends=Raw(lambda: POST + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n{}")),
    Shape(row=17, name="tiny-context", what="`-c 16`", sends=Launch(("-c", "16")),
          statuses=frozenset({200, 400})),
    Shape(row=17, name="tiny-batch", what="`-b 2`", sends=Launch(("-b", "2")),
          statuses=frozenset({200, 400})),
    Shape(row=18, name="weights-without-numbers", what="weights that are NaN",
          sends=Launch(broken_weights=True), statuses=frozenset({500})),
    Shape(row=19, name="trailing-slash", what="a slash after the path", statuses=GONE,
          sends=Request("/slots/0/", method="GET", headers={"Host": "localhost"})),
    Shape(row=19, name="trailing-slash-without-key", what="a slash after the path, without a key",
          statuses=GONE, sends=Request("/slots/0/", method="GET", key=False)),
    Shape(row=20, name="killed-templates", what=Harm.KILL_TEMPLATES.value, times=5,
          sends=Harm.KILL_TEMPLATES),
    Shape(row=21, name="page-runs-tool", what="a page of another origin runs a tool", times=4,
          sends=Request("/tools", run("get_info"),
                        headers={**FOREIGN, "Content-Type": "text/plain"}),
          statuses=frozenset({403})),
    Shape(row=21, name="page-lists-tools", what="a page of another origin lists the tools",
          sends=Request("/tools", method="GET", headers=FOREIGN), statuses=frozenset({403}),
          secret="read_file"),
    Shape(row=21, name="rebound-tools", what="a page whose host name leads to this server (DNS"
          " rebinding) runs a tool",
          sends=Request("/tools", run("get_info"), headers={"Host": "evil.example",
                                                            "Origin": "http://evil.example"}),
          statuses=frozenset({403})),
    Shape(row=22, name="tool-with-endless-result", what="an MCP server answers with 10 GB on one"
          " line", times=2, sends=Request("/tools", run("is_endless_act")), statuses=OK),
    Shape(row=22, name="tool-that-floods", what="an MCP server sends messages without end", times=2,
          sends=Request("/tools", run("floods_act")), statuses=OK),
    Shape(row=22, name="tool-that-never-answers", what="an MCP server that never answers", times=8,
          sends=Request("/tools", run("never_act")), statuses=OK),
    Shape(row=22, name="tool-that-dies", what="an MCP server that dies at each call", times=8,
          sends=Request("/tools", run("dies_act")), statuses=OK),
    Shape(row=23, name="tool-path-with-dots", what="a path with `..`", times=4, statuses=OK,
          sends=Request("/tools", run("read_file", path="../../../../../../../../etc/passwd")),
          secret="root:"),
    Shape(row=23, name="tool-link", what="a link to `/etc/passwd`", times=4, statuses=OK,
          sends=Request("/tools", run("read_file", path="link")), secret="root:"),
    Shape(row=23, name="tool-device", what="a link to `/dev/zero`", times=4, statuses=OK,
          sends=Request("/tools", run("read_file", path="zero", end_line=1))),
    Shape(row=23, name="tool-fifo", what="a FIFO that no program writes to", times=4, statuses=OK,
          sends=Request("/tools", run("grep_search", path="fifo", pattern="a"))),
    Shape(row=23, name="tool-expression", what="a regular expression that takes years", times=4,
          statuses=OK, sends=Request("/tools", run("grep_search", path="evil", pattern="(a+)+$"))),
)  # fmt: skip
