"""The files that are downloaded from the hub."""

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import hf_hub_download, snapshot_download

from specllama.engine.catalog.catalog import cache_list
from specllama.engine.catalog.entry import wants_fetch
from specllama.engine.helpers.download.downloader import Transfer
from specllama.handlers.options.arguments import arguments
from tests.support.downloads import MODEL, PROJECTOR, REPOSITORY, failure, run, variant
from tests.support.hub import Hub
from tests.support.options_support import model_options

pytestmark = pytest.mark.slow


def test_a_model_and_its_projector(hub: Hub) -> None:
    hub.add(REPOSITORY, {"tiny-Q8_0.gguf": MODEL, "mmproj-F16.gguf": PROJECTOR, "README.md": b"#"})
    found, seen = run()
    assert Path(found.engine.model.model).read_bytes() == MODEL
    assert Path(found.engine.media.mmproj).read_bytes() == PROJECTOR
    assert Path(found.engine.model.model).name == "tiny-Q8_0.gguf"
    total = len(MODEL) + len(PROJECTOR)
    digest = hashlib.sha256(MODEL).hexdigest()
    assert seen[-1] == Transfer("mmproj-F16.gguf", total, total, digest)
    counts = [transfer.n_done for transfer in seen]
    assert counts == sorted(counts)
    assert len(hub.downloads()) == 2


def test_the_cache_is_huggingface_hubs(hub: Hub) -> None:
    hub.add(REPOSITORY, {"tiny-Q8_0.gguf": MODEL})
    found, _ = run()
    before = len(hub.requests)
    cache = os.path.join(os.environ["HF_HOME"], "hub")
    names: dict[str, Any] = {"cache_dir": cache, "endpoint": hub.url, "local_files_only": True}
    assert hf_hub_download(REPOSITORY, "tiny-Q8_0.gguf", **names) == found.engine.model.model
    assert snapshot_download(REPOSITORY, **names) == os.path.dirname(found.engine.model.model)
    assert len(hub.requests) == before


def test_huggingface_hubs_downloads_are_reused(hub: Hub) -> None:
    hub.add(REPOSITORY, {"tiny-Q8_0.gguf": MODEL})
    cache = os.path.join(os.environ["HF_HOME"], "hub")
    path = hf_hub_download(REPOSITORY, "tiny-Q8_0.gguf", cache_dir=cache, endpoint=hub.url)
    n_before = len(hub.downloads())
    found, _ = run()
    assert found.engine.model.model == path
    assert len(hub.downloads()) == n_before


def test_a_cached_model_costs_one_question(hub: Hub) -> None:
    hub.add(REPOSITORY, {"tiny-Q8_0.gguf": MODEL})
    first, _ = run()
    hub.requests.clear()
    second, seen = run()
    assert second == first
    assert [asked.path for asked in hub.requests] == [f"/api/models/{REPOSITORY}"]
    assert seen[-1].n_done == seen[-1].n_total == len(MODEL)


