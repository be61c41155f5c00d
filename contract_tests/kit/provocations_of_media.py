"""Provokes statuses of operations with forms, on servers of models with audio input."""

import io
import struct
import wave
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from contract_tests.kit import contract
from contract_tests.kit.bodies import path
from contract_tests.kit.server import SECONDS, Server
from contract_tests.kit.situations import Situations, read_response


def recording(seconds: float = 0.5, rate: int = 16_000) -> bytes:
    """Returns a tone as a WAV file."""
    samples = [(i * 440 * 65536 // rate) % 65536 - 32768 for i in range(int(seconds * rate))]
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes(struct.pack(f"<{len(samples)}h", *samples))
    return file.getvalue()


def send_form(
    server: Server, name: str, data: bytes | None = None, **fields: str
) -> httpx.Response:
    """Sends the form with a recording."""
    file = ("recording.wav", recording() if data is None else data, "audio/wav")
    form: Mapping[str, Any] = {"max_tokens": "4", "temperature": "0", **fields}
    return server.http.post(path(name), data=form, files={"file": file})


def transcribed(situations: Situations, name: str) -> list[httpx.Response]:
    forms: tuple[dict[str, str], ...] = (
        {},
        {"prompt": "What is said?", "language": "en"},
        {"response_format": "text"},
        {"stream": "true"},
        {"timestamp_granularities[]": "word"},
    )
    return [send_form(situations.hearing, name, None, **fields) for fields in forms]


def bad_form(server: Server, name: str) -> list[httpx.Response]:
    wrong: list[dict[str, Any]] = [
        {"files": {"other": b"a"}},
        {"files": {"file": (None, "text")}},
        {"files": {"file": b"a"}, "data": {"temperature": "hot"}},
        {"files": {"file": b"a"}, "data": {"max_tokens": "-2"}},
        {"files": {"file": b"a"}, "data": {"response_format": "srt"}},
        {"content": b"x", "headers": {"Content-Type": "multipart/form-data; boundary=b"}},
        {"content": b"x", "headers": {"Content-Type": "multipart/form-data"}},
    ]
    return [server.http.post(path(name), **each) for each in wrong]


def bad_recording(situations: Situations, name: str) -> list[httpx.Response]:
    """Sends bytes that are no recording, and checks that the server still works."""
    whole = recording()
    files = (b"", b"RIFF", b"x" * 1000, whole[:30], b"\x89PNG\r\n\x1a\n" + bytes(50))
    refused = [send_form(situations.hearing, name, data=each) for each in files]
    contract.check(send_form(situations.hearing, name))
    return refused


def no_ears(server: Server, name: str) -> list[httpx.Response]:
    return [send_form(server, name), send_form(server, name, stream="true")]


def no_form(server: Server, name: str) -> list[httpx.Response]:
    return [server.post(path(name), {"file": "a"}), server.http.post(path(name))]


def too_large_a_form(situations: Situations, name: str) -> list[httpx.Response]:
    return [send_form(situations.narrow, name, data=bytes(1 << 20))]


def stalled_form(situations: Situations, name: str) -> list[httpx.Response]:
    server = situations.hasty
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    connection = server.raw(server.head(path(name), 100, **kind) + b"--b\r\n")
    return [read_response(connection, name, server)]


def killed_while_hearing(situations: Situations, name: str) -> list[httpx.Response]:
    server = situations.hearing
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(send_form, server, name, max_tokens="-1")
        server.wait_until_busy(1)
        server.kill_engine()
        response = sent.result(SECONDS)
    server.wait_until_ready()
    return [response]
