"""The subcommands about models: `pull`, `list`, `rm` and `ps`."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract_tests.kit.server import SECONDS, Start
from contract_tests.own.servers import environment
from specllama.engine.shipped import model_path
from tests.support.hub import Hub, serving

pytestmark = pytest.mark.usefixtures("own_server")
MODEL = model_path().read_bytes()
NAME = "maker/tiny-GGUF:Q8_0"
MIB = f"{len(MODEL) / 2**20:.1f}"


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with serving() as hub:
        hub.add("maker/tiny-GGUF", {"tiny-Q8_0.gguf": MODEL, "README.md": b"# tiny"})
        hub.plain["file.gguf"] = MODEL
        yield hub


@pytest.fixture
def cache(hub: Hub, tmp_path: Path) -> dict[str, str]:
    return {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "huggingface"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }


def run(*argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "specllama", *argv],
        env=environment(**variables),
        capture_output=True,
        encoding="utf-8",
        timeout=SECONDS,
        check=False,
    )


def test_a_model_is_pulled_listed_served_and_removed(
    own_server: Start, cache: dict[str, str]
) -> None:
    empty = run("list", **cache)
    assert (empty.returncode, empty.stdout[:13]) == (0, "no models yet")
    pulled = run("pull", NAME, **cache)
    assert pulled.returncode == 0, pulled.stderr
    path = Path(pulled.stdout.strip())
    assert path.read_bytes() == MODEL
    assert pulled.stderr.endswith(f"{NAME}: downloaded {MIB} MiB\n")
    again = run("pull", NAME, **cache)
    assert (again.stdout, again.stderr) == (pulled.stdout, f"{NAME}: already downloaded\n")

    head, line = run("list", **cache).stdout.splitlines()
    assert head.split() == ["NAME", "SIZE", "FROM", "DOWNLOADED"]
    assert re.fullmatch(rf"{NAME} +{re.escape(MIB)} MiB  hub +\d{{4}}-\d\d-\d\d \d\d:\d\d", line)
    [listed] = json.loads(run("list", "--json", **cache).stdout)
    assert (listed["repository"], listed["quant"], listed["size"]) == (*NAME.split(":"), len(MODEL))

    server = own_server("-hf", NAME, "-np", "2", "--offline", named=True, variables=cache)
    head, line = run("ps", "--url", server.url, **cache).stdout.splitlines()
    assert head.split() == ["NAME", "STATE", "SLOTS", "CONTEXT", "SIZE", "MEMORY"]
    assert line.split()[:3] == [NAME, "loaded", "0/2"]
    assert line.endswith("iB host")
    server.stop()

    removed = run("rm", NAME, **cache)
    assert (removed.returncode, removed.stdout) == (0, f"removed {NAME} ({MIB} MiB)\n")
    assert not path.exists()
    missing = run("rm", NAME, **cache)
    assert (missing.returncode, missing.stdout) == (1, "")
    assert f"there is no model {NAME}" in missing.stderr


def test_a_file_at_an_address_is_pulled(hub: Hub, cache: dict[str, str]) -> None:
    done = run("pull", f"{hub.url}/plain/file.gguf", **cache)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == MODEL


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("missing", '"missing" does not look like USER/REPO or USER/REPO:QUANT'),
        ("maker/none-GGUF", "maker/none-GGUF"),
        ("maker/tiny-GGUF:Q2_K", "Q2_K"),
    ],
)
def test_an_impossible_pull_is_one_line(cache: dict[str, str], name: str, expected: str) -> None:
    done = run("pull", name, **cache)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("specllama pull: error: ")
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1


def test_models_that_are_not_loaded_are_shown_on_demand(
    own_server: Start, cache: dict[str, str]
) -> None:
    server = own_server("--api-key", "secret", router=True, variables=cache)
    locked = run("ps", "--url", server.url, **cache)
    assert locked.returncode == 0, "the names of models need no key"
    some = run("ps", "--url", server.url, "--api-key", "secret", **cache)
    every = run("ps", "--url", server.url, "--api-key", "secret", "--all", **cache)
    assert (some.returncode, every.returncode) == (0, 0)
    assert len(every.stdout.splitlines()) >= len(some.stdout.splitlines())
    assert "specllama-tiny" in every.stdout


def test_no_server_is_one_line(cache: dict[str, str]) -> None:
    done = run("ps", "--url", "http://127.0.0.1:1", **cache)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("specllama ps: error: no server answers at http://127.0.0.1:1: ")
