"""Fetching over real sockets: from the addresses that were checked, and within the limits."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import httpx2
import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from contract_tests.kit.server import SECONDS
from specllama.engine.helpers.fetch import connecting
from specllama.engine.helpers.fetch.client import MAX_REDIRECTS, fetch, target
from specllama.engine.helpers.fetch.connecting import Connecting, Resolve, is_allowed
from specllama.engine.helpers.fetch.fetch_jobs import Rules, UnfetchableError

BODY = b"pixels"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n" + BODY
RULES = Rules(urls=True, private=True, max_bytes=1000, seconds=SECONDS)
STRICT = Rules(urls=True, max_bytes=1000, seconds=SECONDS)

Answering = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """Answers each connection with the bytes of `answer`, and keeps the requests."""

    def __init__(self, port: int, asked: list[str]) -> None:
        self.port = port
        self.asked = asked

    def url(self, path: str = "/a.png", host: str = "media.example", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"


@asynccontextmanager
async def serving(
    answer: bytes | Answering, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Server]:
    asked: list[str] = []
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            asked.append(head.decode())
            if isinstance(answer, bytes):
                writer.write(answer)
            else:
                await answer(head, writer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client has left
        finally:
            writer.close()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(handle(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    try:
        yield Server(server.sockets[0].getsockname()[1], asked)
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def resolving(*answers: Sequence[str]) -> tuple[Resolve, list[str]]:
    """A resolver that gives `answers` one after the other, the last one for ever."""
    asked: list[str] = []

    async def resolve(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        found = answers[min(len(asked), len(answers)) - 1]
        if not found:
            raise OSError("unknown")
        return found

    return resolve, asked


def ask(
    answer: bytes | Answering,
    path: str = "/a.png",
    rules: Rules = RULES,
    *,
    host: str = "media.example",
    resolve: Resolve | None = None,
) -> tuple[bytes | str, list[str]]:
    """Returns the result of fetching from a server that gives `answer`, and the server's
    requests."""

    async def main() -> tuple[bytes | str, list[str]]:
        async with serving(answer) as server:
            how = resolve or resolving(["127.0.0.1"])[0]
            try:
                return await fetch(server.url(path, host), rules, resolve=how), server.asked
            except UnfetchableError as e:
                return str(e), server.asked

    return asyncio.run(main())


def test_a_file() -> None:
    found, [head] = ask(OK, "/a%20b.png?x=1&y=%C3%A4#part")
    assert found == BODY
    lines = head.split("\r\n")
    assert lines[0] == "GET /a%20b.png?x=1&y=%C3%A4 HTTP/1.1"
    fields = dict(line.lower().split(": ", 1) for line in lines[1:-2])
    assert fields.pop("host").startswith("media.example:")
    assert fields.keys() == {"accept", "accept-encoding", "connection", "user-agent"}


def test_proxies_of_the_environment_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert ask(OK)[0] == BODY


def test_the_content_type_does_not_matter() -> None:
    typed = OK.replace(b"\r\n\r\n", b"\r\nContent-Type: text/html\r\n\r\n")
    assert ask(typed)[0] == BODY


def test_a_body_in_chunks_or_without_a_length() -> None:
    head = b"HTTP/1.1 200 OK\r\n"
    assert (
        ask(head + b"Transfer-Encoding: chunked\r\n\r\n3\r\npix\r\n3\r\nels\r\n0\r\n\r\n")[0]
        == BODY
    )
    assert ask(head + b"\r\n" + BODY)[0] == BODY


def test_addresses_that_are_not_public() -> None:
    for addresses in (["127.0.0.1"], ["::1"], ["8.8.8.8", "10.0.0.1"], ["::ffff:8.8.8.8"]):
        found, asked = ask(OK, rules=STRICT, resolve=resolving(addresses)[0])
        assert (found, asked) == ("its host has an address that is not public", [])


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "[::1]", "2130706433", "0x7f.1", "127.1", "017700000001", "0"],
)
def test_hosts_that_lead_here_by_the_systems_resolver(host: str) -> None:
    found, asked = ask(OK, rules=STRICT, host=host, resolve=connecting.resolve)
    assert found in ("its host has an address that is not public", "its host is unknown")
    assert asked == []


def test_the_name_is_resolved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a second answer another address could come in (rebinding)."""
    monkeypatch.setattr(connecting, "is_public", lambda address: str(address) == "127.0.0.1")
    monkeypatch.setattr(connecting, "_is_own", lambda stream: False)
    resolve, names = resolving(["127.0.0.1"], ["10.0.0.1"])
    assert ask(OK, rules=STRICT, resolve=resolve)[0] == BODY
    assert names == ["media.example"]


