"""Model files are described without being loaded, and hostile ones do no harm."""

import asyncio
import contextlib
import os
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from gguf import GGUFReader, GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.engine.formats.gguf_header import HeaderError, read_header
from specllama.engine.helpers.inspect.inspect_jobs import (
    FileMetadata,
    Outcome,
    ProjectorMetadata,
    Unreadable,
)
from specllama.engine.helpers.inspect.inspect_main import inspect
from specllama.engine.helpers.inspect.inspector import MetadataReader
from specllama.engine.shipped import model_path
from specllama.engine.wire.replies import Modality
from tools.models import hostile
from tools.models import zoo as models
from tools.models.build import ensure
from tools.models.zoo import Zoo, split_model, write_zoo

pytestmark = pytest.mark.slow

SHIPPED = model_path().read_bytes()


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    return write_zoo(tmp_path_factory.mktemp("zoo"))


def read_all(*paths: Path, reader: MetadataReader | None = None) -> list[Outcome]:
    outcomes = asyncio.run((reader or MetadataReader()).read_all(str(path) for path in paths))
    return [outcomes[str(path)] for path in paths]


def metadata_of(path: Path) -> FileMetadata:
    outcome = inspect(str(path))
    assert isinstance(outcome, FileMetadata), outcome
    return outcome


def reason(path: Path) -> str:
    outcome = inspect(str(path))
    assert isinstance(outcome, Unreadable), outcome
    assert outcome.reason.isprintable(), outcome
    return outcome.reason


# ---- good files ----------------------------------------------------------------------------


def test_capabilities_of_all_kinds_of_models(zoo: Zoo) -> None:
    found = {name: metadata_of(zoo.path(name)).capabilities for name in models.NAMES}
    assert found == {
        models.CHAT: ("completion", "insert", "tools"),
        models.OTHER_CHAT: ("completion", "insert"),
        models.FIM: ("completion", "insert"),
        models.EMBEDDER: ("embedding",),
        models.RERANKER: ("rerank",),
    }


@pytest.mark.parametrize("name", models.NAMES)
def test_numbers_are_those_of_the_package(zoo: Zoo, name: str) -> None:
    path = zoo.path(name)
    reader = GGUFReader(path)
    read = metadata_of(path)
    architecture = reader.fields["general.architecture"].contents()
    assert (read.architecture, read.name) == (architecture, name)
    assert read.n_params == sum(tensor.n_elements for tensor in reader.tensors)
    assert read.size == sum(tensor.n_bytes for tensor in reader.tensors)
    assert read.file_size == path.stat().st_size
    assert read.n_ctx_train == reader.fields[f"{architecture}.context_length"].contents()
    assert read.n_embd == reader.fields[f"{architecture}.embedding_length"].contents()
    assert read.n_vocab == len(reader.fields["tokenizer.ggml.tokens"].data)
    assert read.file_type == reader.fields["general.file_type"].contents()


def written(path: Path, add: Callable[[GGUFWriter], None]) -> Path:
    """A file with the tokens a, b, c, one tensor, and what `add` adds."""
    writer = GGUFWriter(path, "llama")
    add(writer)
    tensor = next(tensor for tensor in GGUFReader(model_path()).tensors)
    writer.add_tensor("a", tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("tokens", "fim"),
    [
        (["x", "<fim_prefix>", "<fim_suffix>", "<fim_middle>"], True),
        (["<PRE>", "<SUF>", "<MID>"], True),
        (["<fim_prefix>", "<fim_suffix>"], False),
        (["fim_prefix", "fim_suffix", "fim_middle"], False),
    ],
)
def test_fim_tokens_are_known_by_their_texts(tmp_path: Path, tokens: list[str], fim: bool) -> None:
    path = written(tmp_path / "x.gguf", lambda writer: writer.add_token_list(tokens))
    read = metadata_of(path)
    assert (read.fim, read.n_vocab) == (fim, len(tokens))


