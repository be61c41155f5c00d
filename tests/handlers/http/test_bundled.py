"""The cached description always equals the files, whatever happens to the copy."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from connexion.exceptions import InvalidSpecification
from connexion.spec import Specification

from specllama.engine.host import user_cache
from specllama.handlers.binding.application import Resolved, check, resolved
from specllama.handlers.description import description_path
from specllama.handlers.http.description import KEPT, bundle, bundled


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "openapi" / "root.yaml"
    path.parent.mkdir()
    path.write_text('paths: {/a: {$ref: "more.yaml#/a"}}\n')
    (path.parent / "more.yaml").write_text("a: {get: {}}\n")
    return path


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache"), "LOCALAPPDATA": str(tmp_path / "cache")}


@pytest.fixture
def checked() -> list[Any]:
    return []


def copies(environ: dict[str, str]) -> list[Path]:
    return sorted(user_cache(environ).glob("descriptions/*"))


linux = pytest.mark.skipif(os.uname().sysname == "Darwin", reason="caches are elsewhere")


@linux
def test_it_is_made_and_checked_once(
    root: Path, environ: dict[str, str], checked: list[Any]
) -> None:
    first = bundled(root, environ, checked.append)
    second = bundled(root, environ, checked.append)
    assert first == second == bundle(root)
    assert len(checked) == 1
    second["paths"].clear()
    assert bundled(root, environ) == first


@linux
def test_a_change_of_any_file_counts(root: Path, environ: dict[str, str]) -> None:
    bundled(root, environ)
    (root.parent / "more.yaml").write_text("a: {put: {}}\n")
    assert list(bundled(root, environ)["paths"]["/a"]) == ["put"]
    root.write_text("paths: {}\n")
    assert bundled(root, environ)["paths"] == {}
    (root.parent / "more.yaml").write_text("a: {get: {}}\n")
    root.write_text('paths: {/a: {$ref: "more.yaml#/a"}}\n')
    assert list(bundled(root, environ)["paths"]["/a"]) == ["get"]


@linux
@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff\n{}", "cut", "changed"])
def test_a_damaged_copy_is_made_anew(
    root: Path, environ: dict[str, str], checked: list[Any], damage: bytes | str
) -> None:
    whole = bundled(root, environ, checked.append)
    [copy] = copies(environ)
    content = copy.read_bytes()
    if damage == "cut":
        damage = content[:-1]
    elif damage == "changed":
        damage = content.replace(b"get", b"put")
    assert isinstance(damage, bytes)
    copy.write_bytes(damage)
    assert bundled(root, environ, checked.append) == whole
    assert copy.read_bytes() == content
    assert len(checked) == 2


def test_a_place_that_cannot_be_written_does_no_harm(root: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    environ = {"XDG_CACHE_HOME": str(blocked), "LOCALAPPDATA": str(blocked)}
    assert bundled(root, environ) == bundled(root, environ) == bundle(root)


def test_a_user_without_a_home(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert bundled(root, {}) == bundle(root)


@linux
def test_an_invalid_copy_is_not_kept(root: Path, environ: dict[str, str]) -> None:
    def refuse(document: object) -> None:
        raise InvalidSpecification("no")

    for _ in range(2):
        with pytest.raises(InvalidSpecification):
            bundled(root, environ, refuse)
    assert copies(environ) == []
    with pytest.raises(InvalidSpecification):
        check({"openapi": "3.0.3", "paths": {"/a": {"get": {}}}})


@linux
def test_many_at_once(root: Path, environ: dict[str, str]) -> None:
    found: list[Any] = []
    begin = threading.Barrier(8)

    def run() -> None:
        begin.wait()
        found.append(bundled(root, environ))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [bundle(root)] * 8
    assert [copy.suffix for copy in copies(environ)] == [".json"]


@linux
def test_few_copies_are_kept(root: Path, environ: dict[str, str]) -> None:
    for n in range(KEPT + 3):
        root.write_text(f"x-n: {n}\npaths: {{}}\n")
        assert bundled(root, environ)["x-n"] == n
    assert len(copies(environ)) == KEPT


def test_it_equals_connexions_description() -> None:
    ours = Resolved(bundle(description_path()))
    theirs = Specification.load(description_path())
    assert _without_descriptions(ours["paths"]) == _without_descriptions(theirs["paths"])
    assert ours.security == theirs.security
    assert ours.security_schemes == theirs.security_schemes
    assert (ours.base_path, ours.version) == (theirs.base_path, theirs.version)


def _without_descriptions(node: Any) -> Any:
    """Returns a copy of `node` without the texts to which the bundler adds defaults."""
    if isinstance(node, list):
        return [_without_descriptions(child) for child in node]
    if not isinstance(node, dict):
        return node
    return {
        name: _without_descriptions(child)
        for name, child in node.items()
        if name != "description" or isinstance(child, dict)
    }


def test_a_target_of_two_references_is_one_object() -> None:
    document = {"a": {"$ref": "#/c/x~1y"}, "b": [{"$ref": "#/c/x~1y"}], "c": {"x/y": {"z": 1}}}
    copy = resolved(document)
    assert copy["a"] == {"z": 1}
    assert copy["a"] is copy["b"][0]
    copy["a"]["z"] = 2
    assert document["c"] == {"x/y": {"z": 1}}