def test_this_machine_under_a_public_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "is_public", lambda address: True)
    found, asked = ask(OK, rules=STRICT)
    assert (found, asked) == ("its host has an address that is not public", [])


def test_a_redirect_to_an_address_that_is_not_public(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "is_public", lambda address: str(address) == "127.0.0.1")
    monkeypatch.setattr(connecting, "_is_own", lambda stream: False)
    moved = b"HTTP/1.1 302 Found\r\nLocation: http://other.example/x\r\nContent-Length: 0\r\n\r\n"
    resolve, names = resolving(["127.0.0.1"], ["169.254.169.254"])
    found, asked = ask(moved, rules=STRICT, resolve=resolve)
    assert found == "its host has an address that is not public"
    assert (names, len(asked)) == (["media.example", "other.example"], 1)


def moved(location: str) -> bytes:
    return f"HTTP/1.1 301 Moved\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()


@pytest.mark.parametrize("location", ["/b.png", "b.png", "?x", "//media.example:{port}/b.png"])
def test_redirects(location: str) -> None:
    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        if head.startswith(b"GET /a.png "):
            port = writer.get_extra_info("sockname")[1]
            writer.write(moved(location.format(port=port)))
        else:
            writer.write(OK)

    found, asked = ask(answer)
    assert found == BODY
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("ftp://media.example/x", "neither http nor https"),
        ("file:///etc/passwd", "neither http nor https"),
        ("data:image/png;base64,AAAA", "neither http nor https"),
        ("http://user:pw@media.example/", "user name or a password"),
        ("http://elsewhere.example/", "not in the list of --media-domains"),
        ("http://media.example.evil.test/", "not in the list of --media-domains"),
        ("http://[::1", "not valid"),
        ("", "redirects more than"),
        ("/round", "redirects more than"),
    ],
)
def test_redirects_that_are_not_followed(location: str, reason: str) -> None:
    rules = Rules(urls=True, private=True, domains=("media.example",), max_bytes=9, seconds=SECONDS)
    found, asked = ask(moved(location), rules=rules)
    assert reason in str(found)
    assert len(asked) == (MAX_REDIRECTS + 1 if "more than" in reason else 1)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 6\r\n\r\n" + BODY, "answers with status 404"),
        (b"HTTP/1.1 206 Partial\r\nContent-Length: 6\r\n\r\n" + BODY, "answers with status 206"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n", "more than the 1000 bytes"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + bytes(1001), "more than the 1000 bytes"),
        (OK.replace(b"Content-L", b"Content-Encoding: gzip\r\nContent-L"), "is compressed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n" + BODY, "is incomplete, or not HTTP"),
        (b"SSH-2.0-OpenSSH_9.9\r\n", "is incomplete, or not HTTP"),
        (b"", "is incomplete, or not HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000 + b"\r\n\r\n", "is incomplete, or not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "is incomplete, or not HTTP"),
    ],
)
def test_answers_that_are_not_taken(answer: bytes, reason: str) -> None:
    assert reason in str(ask(answer)[0])


