"""Options, hooks and fixtures of the kit (`contract_tests.kit.plugin`)."""

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from contract_tests.kit import fuzzing, lint
from contract_tests.kit.discovery import UnreachableError, discover
from contract_tests.kit.items import is_for
from contract_tests.kit.server import API_KEY, Launcher, OwnServer, Server, Start
from contract_tests.kit.watching import Watch

WATCH = pytest.StashKey[Watch]()
"""The watch on all requests to the server at --base-url."""


class Hooks:
    @pytest.hookspec(firstresult=True)
    def pytest_contract_launcher(self) -> Launcher | None:
        """Returns a launcher for servers that the tests may configure, kill and fill up."""
        return None


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(Hooks)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("contract tests")
    group.addoption("--base-url", help="test the server at this URL instead of starting one")
    group.addoption("--api-key", help="the server's API key, if it needs one")
    group.addoption(
        "--all-families",
        action="store_true",
        help="test the tool calls of all families of chat templates, not only the most different",
    )
    group.addoption(
        "--max-examples",
        type=int,
        default=fuzzing.settings.max_examples,
        help="generated requests per operation and mode (default: %(default)s)",
    )
    group.addoption(
        "--soak",
        type=int,
        default=500,
        help="requests that test_soak.py sends (default: %(default)s)",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Modules parametrize their tests at import, before there is any fixture.
    fuzzing.settings.max_examples = config.getoption("--max-examples")
    base_url = config.getoption("--base-url")
    thorough = config.getoption("--max-examples") > fuzzing.Settings.max_examples
    fuzzing.settings.in_full = bool(base_url) or thorough
    fuzzing.settings.api_key = config.getoption("--api-key") if base_url else API_KEY
    if base_url and WATCH not in config.stash:
        # Modules check at import what the server offers.
        try:
            offer = discover(Server(base_url, config.getoption("--api-key")))
        except UnreachableError as error:
            raise pytest.UsageError(str(error)) from error
        config.stash[WATCH] = Watch(offer)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if watch := config.stash.get(WATCH, None):
        kept: list[pytest.Item] = []
        left_out: list[pytest.Item] = []
        for item in items:
            (kept if is_for(item, watch.offer.absent) else left_out).append(item)
        items[:] = kept
        config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session")
def launcher(request: pytest.FixtureRequest) -> Launcher:
    """Returns the launcher. Skips tests that need servers of their own when there is only
    --base-url."""
    if request.config.getoption("--base-url"):
        pytest.skip("needs a server of its own, with other options; there is only --base-url")
    found: Launcher | None = request.config.hook.pytest_contract_launcher()
    if found is None:
        raise pytest.UsageError("pass --base-url: no plugin starts a server")
    return found


@pytest.fixture(scope="session")
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """The server under test: the one at --base-url, or one with default options that we start. All
    tests share it, so they must not depend on each other's requests.

    Equal requests get equal texts from our server, whatever it served before; see
    test_reproducibility.py.
    """
    if url := request.config.getoption("--base-url"):
        outside = Server(url, request.config.getoption("--api-key"))
        watch = request.config.stash[WATCH]
        outside.hear = watch.hear
        outside.offers = watch.offer.has
        with watch.listening():
            yield outside
        outside.close()
        return
    launcher: Launcher = request.getfixturevalue("launcher")
    own = launcher.start(tmp_path_factory.mktemp("server"), api_key=API_KEY)
    request.config.stash[_logs].append(own.log)
    yield own
    own.close()


def _starter(
    request: pytest.FixtureRequest, launcher: Launcher, directory: Path
) -> Iterator[Start]:
    servers: list[OwnServer] = []

    def starting(*argv: str, how: Start = launcher.start, **options: Any) -> OwnServer:
        own = how(directory, *argv, **options)
        servers.append(own)
        request.config.stash[_logs].append(own.log)
        return own

    yield starting
    for own in servers:
        own.close()


@pytest.fixture
def own_server(
    request: pytest.FixtureRequest, launcher: Launcher, tmp_path: Path
) -> Iterator[Start]:
    """Starts servers of one test, to be configured, killed or filled up."""
    yield from _starter(request, launcher, tmp_path)


@pytest.fixture(scope="module")
def module_server(
    request: pytest.FixtureRequest, launcher: Launcher, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Start]:
    """Starts servers that all tests of a module share."""
    yield from _starter(request, launcher, tmp_path_factory.mktemp("servers"))


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment variables with which a router finds no models of the user who runs the tests."""
    return {"HF_HUB_CACHE": str(tmp_path_factory.mktemp("hub"))}


# ---- the server's log in reports of failures ------------------------------------------------

_logs = pytest.StashKey[list[Path]]()
LOG_END = 4000  # characters


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[_logs] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for log in item.config.stash[_logs][-3:]:
            if log.exists() and (text := log.read_text("utf-8", "replace")):
                report.sections.append((f"{log.name}, the end", text[-LOG_END:]))
    return report


@pytest.fixture(scope="module")
def document() -> lint.Document:
    return lint.load()
