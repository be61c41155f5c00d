"""Downloads of models from a stand-in for the hub (`tests/support/hub.py`): progress, files after
an interruption, and failures."""

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from contract_tests.kit import contract
from contract_tests.kit.events import Event, read_events
from contract_tests.kit.server import SECONDS, OwnServer, Server, Start, alive, wait_until
from contract_tests.own.servers import FRUGAL, ROOT, environment, run
from specllama.engine.shipped import model_path
from tests.support.hub import Hub, serving

MODEL = model_path().read_bytes()
REPOSITORY = "maker/tiny-GGUF"
NAME = f"{REPOSITORY}:Q8_0"
FILE = "tiny-Q8_0.gguf"
MIB = f"{len(MODEL) / 2**20:.1f}"
CRAWL = len(MODEL) // 3600  # bytes per second, for downloads that must not end
TOKEN = "hf_secret"
LETTERS = "root ::= [a-z]+"
"""A grammar that any model can follow, with texts that end."""
needs_own_server = pytest.mark.usefixtures("own_server")


@pytest.fixture(scope="module")
def running_hub() -> Iterator[Hub]:
    with serving() as hub:
        yield hub


@pytest.fixture
def hub(running_hub: Hub) -> Hub:
    """A hub with a model, and without faults."""
    running_hub.reset()
    running_hub.add(REPOSITORY, {FILE: MODEL, "README.md": b"# tiny"})
    return running_hub


@pytest.fixture
def cache(hub: Hub, tmp_path: Path) -> dict[str, str]:
    """The environment variables of a program that uses the hub, with an empty cache."""
    return {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "huggingface"),
        "HF_HUB_DOWNLOAD_TIMEOUT": str(round(SECONDS)),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }


def answer(server: Server, **fields: Any) -> str:
    request = {"prompt": "def f(", "n_predict": 8, "temperature": 0, "grammar": LETTERS, **fields}
    content: str = contract.check(server.post("/completion", request))["content"]
    assert content
    return content


def model(server: Server, name: str) -> Any:
    """Returns the entry of one model in `GET /models`."""
    [found] = [each for each in contract.check(server.get("/models"))["data"] if each["id"] == name]
    return found


def value(server: Server, name: str) -> str:
    return str(model(server, name)["status"]["value"])


def health(server: Server) -> str:
    """Returns the reason why the server isn't ready, or an empty text."""
    response = server.get("/health")
    if response.status_code == 200:
        return ""
    return str(contract.check(response, 503)["error"]["message"])


def fetchers(server: OwnServer) -> list[psutil.Process]:
    """Returns the processes below the server that download."""
    children = psutil.Process(server.process.pid).children(recursive=True)
    module = "specllama.engine.helpers.download.download_main"
    return [each for each in children if module in each.cmdline()]


def n_there(server: Server, name: str) -> int:
    """Returns the number of downloaded bytes."""
    status = model(server, name)["status"]
    return int(status.get("download", {"n_done": 0})["n_done"])


def wait_until_some_is_there(server: Server, name: str, more_than: int = 0) -> int:
    """Waits for the middle of a download, and returns the number of downloaded bytes."""
    wait_until(lambda: n_there(server, name) > more_than, "something has been downloaded")
    return n_there(server, name)


def wait_until_logged(server: OwnServer, share: int) -> None:
    line = f": {share} % of "
    wait_until(lambda: line in server.log.read_text("utf-8", "replace"), f"{share} % are logged")


# ---- one model ---------------------------------------------------------------------------------


