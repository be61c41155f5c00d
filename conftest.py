"""Settings for every run of the tests. They use neither the caches nor the settings of the user who
runs them."""

import gc
import os
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import settings

from tests.support.covering import covering

settings.register_profile("default run", deadline=None)
settings.register_profile("exhaustive", deadline=None, max_examples=2000)
settings.load_profile("default run")

_SETTINGS = ("LLAMA_", "HF_", "HUGGINGFACE_", "MODEL_ENDPOINT")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--llama-cpp",
        metavar="FOLDER",
        help="llama.cpp's sources of the pinned version, for the tests that compare with them",
    )
    parser.addoption(
        "--exhaustive",
        action="store_true",
        help="all combinations of parameters, twenty times as many examples, the soaks (hours)",
    )
    parser.addoption(
        "--quick",
        action="store_true",
        help="only tests that are not marked as slow; each that starts a process fails",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--exhaustive"):
        settings.load_profile("exhaustive")
    if config.getoption("--quick"):
        config.pluginmanager.register(_NoProcesses())
    if hasattr(config, "workerinput"):
        return  # of pytest-xdist: its environment is that of the process that started it
    directory = tempfile.TemporaryDirectory(prefix="specllama-tests-", ignore_cleanup_errors=True)
    config.add_cleanup(directory.cleanup)
    for name in [name for name in os.environ if name.startswith(_SETTINGS)]:
        del os.environ[name]
    os.environ.update(XDG_CACHE_HOME=directory.name, LOCALAPPDATA=directory.name)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Takes the thousands of collected tests from the objects that each garbage collection goes
    through: a tenth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out tests that only an exhaustive run has.

    Two tests with the same id are an error: pytest-xdist would run only one of them.
    """
    twice = [name for name, n in Counter(item.nodeid for item in items).items() if n > 1]
    if twice:
        raise pytest.UsageError(f"several tests have the same id: {', '.join(twice)}")
    if not config.getoption("--exhaustive"):
        left_out = _only_exhaustive(items)
        if config.getoption("--quick"):
            left_out |= {item for item in items if item.get_closest_marker("slow")}
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=[*left_out])


class _NoProcesses:
    """Fails each test that has started a process."""

    def __init__(self) -> None:
        self._started = False
        sys.addaudithook(self._note)

    def _note(self, event: str, _: Any) -> None:
        self._started |= event in ("subprocess.Popen", "os.posix_spawn", "os.fork")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        self._started = False  # a library may start one when it is imported

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self) -> Generator[None, Any, Any]:
        result = yield
        started, self._started = self._started, False
        if started:
            pytest.fail("a quick test starts no process: mark this one with pytest.mark.slow")
        return result


def _only_exhaustive(items: list[pytest.Item]) -> set[pytest.Item]:
    """Tests marked so, and combinations of parameters that bring no new value, or pair of them."""
    left_out = {item for item in items if item.get_closest_marker("exhaustive")}
    groups: defaultdict[tuple[Any, int], list[pytest.Item]] = defaultdict(list)
    for item in items:
        marker = item.get_closest_marker("covering")
        if marker and item not in left_out and hasattr(item, "callspec"):
            groups[(item.path, item.nodeid.partition("[")[0]), marker.args[0]].append(item)
    for (_, strength), group in groups.items():
        kept = covering(_values(group), strength)
        left_out |= {item for at, item in enumerate(group) if at not in kept}
    return left_out


def _values(group: list[Any]) -> list[dict[str, int]]:
    """Which value each parameter of a function's tests has, those of its fixtures included.

    pytest's own `indices` count combinations, not values. Equal ones are one object there.
    """
    numbers: defaultdict[str, dict[int, int]] = defaultdict(dict)
    return [
        {
            name: numbers[name].setdefault(id(value), len(numbers[name]))
            for name, value in item.callspec.params.items()
        }
        for item in group
    ]
