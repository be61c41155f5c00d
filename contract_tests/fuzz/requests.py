"""Makes requests from the description: bodies, parameters and headers of each operation."""

import json
import random
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from contract_tests.fuzz.knowing import knowing, media
from contract_tests.fuzz.values import ODD, Values, merged
from contract_tests.fuzz.wire import JSON, NOTHING, Sent, dumped
from contract_tests.kit import contract, lint
from contract_tests.kit.bodies import (
    ALIASES,
    BODIES,
    ENDLESS,
    FORMS,
    IN_PATH,
    NAMED,
    REFUSED,
    STREAMING,
)

RECORDINGS = Path(__file__).parents[1] / "peer" / "recordings"
LENGTHS = ("n_predict", "max_tokens", "max_completion_tokens", "max_output_tokens")
OF_OLLAMA = ("create_ollama_chat", "create_ollama_generation")
"""Operations that have the length of a text in their `options` alone."""
COPIES = ("n", "n_cmpl", "best_of")
SHORT = 8
"""Tokens of a text, unless the request varies the length."""
FEW = 4
"""Texts of a request, unless it varies their number."""
LEAVES = (0.0, 0.02, 0.1, 0.4)
"""Seconds after which a client leaves if it doesn't wait for a long text."""
STATIC = {"get_root", "get_page_asset", "get_openapi_json", "get_openapi_yaml", "get_docs"}
"""Operations with constant answers, which are requested less often."""
SHARE = {
    **dict.fromkeys(STREAMING, 4.0),
    **dict.fromkeys(ALIASES, 1.0),
    **dict.fromkeys(REFUSED, 0.2),
    **dict.fromkeys(STATIC, 0.15),
    "get_docs_asset": 0.15,
    "create_ollama_generation": 3.0,
    "create_infill": 2.0,
}
"""The frequency of an operation; the default is 1."""


@cache
def weighted() -> tuple[Sequence[str], Sequence[float]]:
    """Returns all operations and their frequencies."""
    names = [*contract.operations()]
    return names, [SHARE.get(name, 1.0) for name in names]


@cache
def schema_of(operation: str) -> Mapping[str, Any] | None:
    """Returns the schema of a JSON body."""
    body = contract.operations()[operation].definition.get("requestBody", {})
    media_type = body.get("content", {}).get(JSON)
    return media_type["schema"] if media_type else None


@cache
def recorded() -> Mapping[str, Sequence[Any]]:
    """Returns recorded bodies of client libraries, by operation."""
    found: dict[str, list[Any]] = {}
    for file in sorted(RECORDINGS.glob("*.json")):
        for case in json.loads(file.read_text("utf-8")):
            if isinstance(case.get("body"), dict):
                try:
                    operation = contract.find(case["method"], case["path"])
                except AssertionError:
                    continue
                found.setdefault(operation.definition["operationId"], []).append(case["body"])
    return found


@cache
def shown(operation: str) -> Sequence[Any]:
    """Returns the example bodies of the description."""
    body = contract.operations()[operation].definition.get("requestBody", {})
    return [value for _, value in lint.examples(body.get("content", {}).get(JSON, {}))]


