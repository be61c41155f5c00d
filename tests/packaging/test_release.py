"""The scripts of a release: what they check. CONTRIBUTING.md says how they were run."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "packaging"

CHANGELOG = """# Changelog

## [Unreleased]

## [0.2.0] - 2026-11-29

### Added

- Something.

## [0.1.0] - 2026-11-21

The first version.
"""
VARIANTS = ["llama_cpp/lib/libggml-cpu-x64.so", "llama_cpp/lib/libggml-cpu-haswell.so",
            "llama_cpp/lib/libggml-cpu-zen4.so"]  # fmt: skip
LIBRARIES = [f"llama_cpp/lib/lib{name}.so" for name in ("llama", "ggml", "ggml-base", "mtmd")]


def script(name: str) -> ModuleType:
    """The script `name`, which is no part of a package."""
    spec = importlib.util.spec_from_file_location(f"{name}_script", SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_notes_of_a_release_are_its_part_of_the_changelog() -> None:
    release = script("release")
    assert release.notes(CHANGELOG, "0.2.0") == "### Added\n\n- Something."
    assert release.notes(CHANGELOG, "0.1.0") == "The first version."


@pytest.mark.parametrize("version", ["0.3.0", "0.2", "Unreleased"])
def test_a_version_that_the_changelog_lacks_ends_the_release(version: str) -> None:
    with pytest.raises(SystemExit, match=version):
        script("release").notes(CHANGELOG, version)


def test_the_version_is_the_same_everywhere() -> None:
    from specllama import __version__

    assert script("release").project_version() == __version__


def test_a_tag_of_another_version_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        script("release").main(["notes", "--tag", "v0.0.7"])
    assert "v0.0.7" in capsys.readouterr().err


def test_the_portable_wheel_is_of_the_pinned_version() -> None:
    assert script("portable_wheel").requirement().startswith("llama-cpp-python==")


def test_a_complete_portable_wheel_passes(capsys: pytest.CaptureFixture[str]) -> None:
    script("portable_wheel").check([*LIBRARIES, *VARIANTS, "llama_cpp/__init__.py"])
    assert capsys.readouterr().out == "variants: haswell, x64, zen4\n"


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ([*LIBRARIES, *VARIANTS, "bin/libggml-cpu-x64.so"], "outside of llama_cpp/lib: bin/"),
        ([*LIBRARIES, *VARIANTS, "llama_cpp/lib/libllama.so.0"], "more than one file each: llama"),
        ([*LIBRARIES[1:], *VARIANTS], "missing libraries: llama"),
        ([*LIBRARIES, "llama_cpp/lib/libggml-cpu.so"], "variants"),
    ],
)
def test_an_incomplete_portable_wheel_is_refused(names: list[str], reason: str) -> None:
    with pytest.raises(SystemExit, match=reason):
        script("portable_wheel").check(names)
