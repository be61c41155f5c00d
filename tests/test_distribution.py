"""The installed package: one package, the same however it was built, next to any application."""

import os
import shutil
import socket
import subprocess
import sys
import tarfile
import time
import venv
import zipfile
from collections import Counter
from pathlib import Path

import httpx
import pytest

from contract_tests.kit.server import SECONDS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
FOLDERS = ("engine", "handlers", "openapi")
"""At the top of the repository, and in the package."""
NOT_INSTALLED = ("tests", "contract_tests", "tools", "benchmarks")
PARTS = (*FOLDERS, "specllama", "LICENSE", "README.md", "pyproject.toml")
"""Copies the files from which a wheel is built."""


def build(kind: str, source: Path, directory: Path) -> Path:
    """Builds a wheel or an sdist in this environment, as pip would in one of its own."""
    call = f"import hatchling.build as b; print(b.build_{kind}({str(directory)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", call], cwd=source, capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr
    return directory / done.stdout.split()[-1]


def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


def test_it_has_one_package_and_each_of_its_files_once(wheel: Path) -> None:
    found = names(wheel)
    assert {name.partition("/")[0].partition("-")[0] for name in found} == {"specllama"}
    assert max(Counter(found).values()) == 1
    there = {
        f"{'' if folder == 'specllama' else 'specllama/'}{path.relative_to(ROOT).as_posix()}"
        for folder in ("specllama", *FOLDERS)
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in there if (ROOT / "specllama" / name).is_symlink()} == set()
    modules = {name for name in found if ".dist-info/" not in name}
    assert modules == {name for name in there if not name.startswith(_LINKED)}


_LINKED = tuple(f"specllama/specllama/{folder}/" for folder in FOLDERS)


def test_a_wheel_of_the_source_distribution_is_the_same(wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(build("sdist", ROOT, tmp_path)) as packed:
        packed.extraction_filter = getattr(tarfile, "data_filter", None)  # from Python 3.11.4 on
        packed.extractall(tmp_path / "source")
    [source] = (tmp_path / "source").iterdir()
    assert sorted(names(build("wheel", source, tmp_path))) == sorted(names(wheel))


def test_a_checkout_without_links_is_the_same(wheel: Path, tmp_path: Path) -> None:
    """git writes a link as a text file where the system has none, as on Windows."""
    checkout = without_links(tmp_path / "checkout")
    assert sorted(names(build("wheel", checkout, tmp_path))) == sorted(names(wheel))
    script = "import specllama.engine, specllama.handlers; print(specllama.engine.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=checkout, capture_output=True, text=True, check=True
    )
    assert Path(done.stdout.strip()) == checkout / "engine" / "__init__.py"


def without_links(directory: Path) -> Path:
    directory.mkdir()
    for part in PARTS:
        if (ROOT / part).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / part, directory / part, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / part, directory / part)
    for folder in FOLDERS:
        (directory / "specllama" / folder).unlink()
        (directory / "specllama" / folder).write_text(f"../{folder}")
    return directory


# ---- with an application that has folders of the same names ---------------------------------


class Installed:
    """An environment with the wheel, and an application that it is used from."""

    def __init__(self, wheel: Path, home: Path, application: Path) -> None:
        venv.create(home, with_pip=False, symlinks=os.name == "posix")
        self.python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        self.application = application
        asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
        packages = Path(subprocess.check_output([self.python, "-c", asked], text=True).strip())
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(packages)
        # Its dependencies, by their folders, which don't contain the repository: a .pth file in a
        # folder that another .pth file names is not read.
        folders = [each for each in sys.path if Path(each).name.endswith("-packages")]
        (packages / "dependencies.pth").write_text("\n".join(folders))
        for folder in (*FOLDERS, *NOT_INSTALLED):
            (application / folder).mkdir(parents=True)
            (application / folder / "__init__.py").write_text(f"OURS = '{folder}'\n")

    def run(self, *argv: str) -> str:
        done = subprocess.run(
            [self.python, *argv],
            cwd=self.application,
            env=self.variables(),
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def variables(self) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if not name.startswith("PY")}


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    home, application = (tmp_path_factory.mktemp(name) for name in ("home", "application"))
    return Installed(wheel, home, application)


def test_modules_of_the_same_name_are_the_application_s(installed: Installed) -> None:
    for folder in (*FOLDERS, *NOT_INSTALLED):
        assert installed.run("-c", f"import {folder}; print({folder}.OURS)").strip() == folder
    shown = installed.run("-c", "import specllama.engine.errors as e; print(e.__file__)")
    assert Path(shown.strip()).parts[-3:] == ("specllama", "engine", "errors.py")


def test_the_application_s_tests_get_a_server(installed: Installed) -> None:
    """The fixture starts all processes of a server: its own, an engine, a renderer."""
    (installed.application / "test_it.py").write_text(
        "import json, urllib.request\n"
        "import engine, handlers, openapi\n"
        "def test_it(llm_server):\n"
        "    body = {'messages': [{'role': 'user', 'content': 'Hello!'}], 'max_tokens': 3}\n"
        "    url = llm_server.base_url + '/v1/chat/completions'\n"
        "    headers = {'Content-Type': 'application/json'}\n"
        "    asked = urllib.request.Request(url, json.dumps(body).encode(), headers)\n"
        "    with urllib.request.urlopen(asked) as answer:\n"
        "        assert json.load(answer)['usage']['completion_tokens'] == 3\n"
    )
    assert "1 passed" in installed.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py")


def test_connexion_run_serves_the_package_s_description(installed: Installed) -> None:
    path = installed.run("-m", "specllama", "spec", "--path").strip()
    assert Path(path).parts[-3:] == ("specllama", "openapi", "server.yaml")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    command = ["-c", "from connexion.cli import main; main()", "run", path, "--port", str(port)]
    server = subprocess.Popen(
        [installed.python, *command], cwd=installed.application, env=installed.variables()
    )
    try:
        body = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 3}
        while True:
            assert server.poll() is None
            try:
                answer = httpx.post(
                    f"http://127.0.0.1:{port}/v1/chat/completions", json=body, timeout=SECONDS
                )
                break
            except httpx.ConnectError:
                time.sleep(0.1)
        assert answer.json()["usage"]["completion_tokens"] == 3
    finally:
        server.terminate()
        server.wait()
