"""Requests with changed bytes: wrong bodies, wrong heads, and bytes that are no HTTP at all."""

import gzip
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import quote

from contract_tests.fuzz.requests import Maker
from contract_tests.fuzz.values import ODD
from contract_tests.fuzz.wire import JSON, NOTHING, Headers, Sent, Target
from contract_tests.kit import contract

Change = Callable[[Maker, Sent, Target], Sent]
WAITS = 0.25
"""Seconds that a client waits after an incomplete request."""
METHODS = ("HEAD", "OPTIONS", "PUT", "PATCH", "DELETE", "TRACE", "GET", "POST", "post", "M-SEARCH")
TYPES = (
    *("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "/", "json"),
    *("application/json; charset=utf-16", "APPLICATION/JSON", "application/json;", "*/*"),
    *("application/vnd.api+json", "application/json, text/plain", "multipart/form-data; boundary="),
)
ENCODINGS = ("utf-16", "utf-16-le", "utf-32", "utf-8-sig", "latin-1")
NO_TEXT = (b"\xff", b"\xc3(", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\xc0\x80", b"\x00", b"\n")
ENDS = (b"", b"\x00", b"}", b"{}", b",", b" \n\t", b"//", b"\xef\xbb\xbf", b"]" * 9)


def _with(sent: Sent, content: bytes) -> Sent:
    return replace(sent, content=content, body=NOTHING)


def _headed(sent: Sent, *headers: tuple[str, str]) -> Sent:
    names = {name.lower() for name, _ in headers}
    kept = tuple(each for each in sent.headers if each[0].lower() not in names)
    return replace(sent, headers=(*kept, *headers))


# ---- bodies --------------------------------------------------------------------------------------


def truncated(maker: Maker, sent: Sent, _: Target) -> Sent:
    content = sent.content or b""
    return _with(sent, content[: maker.dice.randint(0, max(len(content) - 1, 0))])


def garbled(maker: Maker, sent: Sent, _: Target) -> Sent:
    """Some bytes are replaced."""
    content = bytearray(sent.content or b"{}")
    for _each in range(maker.dice.choice((1, 1, 2, 9))):
        content[maker.dice.randrange(len(content))] = maker.dice.randrange(256)
    return _with(sent, bytes(content))


def no_text(maker: Maker, sent: Sent, _: Target) -> Sent:
    content = sent.content or b"{}"
    at = maker.dice.randint(0, len(content))
    return _with(sent, content[:at] + maker.dice.choice(NO_TEXT) + content[at:])


def longer(maker: Maker, sent: Sent, _: Target) -> Sent:
    return _with(sent, (sent.content or b"") + maker.dice.choice(ENDS))


def twice(maker: Maker, sent: Sent, _: Target) -> Sent:
    """Keys occur twice."""
    content = sent.content or b"{}"
    if content[:1] != b"{" or content == b"{}":
        return _with(sent, content * 2)
    own = content[1:-1]
    return _with(sent, b"{" + own + b"," + maker.dice.choice((own, b'"model":7')) + b"}")


def constants(maker: Maker, sent: Sent, _: Target) -> Sent:
    """Numbers and words that are no JSON, or unusual JSON."""
    word = (b"NaN", b"-Infinity", b"1e999", b"01", b"+1", b".5", b"0x10", b"undefined", b"'a'")
    field = maker.dice.choice((b"temperature", b"unknown", b"n_predict", b"seed"))
    content = sent.content or b"{}"
    added = b'{"%s":%s' % (field, maker.dice.choice(word))
    return _with(sent, added + (b"," + content[1:] if len(content) > 2 else b"}"))


def nested(maker: Maker, sent: Sent, _: Target) -> Sent:
    depth = maker.dice.choice((100, 1000, 5000))
    deep = maker.dice.choice((b"[" * depth + b"]" * depth, b'{"a":' * depth, b"[" * depth))
    return _with(sent, b'{"unknown":' + deep + b"," + (sent.content or b"{}")[1:])


def encoded(maker: Maker, sent: Sent, _: Target) -> Sent:
    text = (sent.content or b"{}").decode("utf-8", "replace")
    return _with(sent, text.encode(maker.dice.choice(ENCODINGS), "replace"))


def compressed(maker: Maker, sent: Sent, _: Target) -> Sent:
    content = sent.content or b"{}"
    packed = gzip.compress(content, mtime=0)  # equal bytes for each run of the story
    squeezed = maker.dice.choice((content, packed, packed[:-4]))
    name = maker.dice.choice(("gzip", "identity", "br", "deflate", "gzip, gzip", "x"))
    return _headed(_with(sent, squeezed), ("Content-Encoding", name))


def typed(maker: Maker, sent: Sent, _: Target) -> Sent:
    return replace(_headed(sent, ("Content-Type", maker.dice.choice(TYPES))), body=NOTHING)


def untyped(maker: Maker, sent: Sent, _: Target) -> Sent:
    kept = tuple(each for each in sent.headers if each[0].lower() != "content-type")
    return replace(sent, headers=kept, body=NOTHING)


def bare(maker: Maker, sent: Sent, _: Target) -> Sent:
    """No body, or an empty one."""
    return replace(sent, content=maker.dice.choice((b"", None)), body=NOTHING)


# ---- heads ---------------------------------------------------------------------------------------


def chunks(maker: Maker, content: bytes) -> bytes:
    """Returns a body in chunks of odd sizes, which is valid HTTP."""
    parts, rest, most = [], content, max(len(content) // 20, 64)
    while rest:
        n = maker.dice.randint(1, most)
        size = maker.dice.choice(("%x", "%X", "00%x", "%x;a=b")) % len(rest[:n])
        parts.append(size.encode() + b"\r\n" + rest[:n] + b"\r\n")
        rest = rest[n:]
    return b"".join(parts) + maker.dice.choice((b"0\r\n\r\n", b"0\r\nX-Trailer: y\r\n\r\n"))


def chunked(maker: Maker, sent: Sent, _: Target) -> Sent:
    body = chunks(maker, sent.content or b"")
    return replace(_headed(sent, ("Transfer-Encoding", "chunked")), content=body)


def expecting(maker: Maker, sent: Sent, _: Target) -> Sent:
    return _headed(sent, ("Expect", maker.dice.choice(("100-continue", "200-maybe"))))


def other_method(maker: Maker, sent: Sent, _: Target) -> Sent:
    return replace(sent, method=maker.dice.choice(METHODS), operation=None, strict=False)


def other_path(maker: Maker, sent: Sent, _: Target) -> Sent:
    dice, path = maker.dice, sent.path.partition("?")[0]
    odd = quote(dice.choice(ODD).encode("utf-8", "surrogatepass"))
    paths = (path + "/", path + "//", "/" + path, path.upper(), path + odd, path + "/..", "/%2e%2e")
    more = (
        path.replace("/", "%2f"),
        "/v1" + path,
        "/api" + path,
        "/" + "x" * 5000,
        "*",
        "/?",
        path[:-1],
    )
    return replace(sent, path=dice.choice((*paths, *more)), operation=None, strict=False)


def other_query(maker: Maker, sent: Sent, _: Target) -> Sent:
    queries = (
        "?",
        "?&&",
        "?=",
        "?%",
        "?%ff=%00",
        "?a=1&a=2",
        "?" + "a=b&" * 500,
        "?x=" + "y" * 9000,
    )
    more = ("?model=x&model=y", "?autoload=", "?stream=true", "?from=1&from=2", "#fragment")
    found = sent.path.partition("?")[0] + maker.dice.choice((*queries, *more))
    return replace(sent, path=found, strict=False)


def many_headers(maker: Maker, sent: Sent, _: Target) -> Sent:
    some: Headers = tuple((f"X-{n}", "y") for n in range(maker.dice.choice((10, 90, 200))))
    long: Headers = (("X-Long", "y" * maker.dice.choice((1000, 30_000, 100_000))),)
    return replace(_headed(sent, *maker.dice.choice((some, long))), strict=False)


# ---- bytes that are no request -------------------------------------------------------------------


def broken(maker: Maker, sent: Sent, target: Target) -> Sent:
    """Returns bytes that are no HTTP, or an incomplete request."""
    dice, content = maker.dice, sent.content or b"{}"
    head = replace(sent, content=None).encoded(target)[:-2]
    size = len(content)
    parts = (
        b"Content-Length: %d\r\n\r\n%s" % (size + 5, content),
        b"Content-Length: %d\r\n\r\n%s" % (max(size - 1, 0), content),
        b"Content-Length: %d\r\nContent-Length: %d\r\n\r\n%s" % (size, size + 1, content),
        b"Content-Length: -1\r\n\r\n" + content,
        b"Content-Length: 1e3\r\n\r\n" + content,
        b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n%s" % (size, content),
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + content,
        b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s" % (size, content),
        b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (size, content),
        b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n" + content,
        b"Transfer-Encoding: gzip, chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (size, content),
        b"Transfer-Encoding: xchunked\r\n\r\n" + content,
        b"X: a\r\n b\r\n\r\n",
        b"X\x00: a\r\n\r\n",
        b": a\r\n\r\n",
        b"no colon\r\n\r\n",
        b"Host: twice\r\n\r\n",
        b"X: \xff\xfe\r\n\r\n",
        b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"",
    )
    whole = (
        b"\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.0\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET  /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET http://localhost/health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3,
        bytes(dice.randrange(256) for _ in range(200)),
    )
    raw = dice.choice(whole) if dice.random() < 0.3 else head + dice.choice(parts)
    halves = dice.random() < 0.7
    made = replace(sent, raw=raw, operation=None, body=NOTHING, strict=False, halves=halves)
    return replace(made, leaves=WAITS)


BODIES: tuple[Change, ...] = (
    *(truncated, garbled, garbled, no_text, longer, twice, constants, nested, encoded, compressed),
    *(typed, untyped, bare),
)
HEADS: tuple[Change, ...] = (
    *(chunked, chunked, expecting, other_method, other_path, other_query, many_headers),
    *(broken, broken),
)


def changed(maker: Maker, target: Target) -> Sent:
    """Returns a request of any operation with a random change."""
    taking = [
        name
        for name, each in contract.operations().items()
        if JSON in each.definition.get("requestBody", {}).get("content", {})
    ]
    operation = maker.dice.choice(taking)
    change = maker.dice.choice(maker.dice.choice((BODIES, HEADS)))
    if change in (other_method, other_path, other_query) and maker.values.chance(0.5):
        operation = maker.operation()
    sent = change(maker, maker.request(operation), target)
    if sent.leaves is None and sent.body is NOTHING and sent.content:
        return replace(sent, leaves=4 * WAITS)  # its duration is unknown
    return sent