async def endless(head: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(bytes(100))
        await writer.drain()


def test_a_body_without_end() -> None:
    assert "more than the 1000 bytes" in str(ask(endless)[0])


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (b"", b""),
        (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"x"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    ],
)
def test_answers_that_take_for_ever(first: bytes, again: bytes) -> None:
    """Something comes now and then, so no single read takes long: the limit is that of all."""

    async def slow(head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        while True:
            writer.write(again)
            await writer.drain()
            await asyncio.sleep(0.05)

    rules = Rules(urls=True, private=True, max_bytes=1 << 20, seconds=0.5)
    assert ask(slow, rules=rules)[0] == "fetching it takes more than 0.5 s"


def test_a_resolver_that_takes_for_ever() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        await asyncio.Event().wait()
        raise AssertionError

    rules = Rules(urls=True, private=True, max_bytes=9, seconds=0.1)
    assert ask(OK, rules=rules, resolve=resolve)[0] == "fetching it takes more than 0.1 s"


def test_hosts_without_an_address_or_an_answer() -> None:
    assert ask(OK, resolve=resolving([])[0])[0] == "its host is unknown"
    assert (
        ask(OK, host="a" * 64 + ".example", resolve=connecting.resolve)[0] == "its host is unknown"
    )

    async def closed() -> None:
        async with serving(OK) as server:
            pass
        with pytest.raises(UnfetchableError, match="its host doesn't answer"):
            await fetch(server.url(), RULES, resolve=resolving(["127.0.0.1"])[0])

    asyncio.run(closed())


def test_the_next_address_if_one_does_not_answer() -> None:
    resolve, _ = resolving(["::1", "127.0.0.1"])  # no server listens on the first one
    assert ask(OK, resolve=resolve)[0] == BODY


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://a/b", "file:///x", "http:///x", "http://", "https:x", "javascript:1", "x", ""),
        *("http://u@a/", "http://u:p@a/", "http://:p@a/", "http://a:99999/", "http://[x]/"),
        *(
            "http://a\0b/",
            "http://a b/",
            "http://\ud800/",
            "http://a/" + "x" * 9000,
            "http://\u2100/",
        ),
    ],
)
def test_urls_that_are_refused(url: str) -> None:
    with pytest.raises(UnfetchableError, match="its URL"):
        target(url, RULES)


@given(st.text() | st.text().map("http://{}".format))
def test_any_text_is_a_url_or_an_error(text: str) -> None:
    try:
        found = target(text, RULES)
    except UnfetchableError as e:
        assert "its URL" in str(e)  # noqa: PT017
    else:
        assert found.scheme in ("http", "https")
        assert found.raw_host


def test_domains() -> None:
    for host in ("example.org", "a.example.org", "A.B.Example.ORG", "example.org."):
        assert is_allowed(host, ("example.net", "example.org"))
    for host in ("badexample.org", "example.org.evil.test", "org", "example.com", ""):
        assert not is_allowed(host, ("example.org",))
    assert is_allowed("whatever", ())
    rules = Rules(urls=True, domains=("xn--bcher-kva.example",), max_bytes=9, seconds=SECONDS)
    assert target("https://b\u00fccher.example/x", rules).raw_host == b"xn--bcher-kva.example"


def test_a_connection_is_held_to_the_domains_as_well() -> None:
    async def main() -> None:
        rules = Rules(
            urls=True, private=True, domains=("example.org",), max_bytes=9, seconds=SECONDS
        )
        with pytest.raises(UnfetchableError, match="--media-domains"):
            await Connecting(rules).connect_tcp("localhost", 80)

    asyncio.run(main())


def test_from_https_to_http() -> None:
    with pytest.raises(UnfetchableError, match="from https to http"):
        target("http://a/b", RULES, httpx2.URL("https://a/"))
    assert str(target("https://a/b", RULES, httpx2.URL("http://a/"))) == "https://a/b"


def test_certificates_are_those_of_the_name() -> None:
    """The connection leads to an address, but it is the name that the certificate has to have."""
    authority = trustme.CA()
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)

    async def found(name: str, tls: ssl.SSLContext) -> bytes | str:
        ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(name).configure_cert(ours)
        async with serving(OK, ours) as server:
            url = server.url(scheme="https")
            try:
                return await fetch(url, RULES, resolve=resolving(["127.0.0.1"])[0], tls=tls)
            except UnfetchableError as e:
                return str(e)

    async def main() -> None:
        assert await found("media.example", trusting) == BODY
        for name, tls in (
            ("127.0.0.1", trusting),
            ("other.example", trusting),
            ("media.example", ssl.create_default_context()),
        ):
            assert "can't be reached securely" in str(await found(name, tls))

    asyncio.run(main())
