"""Models from OCI registries, with a stand-in for a registry (`tests/support/registry.py`)."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract_tests.kit import contract
from contract_tests.kit.server import SECONDS, Server, Start
from contract_tests.own.servers import environment
from specllama.engine.shipped import model_path
from tests.support.registry import DOCKER, Registry, serving

pytestmark = pytest.mark.usefixtures("own_server")
MODEL = model_path().read_bytes()
MIB = f"{len(MODEL) / 2**20:.1f}"


@pytest.fixture(scope="module")
def running_registry() -> Iterator[Registry]:
    with serving() as registry:
        yield registry


@pytest.fixture
def name(running_registry: Registry) -> str:
    """A model of a registry that requires tokens."""
    running_registry.reset()
    running_registry.add("me/tiny:8bit", (DOCKER, MODEL, None))
    running_registry.faults.asks_token = True
    return f"{running_registry.host}/me/tiny:8bit"


@pytest.fixture
def cache(tmp_path: Path) -> dict[str, str]:
    return {"HF_HOME": str(tmp_path / "huggingface"), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def pull(*argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run("pull", "--docker", *argv, **variables)


def run(*argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "specllama", *argv],
        env=environment(**variables),
        capture_output=True,
        encoding="utf-8",
        timeout=SECONDS,
        check=False,
    )


def entry(server: Server, name: str) -> Any:
    models = contract.check(server.get("/models"))["data"]
    [found] = [model for model in models if model["id"] == name]
    return found


def complete(server: Server, **fields: Any) -> str:
    request = {"prompt": "def f(", "n_predict": 4, "temperature": 0, "grammar": "root ::= [a-z]+"}
    content: str = contract.check(server.post("/completion", request | fields))["content"]
    assert content
    return content


def test_a_model_of_a_registry_is_served_under_its_name(
    own_server: Start, name: str, cache: dict[str, str]
) -> None:
    server = own_server("-dr", name, named=True, variables=cache)
    found = entry(server, name)
    assert Path(found["path"]).read_bytes() == MODEL
    words = found["status"]["args"]
    assert words[words.index("--docker-repo") + 1] == name
    assert "--model" not in words
    assert f"docker-repo = {name}\n" in found["status"]["preset"]
    assert not found["in_cache"]
    assert not found["can_remove"]
    text = complete(server)
    server.stop()
    variables = {**cache, "LLAMA_ARG_DOCKER_REPO": name}
    assert complete(own_server("--offline", named=True, variables=variables)) == text


def test_a_router_has_models_of_registries(
    own_server: Start, name: str, cache: dict[str, str], tmp_path: Path
) -> None:
    presets = tmp_path / "models.ini"
    presets.write_text(f"[far]\ndocker-repo = {name}\n[none]\ndocker-repo = {name}x\n", "utf-8")
    server = own_server("--models-preset", str(presets), named=True, variables=cache)
    assert entry(server, "far")["path"] == ""
    complete(server, model="far")
    assert Path(entry(server, "far")["path"]).read_bytes() == MODEL
    response = server.post("/completion", {"prompt": "x", "model": "none"})
    contract.check_envelope(response, 503)
    assert "status 404" in contract.message(response)


def test_a_model_of_a_registry_is_pulled(
    running_registry: Registry, name: str, cache: dict[str, str]
) -> None:
    pulled = pull(name, **cache)
    assert pulled.returncode == 0, pulled.stderr
    assert Path(pulled.stdout.strip()).read_bytes() == MODEL
    assert pulled.stderr.endswith(f"{name}: downloaded {MIB} MiB\n")
    again = pull(name, **cache)
    assert (again.stdout, again.stderr) == (pulled.stdout, f"{name}: already downloaded\n")
    unknown = pull(f"{name}x", **cache)
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert unknown.stderr.startswith(f"specllama pull: error: localhost has no {name}x ")
    wrong = pull("Nonsense", **cache)
    assert wrong.stderr.startswith('specllama pull: error: "Nonsense" does not look like [HOST/]')


def test_a_model_of_a_registry_is_listed_and_removed(name: str, cache: dict[str, str]) -> None:
    path = Path(pull(name, **cache).stdout.strip())
    _, line = run("list", **cache).stdout.splitlines()
    assert line.split()[:4] == [name, MIB, "MiB", "registry"]
    [listed] = json.loads(run("list", "--json", **cache).stdout)
    assert listed == {"from": "registry", "name": name, "path": str(path), "size": len(MODEL)}
    removed = run("rm", name, **cache)
    assert (removed.returncode, removed.stdout) == (0, f"removed {name} ({MIB} MiB)\n")
    assert not path.exists()
    assert run("list", **cache).stdout.startswith("no models yet")
    missing = run("rm", "--docker", name, **cache)
    assert (missing.returncode, missing.stdout) == (1, "")
    assert f"there is no model {name}" in missing.stderr
    assert "already downloaded" not in pull(name, **cache).stderr
