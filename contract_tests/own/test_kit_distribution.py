"""The installed kit: built, unpacked next to its dependencies, and run from another folder."""

import ast
import json
import os
import re
import site
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from contract_tests.kit.server import API_KEY, Server
from contract_tests.own.servers import ROOT

KIT = ROOT / "contract_tests" / "kit"
GUIDE = ROOT / "docs" / "contract-kit.md"
INSIDE = "specllama_contract/"


def build(kind: str, source: Path, directory: Path) -> Path:
    """Builds a wheel or an sdist in this environment, as pip would in an isolated one."""
    call = f"import hatchling.build as b; print(b.build_{kind}({str(directory)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", call], cwd=source, capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr
    return directory / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", KIT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that has the wheel and, by their folders, its dependencies."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False, symlinks=os.name == "posix")
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(subprocess.check_output([python, "-c", asked], text=True).strip())
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    # The folders where pip would have put them. They contain nothing of this repository.
    folders = [each for each in sys.path if Path(each).name in ("site-packages", "dist-packages")]
    (packages / "dependencies.pth").write_text("\n".join(folders or site.getsitepackages()))
    return python


def run(python: Path, directory: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    ours = ("PYTHON", "PYTEST")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return subprocess.run(
        [python, *argv],
        cwd=directory,
        env={
            **variables,
            "PYTHONDONTWRITEBYTECODE": "1",
            # pytest finds this plugin in the dependencies' folder, but it can't be imported.
            "PYTEST_ADDOPTS": "-p no:specllama.pytest_plugin",
        },
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_has_the_kit_and_the_description_and_needs_no_compiler(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    found = names(wheel)
    texts = {
        f"{INSIDE}openapi/{path.relative_to(ROOT / 'openapi').as_posix()}"
        for path in (ROOT / "openapi").rglob("*.yaml")
    }
    modules = {
        INSIDE + path.relative_to(KIT).as_posix()
        for path in KIT.rglob("*.py")
        if path.name != "hatch_build.py" and path.parent.name != "description"
    }
    assert texts | modules <= found
    with zipfile.ZipFile(wheel) as archive:
        for name in found:
            if name.endswith(".py"):
                assert "contract_tests.kit" not in archive.read(name).decode(), name
        [metadata] = [name for name in found if name.endswith("/METADATA")]
        metadata_text = archive.read(metadata).decode()
    description = yaml.safe_load((ROOT / "openapi" / "server.yaml").read_text("utf-8"))
    assert f"\nVersion: {description['info']['version']}\n" in metadata_text
    assert "llama-cpp-python" not in metadata_text


def test_a_wheel_of_the_source_distribution_is_the_same(wheel: Path, tmp_path: Path) -> None:
    archive = build("sdist", KIT, tmp_path)
    with tarfile.open(archive) as packed:
        packed.extraction_filter = getattr(tarfile, "data_filter", None)  # from Python 3.11.4 on
        packed.extractall(tmp_path / "source")
    [source] = (tmp_path / "source").iterdir()
    assert names(build("wheel", source, tmp_path)) == names(wheel)


def test_it_depends_on_what_it_imports() -> None:
    """Every library that a module of the kit imports is a dependency."""
    project = tomllib.loads((KIT / "pyproject.toml").read_text("utf-8"))["project"]
    needed = {re.split(r"[<>=,\[ ]", each)[0].replace("-", "_") for each in project["dependencies"]}
    needed = (needed | {"yaml", "hatchling"}) - {"pyyaml"}
    imported = set()
    for path in KIT.rglob("*.py"):
        if path.parent.name != "description":
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Import):
                    imported |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    imported.add(str(node.module).partition(".")[0])
    libraries = {each for each in imported if each not in sys.stdlib_module_names}
    assert libraries - {"contract_tests", "pydantic"} <= needed  # pydantic: openai's own


def test_it_tests_a_server(python: Path, server: Server, tmp_path: Path) -> None:
    """Tests our server, with a key, from an environment without this repository, in the folder of
    an application that has packages with the same names."""
    for name in ("contract_tests", "engine", "handlers", "openapi", "tests", "tools"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    done = run(
        python, tmp_path, "-m", "specllama_contract.command",
        *("--base-url", server.url, "--api-key", API_KEY, "--report", "json", "-o", "report.json"),
        *("--select", "POST /detokenize", "--select", "embeddings", "--max-examples", "1"),
    )  # fmt: skip
    assert (tmp_path / "report.json").exists(), done.stderr
    report: dict[str, Any] = json.loads((tmp_path / "report.json").read_text("utf-8"))
    verdicts = {each["operation"]: each["verdict"] for each in report["operations"]}
    assert verdicts["POST /detokenize"] == "conforms", report
    assert verdicts["POST /v1/embeddings"] == "not offered"
    assert not report["unclear"]
    assert done.returncode == 0, done.stderr
    assert report["server"]["features"]["API key"] == "required"


def test_it_catches_mutants(python: Path, server: Server, tmp_path: Path) -> None:
    """One of its mutants is only caught if assertions are rewritten in the installed kit as
    well."""
    done = run(
        python, tmp_path, "-m", "specllama_contract.command", "mutants",
        *("--base-url", server.url, "--api-key", API_KEY),
        *("-k", "spaces_get_lost|tokens_come_backwards"),
    )  # fmt: skip
    assert done.stdout.endswith("\n2 caught\n"), done.stdout + done.stderr
    assert done.returncode == 0


def blocks(language: str) -> list[str]:
    text = GUIDE.read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


def test_the_fixtures_of_the_guide_work(python: Path, server: Server, tmp_path: Path) -> None:
    [example] = blocks("python")
    (tmp_path / "test_example.py").write_text(example)
    alone = ("-m", "pytest", "-q", "-p", "no:cacheprovider")
    asked = run(python, tmp_path, *alone, "--base-url", server.url, "--api-key", API_KEY)
    assert "1 passed" in asked.stdout, asked.stdout + asked.stderr
    assert "1 skipped" in run(python, tmp_path, *alone).stdout

    (tmp_path / "test_example.py").write_text(
        "def test_it(contract, contract_client):\n"
        "    contract.check(contract_client.get('/health'), 503)\n"
    )
    failed = run(python, tmp_path, *alone, "--base-url", server.url)
    assert "expected 503, got GET /health: 200" in failed.stdout


def test_the_plugin_leaves_others_alone(python: Path, tmp_path: Path) -> None:
    """The plugin adds no option that another plugin has, and imports nothing before a test uses
    it."""
    (tmp_path / "conftest.py").write_text(
        "def pytest_addoption(parser):\n    parser.addoption('--base-url', default='mine')\n"
    )
    (tmp_path / "test_it.py").write_text(
        "import sys\n"
        "def test_it(pytestconfig):\n"
        "    assert pytestconfig.getoption('base_url') == 'mine'\n"
        "    assert pytestconfig.getoption('api_key') is None\n"
        "    kit = {n for n in sys.modules if n.startswith('specllama_contract')}\n"
        "    assert kit == {'specllama_contract', 'specllama_contract.pytest_plugin'}\n"
    )
    done = run(python, tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_the_workflow_of_the_guide_is_one() -> None:
    """It is valid YAML with the right form, and its commands and options exist."""
    [text] = blocks("yaml")
    workflow = yaml.load(text, yaml.BaseLoader)  # it reads `on` as a text
    assert {"name", "on", "jobs"} <= workflow.keys()
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    for step in steps:
        assert ("uses" in step) != ("run" in step), step
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+(\.\d+)*", step["uses"]), step
    commands = " ".join(step.get("run", "") for step in steps)
    from contract_tests.kit.command import parser

    [command] = re.findall(r"specllama-contract (.*)", commands)
    assert parser().parse_args(command.split()).base_url.startswith("http://127.0.0.1:")
    assert "pip install ./contract_tests/kit" in commands