def test_a_model_is_downloaded_and_served(
    own_server: Start, hub: Hub, cache: dict[str, str]
) -> None:
    hub.faults.slow_from = 0
    server = own_server("-hf", NAME, named=True, wait=False, variables=cache)
    seen = [wait_until_some_is_there(server, NAME)]
    assert re.fullmatch(r"Downloading model \(\d+%\)", health(server))
    error = contract.check(server.post("/completion", {"prompt": "a"}), 503)["error"]
    assert error["message"] == "Downloading model"
    for share in (30, 60, 90):
        hub.faults.slow_from = len(MODEL) * share // 100 + 1
        wait_until_logged(server, share)
        seen.append(n_there(server, NAME))
    hub.faults.slow_from = None
    while (status := model(server, NAME)["status"])["value"] == "downloading":
        shown = status["download"]
        assert (shown["file"], shown["n_total"]) == (FILE, len(MODEL))
        assert status["progress"] <= 1
        seen.append(shown["n_done"])
    assert seen == sorted(seen)
    assert len(set(seen)) > 2, "the bytes are counted during the download"
    server.wait_until_ready()
    text = answer(server)
    log = server.log.read_text("utf-8", "replace")
    steps = re.findall(
        rf"^INFO specllama.download: downloading {NAME}: (\d+) % of {re.escape(MIB)} MiB$",
        log,
        re.MULTILINE,
    )
    assert [int(each) for each in steps] == sorted({int(each) for each in steps})
    assert len(steps) > 2
    assert "\x1b" not in log
    assert server.stop() == 0

    # From now on the model is there: offline, and for a router.
    n_requests = len(hub.requests)
    offline = own_server("-hf", NAME, "--offline", named=True, variables=cache)
    assert answer(offline) == text
    assert model(offline, NAME)["in_cache"] is True
    router = own_server("--offline", router=True, variables=cache)
    there = model(router, NAME)
    assert (there["source"], there["in_cache"]) == ("cache", True)
    assert Path(there["path"]).read_bytes() == MODEL
    assert answer(router, model=NAME) == text
    assert len(hub.requests) == n_requests
    listed = run("--cache-list", **cache)
    assert listed.returncode == 0, listed.stderr
    assert listed.stdout == f"number of models in cache: 1\n   1. {NAME}\n"


@needs_own_server
@pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals")
def test_a_terminal_gets_a_bar(hub: Hub, cache: dict[str, str]) -> None:
    hub.faults.bytes_per_second = CRAWL
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "specllama", *FRUGAL, "-hf", NAME]
    process = subprocess.Popen(
        command,
        env=environment(**cache, TERM="xterm", COLUMNS="100"),
        cwd=ROOT,
        stderr=theirs,
        stdout=subprocess.DEVNULL,
    )
    os.close(theirs)
    shown = bytearray()

    def read() -> None:
        with contextlib.suppress(OSError):  # the other side was closed
            while chunk := os.read(ours, 4096):
                shown.extend(chunk)

    threading.Thread(target=read, daemon=True).start()
    try:
        wait_until(lambda: "━".encode() in shown, "there is a bar")
        size = re.compile(rb"\d\.\d/%b MiB" % re.escape(MIB.encode()))
        wait_until(lambda: size.search(shown), "it shows the amount")
        assert NAME.encode() in shown
        assert b" % of " not in shown, "no lines in addition to it"
        process.terminate()
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.wait()


def test_a_download_goes_on_where_it_broke_off(
    own_server: Start, hub: Hub, cache: dict[str, str]
) -> None:
    hub.faults.bytes_per_second = CRAWL
    server = own_server("-hf", NAME, named=True, wait=False, variables=cache)
    wait_until_some_is_there(server, NAME)
    downloading = fetchers(server)
    assert downloading
    server.process.kill()
    server.process.wait()
    wait_until(lambda: not any(map(alive, downloading)), "nothing is downloaded any more")
    hub.faults.bytes_per_second = None
    n_before = len(hub.downloads())
    server = own_server("-hf", NAME, named=True, variables=cache)
    assert answer(server)
    [rest] = hub.downloads()[n_before:]
    first = int(rest.range.removeprefix("bytes=").partition("-")[0])
    assert 0 < first < len(MODEL)


def test_two_servers_download_it_once(own_server: Start, hub: Hub, cache: dict[str, str]) -> None:
    hub.faults.bytes_per_second = CRAWL
    servers = [own_server("-hf", NAME, named=True, wait=False, variables=cache) for _ in range(2)]
    for server in servers:
        wait_until_some_is_there(server, NAME)
    hub.faults.bytes_per_second = None
    for server in servers:
        server.wait_until_ready()
    assert answer(servers[0]) == answer(servers[1])
    assert len(hub.downloads()) == 1


def test_a_token_opens_what_is_private(own_server: Start, hub: Hub, cache: dict[str, str]) -> None:
    hub.faults.token = TOKEN
    server = own_server("-hf", NAME, "--hf-token", TOKEN, named=True, variables=cache)
    assert answer(server)
    assert all(not asked.authorization for asked in hub.downloads()), "it is for the hub alone"
    assert TOKEN not in server.get("/models").text
    assert TOKEN not in server.log.read_text("utf-8", "replace")


