"""The operator's choice for /: nothing, the page with other settings, or own files."""

import os
from pathlib import Path

import pytest

from contract_tests.kit import contract
from contract_tests.kit.server import OwnServer, Start, wait_until
from contract_tests.own.launching import one_line
from contract_tests.own.servers import run

HTML = {"Accept": "text/html", "Authorization": ""}
SECRET = b"not to be seen"


def test_no_page(own_server: Start) -> None:
    server = own_server("--no-webui")
    assert contract.check(server.get("/", headers=HTML)) == b"Ollama is running"
    contract.check_envelope(server.get("/ui/app.js"), 404, "not_found_error")
    assert contract.check(server.get("/props"))["ui"] is False


def test_settings_from_a_file(own_server: Start, tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text('{"theme": "dark"}')
    props = contract.check(own_server("--webui-config-file", str(file)).get("/props"))
    assert (props["ui"], props["ui_settings"]) == (True, {"theme": "dark"})


@pytest.mark.parametrize(
    "argv",
    [["--ui-config", "[]"], ["--ui-config-file", "/nowhere/a.json"], ["--path", "/nowhere"]],
)
def test_unusable_paths_end_the_start(argv: list[str]) -> None:
    assert argv[0] in one_line(run(*argv))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret.txt").write_bytes(SECRET)
    directory = outside / "files"
    (directory / "sub").mkdir(parents=True)
    (directory / "index.html").write_text("<title>my own</title>")
    (directory / "app.js").write_text("let a;")
    (directory / "sub" / "index.html").write_text("below")
    (directory / "health").write_text("mine")
    (directory / ".hidden").write_bytes(SECRET)
    (directory / "link.txt").symlink_to(outside / "secret.txt")
    (directory / "up").symlink_to(outside)
    (directory / "inside.js").symlink_to(directory / "app.js")
    os.mkfifo(directory / "pipe")
    return directory


@pytest.fixture(scope="module")
def server(module_server: Start, directory: Path) -> OwnServer:
    server = module_server("--path", str(directory), api_key="key")
    # The file `health` says nothing about the model.
    wait_until(lambda: server.get("/props").status_code == 200, "the model is loaded")
    return server


@pytest.fixture(scope="module")
def below(module_server: Start, directory: Path) -> OwnServer:
    return module_server("--path", str(directory), "--api-prefix", "/llm")


NO_KEY = {"Authorization": ""}


def test_own_files(server: OwnServer) -> None:
    """Own files need no key, and take precedence over operations."""
    page = server.get("/", headers=HTML)
    assert contract.check(page) == b"<title>my own</title>"
    assert "Content-Security-Policy" not in page.headers
    for accept in ("*/*", "application/json", ""):
        plain = server.get("/", headers=NO_KEY | {"Accept": accept})
        assert contract.check(plain) == b"<title>my own</title>"
    assert server.http.head("/", headers=NO_KEY).headers["content-length"] == "21"
    script = server.get("/app.js", headers=NO_KEY)
    assert (script.status_code, script.text) == (200, "let a;")
    assert script.headers["content-type"].startswith("text/javascript")
    assert script.headers["x-content-type-options"] == "nosniff"
    again = server.get("/app.js", headers=NO_KEY | {"If-None-Match": script.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert server.get("/inside.js", headers=NO_KEY).text == "let a;"
    assert server.get("/sub/", headers=NO_KEY).text == "below"
    assert server.get("/health", headers=NO_KEY).text == "mine"
    assert server.http.head("/app.js", headers=NO_KEY).headers["content-length"] == "6"
    contract.check(server.get("/props"))


def test_a_directory_without_a_page(own_server: Start, tmp_path: Path) -> None:
    server = own_server("--path", str(tmp_path))
    for headers in (HTML, NO_KEY):
        assert contract.check(server.get("/", headers=headers)) == b"Ollama is running"


def test_own_files_below_a_prefix(below: OwnServer) -> None:
    assert below.get("/app.js").text == "let a;"
    assert contract.check(below.get("/", headers=HTML)) == b"<title>my own</title>"
    assert (
        b"404"
        in below.raw(b"GET /app.js HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .recv(4096)
        .split(b"\r\n")[0]
    )


@pytest.mark.parametrize(
    "path",
    [
        "/.hidden",
        "/link.txt",
        "/up/secret.txt",
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "/..%2fsecret.txt",
        "/sub/..%2f..%2fsecret.txt",
        "/sub%2f..%2f.hidden",
        "/%2fetc%2fpasswd",
        "//etc/passwd",
        "/..%5csecret.txt",
        "/app.js%00.html",
        "/app.js/",
        "/sub",
        "/pipe",
        "/" + "a" * 5000,
        "/%ff%fe",
    ],
)
def test_nothing_else_is_served(path: str, server: OwnServer) -> None:
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
    with server.raw(head) as connection:
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.split(b" ")[1] in (b"400", b"401", b"404")
    assert SECRET not in answer
    assert b"root:" not in answer
    assert server.get("/v1/models").status_code == 200


def test_other_methods_reach_the_operations(server: OwnServer) -> None:
    assert server.post("/health", {}).status_code == 405
    assert server.post("/app.js", {}).status_code == 404