class Maker:
    """Makes the requests of one story. `models` are the server's model names. If there are many,
    most requests use `model`."""

    def __init__(self, dice: random.Random, models: Sequence[str] = (), model: str = "") -> None:
        self.dice = dice
        self._model = model
        self.values = Values(dice, knowing(models))

    def operation(self) -> str:
        names, shares = weighted()
        return self.dice.choices(names, shares)[0]

    def request(self, operation: str) -> Sent:
        """Returns a request for an operation, mostly valid, with some odd values."""
        definition = contract.operations()[operation].definition
        path, query, headers = self._parameters(operation)
        strict = all(name != "Host" and name != "Origin" for name, _ in headers)
        method = contract.operations()[operation].method.upper()
        content: bytes | None = None
        body: Any = NOTHING
        if operation in FORMS:
            kind, content = self._form()
            headers = (*headers, ("Content-Type", kind))
        elif schema_of(operation) is not None:
            body = self.body(operation)
            if not self.values.chance(0.03):
                body = self.naming(operation, body)
            content = dumped(body)
            headers = (*headers, ("Content-Type", JSON))
        elif "requestBody" in definition or self.values.chance(0.02):
            content = b"{}"
        target = path + (f"?{query}" if query else "")
        leaves = self._leaves(operation, body, target)
        return Sent(method, target, operation, headers, content, body, None, leaves, strict)

    def naming(self, operation: str, body: Any) -> Any:
        """Adds the name of the story's model to a body, if there is one."""
        if self._model and isinstance(body, dict) and operation in NAMED:
            return {**body, "model": self._model}
        return body

    # ---- bodies ----------------------------------------------------------------------------------

    def body(self, operation: str) -> Any:
        """Returns a JSON body for an operation."""
        dice, schema = self.dice, merged(schema_of(operation) or {})
        body = self._begun(operation, schema)
        properties: Mapping[str, Any] = schema.get("properties", {})
        if isinstance(body, dict) and properties:
            n = min(len(properties), dice.choice((0, 1, 1, 1, 2, 3, 6)))
            for name in dice.sample([*properties], n):
                body = {**body, name: self.values.any(properties[name], name)}
        elif not properties and self.values.chance(0.5):
            body = self.values.any(schema)
        if self.values.chance(0.2):
            body = self.values.mutated(body)
        if self.values.chance(0.01):
            body = self.values.near(schema)
        return self._bounded(operation, body)

    def _begun(self, operation: str, schema: Mapping[str, Any]) -> Any:
        known = [BODIES[operation]] if operation in BODIES else []
        examples, seen = shown(operation), recorded().get(operation, ())
        draw = self.dice.random()
        if draw < 0.15:
            return self.values.typical(schema)
        if draw < 0.35 and seen:
            return dict(self.dice.choice(seen))
        if draw < 0.55 and examples:
            return self.dice.choice(examples)
        return self.dice.choice(known or examples or [{}])

    def _bounded(self, operation: str, body: Any) -> Any:
        """Limits the length and number of texts in nine of ten bodies. The others are unchanged,
        and their clients may leave."""
        if not isinstance(body, dict) or self.values.chance(0.08):
            return body
        if operation in OF_OLLAMA or "options" in body:
            options = body.get("options")
            if isinstance(options, dict | None) and not is_short(
                (options or {}).get("num_predict")
            ):
                body = {**body, "options": {**(options or {}), "num_predict": SHORT}}
        if operation in STREAMING or any(name in body for name in LENGTHS):
            for name in LENGTHS:
                if is_number(body.get(name)) and not is_short(body[name]):
                    body = {**body, name: SHORT}
            if not any(is_short(body.get(name)) for name in LENGTHS):
                own = "max_output_tokens" if "response" in operation else "max_tokens"
                body = {**body, own: self.dice.randint(1, SHORT)}
        for name in COPIES:
            if is_number(body.get(name)) and FEW < body[name] <= 1024:
                body = {**body, name: FEW}
        return body

    def _leaves(self, operation: str, body: Any, target: str) -> float | None:
        if operation in ENDLESS:
            return self.dice.choice((0.02, 0.1))
        if operation == "get_stream" and "conv_id" in target:
            return 2.0  # the text may be long
        if body is not NOTHING and operation in (*STREAMING, "create_ollama_generation"):
            if not is_cheap(operation, body):
                return self.dice.choice(LEAVES)
            if self.values.chance(0.04):
                return self.dice.choice(LEAVES)
        return None

    def _form(self) -> tuple[str, bytes]:
        """Returns the content type and the bytes of a form with a sound, sometimes damaged."""
        dice = self.dice
        boundary = "fuzz-boundary"
        kind, data = dice.choice(media())
        fields: list[tuple[str, bytes]] = [
            (f'name="file"; filename="a.{kind.lower()}"', data),
            ('name="model"', b"any"),
        ]
        extra = ("language", "prompt", "response_format", "temperature", "stream", "max_tokens")
        for name in dice.sample(extra, dice.randint(0, 3)):
            value = dice.choice(("json", "text", "en", "1", "-1", "true", "x" * 300, *ODD))
            fields.append((f'name="{name}"', value.encode("utf-8", "surrogatepass")))
        if self.values.chance(0.2):
            fields.pop(dice.randrange(len(fields)))
        parts = [
            b"--%s\r\nContent-Disposition: form-data; %s\r\n\r\n%s\r\n"
            % (boundary.encode(), head.encode(), value)
            for head, value in fields
        ]
        end = dice.choice((b"--%s--\r\n" % boundary.encode(), b"--%s--" % boundary.encode(), b""))
        return f"multipart/form-data; boundary={boundary}", b"".join(parts) + end

    # ---- parameters ------------------------------------------------------------------------------

    def _parameters(self, operation: str) -> tuple[str, str, tuple[tuple[str, str], ...]]:
        """Returns path, query and headers."""
        each = contract.operations()[operation]
        path, query, headers = each.path, [], []
        for parameter in each.definition.get("parameters", ()):
            name, schema = parameter["name"], parameter["schema"]
            needed = parameter.get("required", False)
            if parameter["in"] == "path":
                known = IN_PATH[name].partition("?")[0]
                odd = str(self.values.any(schema, name))
                value = known if self.values.chance(0.6) else self.dice.choice((odd, *ODD))[:300]
                encoded = quote(value.encode("utf-8", "surrogatepass"), safe="") or known
                path = path.replace(f"{{{name}}}", encoded)
            elif self.values.chance(0.9 if needed else 0.15):
                value = self.values.any(schema, name)
                if name == "model" and self._model and self.values.chance(0.8):
                    value = self._model
                text = value if isinstance(value, str) else json.dumps(value)
                if parameter["in"] == "query":
                    query.append((name, text.encode("utf-8", "surrogatepass")[:4200]))
                else:
                    headers.append((name, header_text(text)))
        if self.values.chance(0.03):
            query.append((self.dice.choice(("x", "stream", "")), b"1"))
        if self.values.chance(0.1):
            headers.append(self._header())
        return path, urlencode(query), tuple(headers)

    def _header(self) -> tuple[str, str]:
        """Returns an unrelated header, as clients send them."""
        odd = header_text(self.dice.choice(ODD))
        return self.dice.choice(
            (
                ("X-Request-Id", self.dice.choice(("a-1", "x" * 128, "x" * 129, "a b", odd))),
                ("Accept", self.dice.choice(("text/html", "text/event-stream", "*/*", "x", odd))),
                ("Accept-Encoding", self.dice.choice(("gzip", "identity;q=0", odd))),
                ("Origin", self.dice.choice(("https://evil.example", "null", odd))),
                ("Host", self.dice.choice(("evil.example", "localhost", "[::1]", "127.0.0.1:x"))),
                ("Connection", self.dice.choice(("close", "keep-alive", "upgrade"))),
                ("anthropic-version", self.dice.choice(("2023-06-01", "", "x"))),
                ("Cookie", "a=b; c=d"),
                ("Range", "bytes=0-3"),
                ("If-None-Match", self.dice.choice(("*", '"x"', odd))),
            )
        )


def header_text(text: str) -> str:
    """Returns a text without the characters that a header can't have."""
    return "".join(c for c in text if " " <= c < "\x7f")[:4200].strip()


def is_number(value: Any) -> bool:
    return type(value) in (int, float)


def is_short(value: Any) -> bool:
    return is_number(value) and 0 <= value <= 4 * SHORT


def is_cheap(operation: str, body: Any) -> bool:
    """True if the texts of a request are few and short, so that its client waits for them."""
    if not isinstance(body, dict):
        return True  # the server rejects it
    options = body.get("options")
    inner = options if isinstance(options, dict) else {}
    given = [inner.get("num_predict")]
    if operation not in OF_OLLAMA:
        given += [body.get(name) for name in LENGTHS]
    lengths = [each for each in given if is_number(each)]
    copies = [body.get(name) for name in COPIES]
    if any(each is not None and is_number(each) and each > FEW for each in copies):
        return False
    prompts = body.get("prompt")
    if isinstance(prompts, list) and len(prompts) > 2 * FEW:
        return False
    return bool(lengths) and all(map(is_short, lengths))