@pytest.mark.parametrize(
    ("template", "tools"),
    [("{% for t in tools %}{% endfor %}", True), ("{{ messages }} tools", False), ("{{", False)],
)
def test_templates_for_tools(tmp_path: Path, template: str, tools: bool) -> None:
    path = written(tmp_path / "x.gguf", lambda writer: writer.add_chat_template(template))
    read = metadata_of(path)
    assert (read.chat_template, read.tools) == (True, tools)


def test_a_split_model_is_all_of_its_parts(tmp_path: Path) -> None:
    parts = split_model(model_path(), tmp_path, "x", 3)
    whole, split = metadata_of(model_path()), metadata_of(parts[0])
    assert (split.n_params, split.size) == (whole.n_params, whole.size)
    assert split.file_size == sum(part.stat().st_size for part in parts)
    assert split.capabilities == whole.capabilities


def test_split_models_that_are_not_whole(tmp_path: Path) -> None:
    parts = split_model(model_path(), tmp_path, "x", 3)
    assert "part 2" in reason(parts[1]) or "architecture" in reason(parts[1])
    parts[1].rename(tmp_path / "aside")
    assert "x-00002-of-00003.gguf" in reason(parts[0])
    (tmp_path / "x-00002-of-00003.gguf").write_bytes(parts[2].read_bytes())
    assert reason(parts[0]) == "part 2 of 3 has another number in its metadata"
    other = split_model(model_path(), tmp_path, "y", 2)[0].rename(tmp_path / "y.gguf")
    assert reason(other) == "it is one of 2 parts, but its name isn't that of a part"


def test_files_that_are_no_model_of_their_own(tmp_path: Path) -> None:
    path = written(tmp_path / "x.gguf", lambda writer: writer.add_type("adapter"))
    assert reason(path) == "it is not a complete model (adapter, llama)"


# ---- hostile files -------------------------------------------------------------------------


def test_hostile_files_are_refused(tmp_path: Path) -> None:
    paths = hostile.write_hostile_files(tmp_path, model_path())
    assert {kind for kind, path in paths.items() if not reason(path)} == set()


@pytest.mark.parametrize(
    "add",
    [
        lambda writer: writer.add_string("general.type", "model\nor not"),
        lambda writer: writer.add_string("llama.context_length", "many"),
        lambda writer: writer.add_int32("llama.context_length", -1),
        lambda writer: writer.add_array("tokenizer.ggml.model", [1]),
        lambda writer: writer.add_string("tokenizer.ggml.tokens", "a"),
        lambda writer: writer.add_uint32("llama.pooling_type", 77),
        lambda writer: writer.add_uint32("general.alignment", 3),
    ],
)
def test_values_of_the_wrong_kind(tmp_path: Path, add: Callable[[GGUFWriter], None]) -> None:
    assert reason(written(tmp_path / "x.gguf", add))


def flipped(data: bytes, flips: list[tuple[int, int]]) -> bytes:
    changed = bytearray(data)
    for position, value in flips:
        changed[position] = value
    return bytes(changed)


@pytest.fixture(scope="module")
def spoiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spoiled") / "x.gguf"


@settings(max_examples=200, deadline=None)
@given(
    flips=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=4),
    length=st.one_of(st.none(), st.integers(0, len(SHIPPED))),
)
def test_spoiled_files_are_read_or_refused(
    spoiled: Path, flips: list[tuple[int, int]], length: int | None
) -> None:
    spoiled.write_bytes(flipped(SHIPPED, flips)[:length])
    outcome = inspect(str(spoiled))
    if isinstance(outcome, FileMetadata):
        assert outcome.architecture.isprintable()
        assert outcome.name.isprintable()
        assert outcome.capabilities
        assert length is None or length > outcome.size
    elif isinstance(outcome, Unreadable):
        assert outcome.reason.isprintable()
        assert 0 < len(outcome.reason) < 400


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=200), n_tensors=st.integers(0, 4), n_keys=st.integers(0, 4))
def test_random_headers_end_in_a_header_or_an_error(
    spoiled: Path, data: bytes, n_tensors: int, n_keys: int
) -> None:
    spoiled.write_bytes(hostile.HEADER.pack(hostile.MAGIC, 3, n_tensors, n_keys) + data)
    with open(spoiled, "rb") as file, contextlib.suppress(HeaderError):
        header = read_header(file)
        assert len(header.values) == n_keys