def test_an_address(own_server: Start, hub: Hub, cache: dict[str, str]) -> None:
    hub.plain["tiny.gguf"] = MODEL
    url = f"{hub.url}/plain/tiny.gguf"
    server = own_server("-mu", url, named=True, variables=cache)
    assert model(server, "tiny.gguf")["path"].startswith(cache["XDG_CACHE_HOME"])
    assert answer(server)


def test_a_shortcut(own_server: Start, hub: Hub, cache: dict[str, str]) -> None:
    repository = "ggml-org/Qwen2.5-Coder-1.5B-Q8_0-GGUF"
    hub.add(repository, {"qwen2.5-coder-1.5b-q8_0.gguf": MODEL, "other-Q8_0.gguf": b"GGUF"})
    server = own_server("--fim-qwen-1.5b-default", named=True, variables=cache)
    request = {"input_prefix": "def f(", "input_suffix": "return x\n", "n_predict": 4}
    request["grammar"] = LETTERS
    assert contract.check(server.post("/infill", request))["content"]
    assert model(server, repository)["path"].endswith("/qwen2.5-coder-1.5b-q8_0.gguf")


# ---- failures ---------------------------------------------------------------------


@needs_own_server
@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["-hf", "maker/nothing"], "maker/nothing"),
        (["-hf", f"{REPOSITORY}:Q5_K_M"], "Q8_0"),  # the available ones
        (["-hf", REPOSITORY, "--hf-file", "other.gguf"], "other.gguf"),
        (["-hf", NAME, "--offline"], "offline"),
        (["-mu", "{hub}/plain/nothing.gguf"], "nothing.gguf"),
    ],
    ids=["repository", "quantization", "file", "offline", "address"],
)
def test_a_model_that_is_not_there_ends_it_with_a_line(
    hub: Hub, cache: dict[str, str], argv: list[str], message: str
) -> None:
    done = run(*(each.format(hub=hub.url) for each in argv), model=None, **cache)
    assert done.returncode == 1, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("specllama: error: ")
    assert message in last
    assert "Traceback" not in done.stderr
    assert done.stderr.count(last.removeprefix("specllama: error: ")) == 1, "it is printed once"


@needs_own_server
def test_a_gated_model_is_reported(hub: Hub, cache: dict[str, str]) -> None:
    hub.faults.gated = True
    done = run("-hf", NAME, "--hf-token", TOKEN, model=None, **cache)
    assert done.returncode == 1
    assert "is gated: accept its terms" in done.stderr
    assert TOKEN not in done.stderr


# ---- many models -------------------------------------------------------------------------------


def presets(path: Path, **sections: str) -> Path:
    """Writes a preset file with one line per model, its source."""
    path.write_text("\n".join(f"[{name}]\n{line}\n" for name, line in sections.items()), "utf-8")
    return path


def events_of(server: Server, until: Callable[[Event], bool], begin: threading.Event) -> list[Any]:
    """Returns the models' events, validated, up to the first one for which `until` is true."""
    events: list[Event] = []
    with server.http.stream("GET", "/models/sse") as response:
        for event in read_events(response.iter_raw()):
            events.append(event)
            begin.set()
            if until(event):
                break
    return contract.check_stream(contract.find("GET", "/models/sse"), events)


def test_a_request_downloads_its_model(
    own_server: Start, hub: Hub, cache: dict[str, str], tmp_path: Path
) -> None:
    file = presets(tmp_path / "models.ini", far=f"hf-repo = {NAME}")
    server = own_server("--models-preset", str(file), router=True, variables=cache)
    assert value(server, "far") == "unloaded"
    assert model(server, "far")["in_cache"] is False
    assert not hub.downloads()
    hub.faults.bytes_per_second = CRAWL

    def is_loaded(event: Event) -> bool:
        found = event.json
        return bool(found["model"] == "far" and found["data"].get("status") == "loaded")

    begun = threading.Event()
    with ThreadPoolExecutor() as pool:
        watching = pool.submit(events_of, server, is_loaded, begun)
        assert begun.wait(SECONDS)
        asking = [pool.submit(answer, server, model="far") for _ in range(4)]
        n = 0
        for _ in range(3):  # each step of the progress is an event
            n = wait_until_some_is_there(server, "far", n)
        hub.faults.bytes_per_second = None
        seen = [each for each in watching.result() if each["model"] == "far"]
        assert len({each.result() for each in asking}) == 1
    kinds = [each["event"] for each in seen]
    assert kinds.count("download_finished") == 1
    assert "download_failed" not in kinds
    finished = kinds.index("download_finished")
    counts = [
        each["data"]["progress"][FILE]["done"]
        for each in seen
        if each["event"] == "download_progress"
    ]
    assert len(counts) > 1
    assert counts == sorted(counts)
    assert "download_progress" not in kinds[finished:]
    values = [each["data"]["status"] for each in seen if "status" in each["data"]]
    assert list(dict.fromkeys(values)) == ["unloaded", "downloading", "loading", "loaded"]
    assert len(hub.downloads()) == 1


