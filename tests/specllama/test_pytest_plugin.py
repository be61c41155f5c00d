"""The fixture in another project's test suite, which is the one of the examples."""

import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "agent"


def run(*arguments: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """pytest without the settings of this repository."""
    plain = ["-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(directory)]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "specllama.pytest_plugin", *plain, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_example_passes() -> None:
    done = run(str(EXAMPLE), directory=EXAMPLE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_options_are_those_of_a_fixture(tmp_path: Path) -> None:
    (tmp_path / "test_alias.py").write_text(
        "import pytest, urllib.request\n"
        "@pytest.fixture(scope='session')\n"
        "def llm_server_options():\n"
        "    return ['--alias', 'another-name', '--threads', '1']\n"
        "def test_alias(llm_server):\n"
        "    with urllib.request.urlopen(llm_server.base_url + '/v1/models') as answer:\n"
        "        assert b'another-name' in answer.read()\n",
        "utf-8",
    )
    done = run(str(tmp_path), directory=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_plugin_imports_nothing_of_the_server() -> None:
    script = "import sys, specllama.pytest_plugin; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    server = {"specllama.engine", "specllama.handlers", "connexion", "llama_cpp", "numpy"}
    assert not loaded & server


def test_the_entry_point_names_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    points = project["entry-points"]["pytest11"]
    assert points == {"specllama.pytest_plugin": "specllama.pytest_plugin"}
    assert find_spec("specllama.pytest_plugin") is not None