def test_files_of_another_byte_order(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(struct.pack(">4sIQQ", hostile.MAGIC, 3, 0, 0))
    assert reason(path) == "its byte order is big-endian"


# ---- the process ---------------------------------------------------------------------------


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    before = children()
    yield
    assert children() <= before


def test_one_process_reads_good_and_hostile_files(tmp_path: Path, zoo: Zoo) -> None:
    bad = list(hostile.write_hostile_files(tmp_path, model_path()).values())
    good = [zoo.path(name) for name in models.NAMES]
    paths = [*good, *bad, tmp_path / "missing.gguf", tmp_path, Path("\udcff.gguf"), Path("a\0b")]
    random.Random(1).shuffle(paths)
    outcomes = dict(zip(paths, read_all(*paths), strict=True))
    assert {path for path, o in outcomes.items() if isinstance(o, FileMetadata)} == set(good)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
def test_a_fifo_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.gguf")
    [outcome] = read_all(tmp_path / "x.gguf")
    assert isinstance(outcome, Unreadable)
    assert "not a regular file" in outcome.reason


def test_a_file_that_takes_too_long_does_not_keep_the_others(tmp_path: Path) -> None:
    endless = tmp_path / "endless.gguf"
    key = struct.pack("<Q", 1) + b"x" + struct.pack("<IIQ", hostile.ARRAY, hostile.STRING, 2**36)
    with open(endless, "wb") as file:
        file.write(hostile.HEADER.pack(hostile.MAGIC, 3, 0, 1) + key)
        file.truncate(2**40)  # of empty strings; takes no room on the disk
    reader = MetadataReader(time_limit=2)
    first, second = read_all(endless, model_path(), reader=reader)
    assert first == Unreadable("reading it takes more than 2 s")
    assert isinstance(second, FileMetadata)


def test_texts_that_would_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    with open(path, "wb") as file:
        file.write(hostile.HEADER.pack(hostile.MAGIC, 3, 0, 2000))
        for number in range(2000):
            name = str(number).encode().ljust(65_000, b"x")
            file.write(struct.pack("<Q", len(name)) + name + struct.pack("<IB", 0, 0))
    assert reason(path) == "a key is too long"


def test_outcomes_are_remembered_until_the_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(SHIPPED)
    reader = MetadataReader()
    assert reader.known(str(path)) is None
    [first] = read_all(path, reader=reader)
    assert isinstance(first, FileMetadata)
    assert reader.known(str(path)) is first
    assert read_all(path, reader=reader) == [first]
    path.write_bytes(SHIPPED[:1000])
    assert reader.known(str(path)) is None
    [second] = read_all(path, reader=reader)
    assert isinstance(second, Unreadable)
    path.unlink()
    assert isinstance(reader.known(str(path)), Unreadable)


def test_cancelling_ends_the_process(tmp_path: Path) -> None:
    async def cancelled() -> None:
        task = asyncio.create_task(MetadataReader().read_all([str(model_path())] * 3))
        while not children():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())


@pytest.mark.parametrize(
    ("name", "modalities"),
    [
        ("tiny-mmproj", ["vision"]),
        ("tiny-mmproj-audio", ["audio"]),
        ("tiny-mmproj-both", ["vision", "audio"]),
    ],
)
def test_projectors(name: str, modalities: list[Modality]) -> None:
    assert inspect(str(ensure(name))) == ProjectorMetadata(modalities)