def test_unloading_breaks_a_download_off(
    own_server: Start, hub: Hub, cache: dict[str, str], tmp_path: Path
) -> None:
    hub.faults.bytes_per_second = CRAWL
    file = presets(tmp_path / "models.ini", far=f"hf-repo = {NAME}", other="model = specllama-tiny")
    server = own_server("--models-preset", str(file), router=True, variables=cache)
    with ThreadPoolExecutor() as pool:
        asking = pool.submit(server.post, "/completion", {"prompt": "a", "model": "far"})
        wait_until_some_is_there(server, "far")
        downloading = fetchers(server)
        contract.check(server.post("/models/unload", {"model": "far"}))
        error = contract.check(asking.result(), 503)["error"]
        assert "'far' was unloaded" in error["message"]
    wait_until(lambda: value(server, "far") == "unloaded", "it is unloaded")
    assert not any(map(alive, downloading))
    assert model(server, "far")["status"]["failed"] is False
    assert model(server, "far")["in_cache"] is False
    # When the model is loaded again, the download continues.
    hub.faults.bytes_per_second = None
    contract.check(server.post("/models/load", {"model": "far"}))
    wait_until(lambda: value(server, "far") == "loaded", "it is loaded")
    assert hub.downloads()[-1].range
    # The data about its file is kept.
    there = model(server, "far")
    assert there["in_cache"] is True
    contract.check(server.post("/models/unload", {"model": "far"}))
    wait_until(lambda: value(server, "far") == "unloaded", "it is unloaded")
    assert model(server, "far")["path"] == there["path"]
    assert model(server, "far")["in_cache"] is True


def test_downloads_that_fail(own_server: Start, cache: dict[str, str], tmp_path: Path) -> None:
    """Three downloads from three servers: one answers with errors, one sends wrong data, and one
    only pauses, so its download succeeds."""
    with contextlib.ExitStack() as stack:
        busy, stalling, lying = (stack.enter_context(serving()) for _ in range(3))
        busy.faults.n_unavailable = lying.faults.n_damaged = 1000
        stalling.faults.stall_after = 0
        stalling.faults.n_stalls = 2
        for each in (busy, stalling, lying):
            each.plain["model.gguf"] = MODEL
            each.add(REPOSITORY, {FILE: MODEL})
        lines = {
            "busy": f"model-url = {busy.url}/plain/model.gguf",
            "stalling": f"model-url = {stalling.url}/plain/model.gguf",
            "lying": f"hf-repo = {NAME}",
        }
        file = presets(tmp_path / "models.ini", **lines)
        # s; for the download that never continues
        variables = {**cache, "HF_ENDPOINT": lying.url, "HF_HUB_DOWNLOAD_TIMEOUT": "1"}
        options = ("--models-preset", str(file), "--models-shipped")
        server = own_server(*options, router=True, variables=variables)
        body = {"prompt": "a", "n_predict": 1}
        with ThreadPoolExecutor() as pool:
            asking = {
                name: pool.submit(server.post, "/completion", body | {"model": name})
                for name in lines
            }
            assert answer(server), "the other models work"
            assert asking.pop("stalling").result().status_code == 200, "it is tried again"
            messages = {
                name: contract.check(each.result(), 503)["error"]["message"]
                for name, each in asking.items()
            }
        assert "status 503" in messages["busy"]
        assert "arrived damaged" in messages["lying"]
        for name in messages:
            status = model(server, name)["status"]
            assert status["failed"]
            assert status["error"] in messages[name]
            assert "exit_code" not in status
        lying.faults.n_damaged = 0
        wait_until(
            lambda: server.post("/completion", body | {"model": "lying"}).status_code == 200,
            "a failed download is repeated",
        )
