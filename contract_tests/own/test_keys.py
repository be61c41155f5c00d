"""API keys with names: what each key may do and see, and changes of the keys file."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from contract_tests.kit import contract
from contract_tests.kit.bodies import BODIES, ENDLESS, TOOLS, path
from contract_tests.kit.lint import GROUPS
from contract_tests.kit.server import OwnServer, Start, wait_until
from contract_tests.own import servers
from contract_tests.own.launching import posix

PRESETS = "[{0}]\n[second]\nmodel = {0}\nalias = other\n"
KEYS = """
# The keys of the tests.
[keys.alice]
key = "sk-alice"
models = ["other"]
operations = ["generate", "embed", "read", "admin"]

[keys.reader]
key = "sk-reader"
operations = ["read"]

[keys.writer]
key = "sk-writer"
operations = ["generate"]

[keys.old]
key = "sk-old"
expires = 2020-01-01
"""
CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}


def auth(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def write(file: Path, text: str) -> None:
    """Replaces the file, as editors do."""
    new = file.with_suffix(".new")
    new.write_text(text, "utf-8")
    new.chmod(0o600)
    new.replace(file)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys")


@pytest.fixture(scope="module")
def router(module_server: Start, folder: Path, hub: dict[str, str]) -> OwnServer:
    """A router with two models, whose keys are `KEYS` and `root`."""
    write(keys := folder / "keys.toml", KEYS)
    (presets := folder / "models.ini").write_text(PRESETS.format(servers.MODEL), "utf-8")
    options = ("-c", "256", "-np", "1", "--slots-text", "--metrics")
    files = ("--keys-file", str(keys), "--models-preset", str(presets))
    return module_server(*options, *files, router=True, variables=hub, api_key="root")


@pytest.fixture
def file(router: OwnServer, folder: Path) -> Iterator[Path]:
    """The keys file of the router, which has its first keys again at the end."""
    yield (keys := folder / "keys.toml")
    write(keys, KEYS)
    wait_until(lambda: status(router, "sk-alice") == 200, "the first keys are valid again")


def status(server: OwnServer, key: str) -> int:
    return server.get("/api/ps", headers=auth(key)).status_code


# ---- groups of operations ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def limited(module_server: Start, folder: Path) -> OwnServer:
    """A server with a key for each group, which has only that group and its name."""
    groups = sorted(GROUPS - {"public"})
    text = "".join(f"[keys.{g}]\nkey = 'only-{g}'\noperations = ['{g}']\n" for g in groups)
    write(keys := folder / "groups.toml", text)
    return module_server("--keys-file", str(keys), "--metrics", "--props", api_key="root")


@pytest.mark.parametrize("name", contract.operations())
def test_a_key_may_do_what_its_groups_allow(name: str, limited: OwnServer) -> None:
    """Every operation refuses every key without its group with 403, whatever the body is, and a key
    with its group is not refused."""
    operation = contract.operations()[name]
    access = operation.definition["x-access"]

    def answer(group: str, content: bytes) -> httpx.Response:
        headers = auth(f"only-{group}") | {"Content-Type": "application/json"}
        where = path(name)
        return limited.http.request(operation.method, where, content=content, headers=headers)

    if access == "public":
        for group in GROUPS - {"public"}:
            assert answer(group, b"").status_code not in (401, 403)
        return
    for group in GROUPS - {"public", access}:
        for content in (b"", b"{", json.dumps(BODIES.get(name)).encode()):
            response = answer(group, content)
            contract.check(response, 403)
            message = contract.message(response)
            assert all(f"'{each}'" in message for each in (group, access)), message
    if name not in ENDLESS:
        response = answer(access, b"{")
        assert response.status_code != 401
        if response.status_code == 403:
            assert "x-refused" in operation.definition or name in TOOLS
            assert response.json()["error"]["type"] == "feature_disabled"


def test_keys_of_the_command_line_may_do_everything(router: OwnServer) -> None:
    assert router.get("/models?reload=1").status_code == 200
    assert router.get("/slots?model=second").status_code == 200


# ---- models --------------------------------------------------------------------------------------


def test_a_key_sees_only_its_models(router: OwnServer) -> None:
    def names(where: str, field: str, key: str | None = None) -> list[str]:
        headers = {"Authorization": ""} if key is None else auth(key)
        answer = router.get(where, headers=headers)
        contract.check(answer)
        return sorted(each[field] for each in answer.json()["data" if field == "id" else "models"])

    everything = sorted([servers.MODEL, "second"])
    for where, field in (("/models", "id"), ("/v1/models", "id"), ("/api/tags", "name")):
        assert names(where, field) == names(where, field, "root") == everything
        assert names(where, field, "sk-alice") == ["second"]
    assert names("/api/v0/models", "id", "sk-alice") == ["second"]
    assert names("/v1beta/models", "name", "sk-alice") == ["models/second"]
    assert names("/v1beta/models", "name", "sk-reader") == [f"models/{n}" for n in everything]
    router.ask("/completion", {"prompt": "a", "n_predict": 1, "model": servers.MODEL})
    router.ask("/completion", {"prompt": "a", "n_predict": 1, "model": "second"})
    assert names("/api/ps", "name", "sk-alice") == ["second"]
    assert names("/api/ps", "name", "sk-reader") == everything
    for where in (f"/v1/models/{servers.MODEL}", f"/v1beta/models/{servers.MODEL}"):
        assert router.get(where, headers=auth("sk-alice")).status_code == 404
        assert router.get(where, headers=auth("sk-reader")).status_code == 200
    assert router.get("/v1/models/other", headers=auth("sk-alice")).json()["id"] == "second"


def test_a_key_without_read_sees_names_only(router: OwnServer) -> None:
    for key, is_whole in (("sk-writer", False), ("sk-reader", True)):
        [*models] = router.get("/v1/models", headers=auth(key)).json()["data"]
        assert all(("status" in each) == is_whole for each in models)


FORBIDDEN: list[tuple[str, str, Any]] = [
    ("POST", "/completion", {"prompt": "a", "model": servers.MODEL}),
    ("POST", "/v1/chat/completions", {**CHAT, "model": servers.MODEL}),
    ("POST", "/v1/responses", {"input": "a", "model": servers.MODEL}),
    ("POST", "/v1/messages", {**CHAT, "model": servers.MODEL}),
    ("POST", f"/v1beta/models/{servers.MODEL}:generateContent", BODIES["generate_gemini_content"]),
    ("POST", "/api/chat", {**CHAT, "model": servers.MODEL}),
    ("POST", "/api/show", {"model": servers.MODEL}),
    ("POST", "/tokenize", {"content": "a", "model": servers.MODEL}),
    ("GET", f"/slots?model={servers.MODEL}", None),
    ("GET", f"/props?model={servers.MODEL}", None),
    ("GET", f"/metrics?model={servers.MODEL}", None),
    ("POST", "/models/load", {"model": servers.MODEL}),
    ("POST", "/models/unload", {"model": servers.MODEL}),
    ("POST", "/models", {"model": "maker/tiny-GGUF"}),
    ("DELETE", f"/models?model={servers.MODEL}", None),
    ("POST", "/api/pull", {"model": "hf.co/maker/tiny-GGUF", "stream": False}),
]


@pytest.mark.parametrize(("method", "where", "body"), FORBIDDEN)
def test_other_models_are_refused(method: str, where: str, body: Any, router: OwnServer) -> None:
    response = router.http.request(method, where, json=body, headers=auth("sk-alice"))
    contract.check(response, 403)
    message = contract.message(response)
    assert "'alice' may not use the model" in message
    assert message.endswith("only other")


def test_the_models_of_a_key_by_name_and_alias(router: OwnServer) -> None:
    for name in ("second", "other"):
        response = router.post("/v1/messages", {**CHAT, "model": name}, headers=auth("sk-alice"))
        contract.check(response)
        assert response.json()["model"] == "second"


def test_suggestions_name_only_models_of_the_key(router: OwnServer) -> None:
    asked = {"prompt": "a", "model": servers.MODEL[:-1]}
    assert servers.MODEL in contract.message(router.post("/completion", asked))
    response = router.post("/completion", asked, headers=auth("sk-alice"))
    contract.check(response, 400)
    assert f"of these: {servers.MODEL}" not in contract.message(response)


# ---- what belongs to a key -----------------------------------------------------------------------


def test_slots_show_texts_to_administrators_only(router: OwnServer) -> None:
    router.ask("/completion", {"prompt": "a secret", "n_predict": 1, "model": "second"})

    def text(key: str) -> str:
        return router.get("/slots?model=second", headers=auth(key)).text

    assert "a secret" in text("root")
    assert "a secret" in text("sk-alice")
    assert "a secret" not in text("sk-reader")


def test_the_log_has_names_and_no_keys(router: OwnServer) -> None:
    for key in ("sk-alice", "sk-writer", "root", "sk-wrong"):
        headers = auth(key) | {"X-Request-Id": f"by-{key}"}
        router.post("/v1/messages", {**CHAT, "model": "other"}, headers=headers)

    def written() -> dict[str, str] | None:
        found = re.findall(r"(.*id=by-([\w-]+).*)", router.log.read_text("utf-8"))
        return {key: line for line, key in found} if len(found) == 4 else None

    lines = wait_until(written, "all lines are written")
    assert " 200 key=alice model=second " in lines["sk-alice"]
    assert " 200 key=writer " in lines["sk-writer"]
    assert " 200 key=api-key-1 " in lines["root"]
    assert " 401 " in lines["sk-wrong"]
    assert "key=" not in lines["sk-wrong"]


# ---- changes of the file -------------------------------------------------------------------------


def test_a_response_stays_with_its_name(router: OwnServer, file: Path) -> None:
    asked = {"input": "hello", "max_output_tokens": 2, "model": "other"}
    made = router.post("/v1/responses", asked, headers=auth("sk-alice"))
    contract.check(made)
    where = f"/v1/responses/{made.json()['id']}"
    assert router.get(where, headers=auth("root")).status_code == 404
    write(file, KEYS.replace("sk-alice", "sk-new"))
    wait_until(lambda: status(router, "sk-new") == 200, "the new key is valid")
    assert router.get(where, headers=auth("sk-new")).status_code == 200
    assert router.get(where, headers=auth("sk-alice")).status_code == 401


def test_a_change_reaches_a_running_server(router: OwnServer, file: Path) -> None:
    assert status(router, "sk-more") == 401
    write(file, KEYS + "[keys.more]\nkey = 'sk-more'\n")
    wait_until(lambda: status(router, "sk-more") == 200, "the new key is valid")
    wait_until(
        lambda: "1 added (more), 0 changed, 0 removed" in router.log.read_text("utf-8"),
        "the change is in the log",
    )
    assert "sk-more" not in router.log.read_text("utf-8")


def test_a_broken_file_keeps_the_keys(router: OwnServer, file: Path) -> None:
    write(file, KEYS + "[keys.fat]\nkey = 'sk-fat'\nweight = 'heavy'\n")
    wait_until(
        lambda: "[keys.fat] weight: it must be a number" in router.log.read_text("utf-8"),
        "the fault is in the log",
    )
    assert status(router, "sk-alice") == 200
    assert status(router, "sk-fat") == 401


def test_a_running_answer_of_a_removed_key_goes_on(router: OwnServer, file: Path) -> None:
    asked = {"prompt": "a", "n_predict": 100, "ignore_eos": True, "model": "second"}
    body = json.dumps({**asked, "stream": True}).encode()
    headers = auth("sk-writer") | {"Content-Type": "application/json"}
    with router.http.stream("POST", "/completion", content=body, headers=headers) as response:
        write(file, "[keys.other]\nkey = 'sk-other'\n")
        wait_until(lambda: status(router, "sk-other") == 200, "the file is read")
        text = response.read().decode()
    assert '"stop":true' in text.replace(" ", "")
    assert router.post("/completion", asked, headers=auth("sk-writer")).status_code == 401


def test_expired_keys_are_no_keys(router: OwnServer) -> None:
    assert status(router, "sk-old") == 401


@posix
def test_a_hangup_reads_the_file(own_server: Start, tmp_path: Path) -> None:
    write(keys := tmp_path / "keys.toml", KEYS)
    server = own_server("--keys-file", str(keys))
    assert status(server, "sk-reader") == 200
    assert server.get("/props").status_code == 401
    os.kill(server.process.pid, signal.SIGHUP)
    wait_until(
        lambda: "0 added, 0 changed, 0 removed" in server.log.read_text("utf-8"),
        "the file is read again",
    )
    assert server.process.poll() is None


@posix
def test_the_end_of_its_terminal_ends_the_server(tmp_path: Path) -> None:
    """SIGHUP has two meanings; the second one is that the terminal of the server is closed."""
    import fcntl
    import pty
    import termios

    write(keys := tmp_path / "keys.toml", KEYS)
    terminal, line = pty.openpty()
    argv = ("--model", servers.MODEL, "--keys-file", str(keys))
    with (log := tmp_path / "log").open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "specllama", *servers.FRUGAL, *argv],
            env=servers.environment(),
            stdin=line,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
    os.close(line)
    try:
        wait_until(lambda: b"ready in" in log.read_bytes(), "the server is ready")
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: b"read the API keys again" in log.read_bytes(), "it reads the file")
        assert process.poll() is None
        os.close(terminal)
        wait_until(lambda: process.poll() is not None, "the server has ended")
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()


def test_a_file_without_keys_opens_nothing(own_server: Start, tmp_path: Path) -> None:
    write(keys := tmp_path / "keys.toml", "# later\n")
    server = own_server("--keys-file", str(keys), wait=False)
    wait_until(lambda: server.get("/health").status_code == 200, "the server is ready")
    assert server.get("/props").status_code == 401
    added = subprocess.run(
        [sys.executable, "-m", "specllama", "keys", "add", "alice"],
        env=servers.environment(LLAMA_ARG_KEYS_FILE=str(keys)),
        capture_output=True,
        encoding="ascii",
        check=True,
    )
    secret = added.stdout.strip()
    wait_until(lambda: status(server, secret) == 200, "the new key is valid")
    assert "# later" in keys.read_text("utf-8")


def test_a_file_that_is_invalid_at_the_start(tmp_path: Path) -> None:
    write(keys := tmp_path / "keys.toml", "[keys.a]\nkey = 'sk-a'\nmodels = 'all'\n")
    done = servers.run("--keys-file", str(keys))
    assert done.returncode == 1
    [line] = [each for each in done.stderr.splitlines() if "error" in each]
    assert "keys.toml" in line
    assert "[keys.a] models: it must be a list of names" in line


def test_connexion_has_the_same_keys(tmp_path: Path) -> None:
    write(keys := tmp_path / "keys.toml", KEYS)
    server = servers.start_connexion(tmp_path, LLAMA_ARG_KEYS_FILE=str(keys))
    try:
        contract.check(server.post("/tokenize", {"content": "a"}, headers=auth("sk-reader")))
        refused = server.post("/completion", {"prompt": "a"}, headers=auth("sk-reader"))
        contract.check(refused, 403)
        write(keys, KEYS.replace("sk-reader", "sk-new"))
        wait_until(lambda: status(server, "sk-new") == 200, "the new key is valid")
        assert status(server, "sk-reader") == 401
    finally:
        server.close()