def test_only_changed_files_of_a_new_commit_are_fetched(hub: Hub) -> None:
    hub.add(REPOSITORY, {"tiny-Q8_0.gguf": MODEL, "mmproj.gguf": PROJECTOR})
    run()
    hub.add(REPOSITORY, {"tiny-Q8_0.gguf": variant(1), "mmproj.gguf": PROJECTOR})
    hub.requests.clear()
    found, _ = run()
    assert Path(found.engine.model.model).read_bytes() == variant(1)
    assert Path(found.engine.media.mmproj).read_bytes() == PROJECTOR
    assert len(hub.downloads()) == 1
    offline, _ = run(offline=True)
    assert offline.engine.model.model == found.engine.model.model


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("", "x-Q4_K_M.gguf"),
        (":q8_0", "x-Q8_0.gguf"),
        (":IQ2_XS", "x-IQ2_XS-00001-of-00002.gguf"),
        (":BF16", "BF16/x-BF16-00001-of-00002.gguf"),
    ],
)
def test_the_quantization_chooses(hub: Hub, asked: str, name: str) -> None:
    files = {
        name: variant(number, 5000)
        for number, name in enumerate(
            [
                "BF16/x-BF16-00001-of-00002.gguf",
                "BF16/x-BF16-00002-of-00002.gguf",
                "imatrix-Q4_K_M.gguf",
                "mmproj-Q4_K_M.gguf",
                "x-IQ2_XS-00001-of-00002.gguf",
                "x-IQ2_XS-00002-of-00002.gguf",
                "x-IQ4_K_M.gguf",
                "x-Q4_K_M.gguf",
                "x-Q8_0.gguf",
            ]
        )
    }
    hub.add(REPOSITORY, files)
    found, _ = run(hf_repo=REPOSITORY + asked, mmproj_auto=False)
    assert found.engine.model.model.endswith("/" + name)
    assert found.engine.media.mmproj == ""
    # All parts are in the same folder, and nothing else was downloaded.
    wanted = [name, name.replace("00001-of", "00002-of")] if "-of-" in name else [name]
    root = Path(found.engine.model.model.removesuffix(name))
    there = {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*.gguf")}
    assert there == {part: files[part] for part in wanted}


def test_without_a_known_quantization_it_is_the_first_model(hub: Hub) -> None:
    hub.add(
        REPOSITORY, {"mmproj-a.gguf": PROJECTOR, "b-Q6_K.gguf": MODEL, "c-Q5_K.gguf": PROJECTOR}
    )
    assert Path(run()[0].engine.model.model).name == "b-Q6_K.gguf"


def test_the_named_file_wins_over_the_quantization(hub: Hub) -> None:
    hub.add(REPOSITORY, {"a/x-Q8_0.gguf": MODEL, "x-Q4_K_M.gguf": PROJECTOR})
    found, _ = run(hf_repo=REPOSITORY + ":Q4_K_M", hf_file="a/x-Q8_0.gguf")
    assert found.engine.model.model.endswith("/a/x-Q8_0.gguf")


def test_the_projector_beside_the_model_of_similar_precision(hub: Hub) -> None:
    names = ["mmproj-F32.gguf", "a/mmproj-BF16.gguf", "a/mmproj-Q8_0.gguf", "b/mmproj-Q4_0.gguf"]
    files = {name: variant(number, 5000) for number, name in enumerate(names)}
    hub.add(REPOSITORY, {**files, "a/x-Q4_K_M.gguf": MODEL})
    assert run()[0].engine.media.mmproj.endswith("/a/mmproj-Q8_0.gguf")


def test_no_projector_is_looked_for_when_one_is_named(hub: Hub) -> None:
    hub.add(REPOSITORY, {"x.gguf": MODEL, "mmproj.gguf": PROJECTOR})
    hub.plain["other.gguf"] = variant(7, 9000)
    assert run(mmproj="own.gguf")[0].engine.media.mmproj == "own.gguf"
    found, seen = run(mmproj_url=hub.url + "/plain/other.gguf")
    assert Path(found.engine.media.mmproj).read_bytes() == variant(7, 9000)
    assert seen[-1].n_total == len(MODEL) + 9000


def test_files_that_need_fetching() -> None:
    assert wants_fetch(model_options(hf_repo="a/b"))
    assert wants_fetch(model_options(model_url="http://x/y.gguf"))
    assert wants_fetch(model_options(model="x.gguf", mmproj_url="http://x/y.gguf"))
    assert wants_fetch(model_options(model="x.gguf", hf_repo_draft="a/b", model_draft="c.gguf"))
    assert not wants_fetch(model_options(model="x.gguf", model_draft="c.gguf"))
    assert not wants_fetch(model_options())
    assert not wants_fetch(model_options(model="x.gguf", hf_repo="a/b"))


def test_a_draft_model_is_one_of_a_repository(hub: Hub) -> None:
    hub.add(REPOSITORY, {"tiny-Q8_0.gguf": MODEL})
    draft = variant(7)
    hub.add("maker/draft-GGUF", {"d-Q4_K_M.gguf": variant(8), "a/d-Q8_0.gguf": draft})
    found, seen = run(hf_repo_draft="maker/draft-GGUF", model_draft="a/d-Q8_0.gguf")
    assert Path(found.engine.model.model).read_bytes() == MODEL
    assert Path(found.engine.draft.model_draft).read_bytes() == draft
    assert seen[-1].n_total == len(MODEL) + len(draft)
    assert not wants_fetch(found)
    assert arguments(found)[1:] == [
        "--hf-repo", REPOSITORY, "--hf-repo-draft", "maker/draft-GGUF",
    ]  # fmt: skip
    # By its quantization, for a model that is here already.
    found, _ = run(hf_repo="", model="x.gguf", hf_repo_draft="maker/draft-GGUF:Q8_0")
    assert found.engine.model.model == "x.gguf"
    assert Path(found.engine.draft.model_draft).read_bytes() == draft
    message = failure(hf_repo="", model="x.gguf", hf_repo_draft="maker/none")
    assert "maker/none" in message


def test_a_projector_alone(hub: Hub) -> None:
    hub.plain["p.gguf"] = PROJECTOR
    found, _ = run(hf_repo="", model="x.gguf", mmproj_url=hub.url + "/plain/p.gguf")
    assert found.engine.model.model == "x.gguf"
    assert Path(found.engine.media.mmproj).read_bytes() == PROJECTOR


def test_the_list_of_the_cache(hub: Hub) -> None:
    assert cache_list(os.environ) == ["number of models in cache: 0"]
    hub.add(REPOSITORY, {"x-Q8_0.gguf": MODEL, "mmproj.gguf": PROJECTOR})
    run()
    hub.add("maker/another", {"y-Q4_0.gguf": PROJECTOR})
    run(hf_repo="maker/another")
    assert cache_list(os.environ) == [
        "number of models in cache: 2",
        "   1. maker/another:Q4_0",
        "   2. maker/tiny-GGUF:Q8_0",
    ]
