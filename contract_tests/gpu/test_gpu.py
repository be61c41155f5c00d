"""The parts of `python -m contract_tests.gpu` that need no device."""

import argparse
from contextlib import ExitStack, nullcontext
from pathlib import Path

import pytest

from contract_tests.gpu import checks, environment, memory, named, results
from contract_tests.gpu.__main__ import PART, is_chosen
from contract_tests.gpu.cases import CASES, Case
from contract_tests.gpu.trying import tried, without_devices
from contract_tests.own.servers import MODEL, ROOT
from specllama.handlers.options import parse

NAMES = [case.name for case in CASES]
DEVICE = {"name": "Vulkan0", "n_layers": 3, "kv_cache": 1}
CPU = {"name": "CPU", "n_layers": 0, "kv_cache": 0}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_configuration_is_one_that_the_server_takes(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(named, "lending", lambda: nullcontext("127.0.0.1:1"))
    for options in (case.options, (*without_devices(case.options), "-dev", "none")):
        with ExitStack() as stack:
            parse(["-m", MODEL, *named.there(options, tmp_path, stack)], {})
    assert case.check in {*checks.CHECKS, *memory.CHECKS}


def test_names_are_unique() -> None:
    assert len(set(NAMES)) == len(NAMES)


def test_the_memory_of_the_host_is_not_filled() -> None:
    full = {case.name for case in CASES if case.is_full}
    assert full == {"full device, at load", "full device, while it runs"}
    for device, names in ((memory.CPU, set()), (named.SOFTWARE, set()), ("CUDA0", full)):
        given = argparse.Namespace(all=True, choice=".", device=device)
        assert {case.name for case in CASES if is_chosen(case, given)} & full == names


def test_any_failure_is_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> str:
        raise KeyError("devices")

    monkeypatch.setattr(named, "there", fails)
    assert tried(CASES[0], tmp_path) == "KeyError: 'devices'"


def test_a_server_on_the_cpu_has_no_option_of_devices() -> None:
    options = ("-ngl", "all", "-nkvo", "-ts", "1,2", "-c", "512", "-fa", "on")
    assert without_devices(options) == ["-c", "512", "-fa", "on"]


def test_a_cache_in_the_wrong_place_is_noticed() -> None:
    checks.located(Case("", (), on_device=("layers", "kv_cache")), [DEVICE, CPU])
    with pytest.raises(AssertionError, match="no kv_cache where it should be"):
        checks.located(Case("", (), on_cpu=("kv_cache",)), [DEVICE, CPU])
    checks.located(Case("", (), n_devices=1), [DEVICE, CPU])
    with pytest.raises(AssertionError, match="layers on 1 devices"):
        checks.located(Case("", (), n_devices=2), [DEVICE, CPU])


def test_other_probabilities_are_noticed() -> None:
    checks.close({1: -0.1, 2: -2.0}, {1: -0.15, 2: -2.05}, 0.1)
    checks.close({1: -0.01, 2: -5.0}, {1: -0.01, 2: -5.5}, 0.1)  # of an unlikely token
    with pytest.raises(AssertionError, match=r"differ by 0\.13"):
        checks.close({1: -0.1, 2: -2.0}, {1: -0.1, 2: -3.0}, 0.1)
    with pytest.raises(AssertionError, match="other tokens"):
        checks.close({1: -0.1, 2: -2.0, 3: -3.0}, {4: -0.1, 5: -2.0, 3: -3.0}, 0.1)


def test_missing_requirements_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    lacks = " ".join(environment.missing(tmp_path, [str(tmp_path / "*.json")]))
    for package in ("cmake", "glslc", "libvulkan-dev", "mesa-vulkan-drivers"):
        assert package in lacks
    header = tmp_path / "vulkan" / "vulkan_core.h"
    header.parent.mkdir()
    header.write_text("#define VK_HEADER_VERSION 239", "utf-8")
    assert "newer headers" in " ".join(environment.missing(tmp_path))
    header.write_text(f"#define {environment.NEW_ENOUGH}", "utf-8")
    assert "newer headers" not in " ".join(environment.missing(tmp_path))


def test_the_build_is_that_of_the_project() -> None:
    found = environment.pinned((ROOT / "pyproject.toml").read_text("utf-8"))
    assert found.startswith("llama-cpp-python==")


def test_results_are_kept_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    assert results.stored(path) == {}
    results.store({NAMES[0]: results.PASSED, NAMES[1]: "a | b"}, path)
    lines = results.table(results.stored(path)).splitlines()
    assert len(lines) == len(CASES) + 2
    assert lines[2].endswith("| passed |")
    assert lines[3].endswith("| a \\| b |")
    assert lines[4].endswith("| not tried |")


def test_the_documents_have_the_results() -> None:
    found = results.stored()
    assert found.keys() <= {*NAMES, *results.kit_files()}, "a removed case has a result"
    text = (ROOT / "docs" / "reports" / "gpu.md").read_text("utf-8")
    for table in (results.table(found), results.kit_table(found)):
        assert table in text, "replace it by the output of `nox -s gpu -- --table`"


@pytest.mark.parametrize(
    ("lines", "said", "is_fine"),
    [
        (["..s.", "3 passed, 1 skipped in 2.10s"], "3 passed, 1 skipped", True),
        (["ss", "2 skipped in 0.10s"], "2 skipped", True),
        (["=== 1 passed, 2 warnings in 3.00s (0:00:03) ==="], "1 passed", True),
        (
            ["FAILED a/test_b.py::test_c[x-y] - assert 1 == 2", "1 failed, 3 passed in 1.00s"],
            "3 passed, 1 failed, test_c[x-y]",
            False,
        ),
        (
            ["ERROR a/test_b.py::test_c - OSError", "1 passed, 2 errors in 1.00s"],
            "1 passed, 2 errors, test_c",
            False,
        ),
        (["no tests ran in 0.01s"], results.ENDED, False),
        ([], results.ENDED, False),
    ],
)
def test_summaries_of_pytest(lines: list[str], said: str, is_fine: bool) -> None:
    assert results.of_pytest(lines) == said
    assert results.is_fine(said) is is_fine


def test_files_of_the_kit_are_named_from_its_folder() -> None:
    files = results.kit_files()
    assert len(files) > 20
    assert {*PART} <= {*files}
    assert not results.is_fine(None)
