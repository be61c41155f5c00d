"""Sentences on what a device has no room for, with a stand-in for the device."""

import subprocess
import sys
from pathlib import Path

import pytest
from llama_cpp import llama_cpp

from contract_tests.kit.server import SECONDS
from specllama.engine.errors import BackendError
from specllama.engine.worker.backend import Context, Model, room
from specllama.engine.worker.backend.memory import Holdings, HostMemory
from tests.support.options_support import engine_options

pytestmark = pytest.mark.slow

MIB = 1 << 20
_ABORT = """
from specllama.engine.worker.backend import ggml, initialize, reported_abort
import ctypes
initialize()
with reported_abort(print):
    ggml.function("ggml_abort", None, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p)(
        b"/some/file.cpp", 941, b"it can't be"
    )
print("after")
"""


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device with 100 of 1000 MiB free, and tensors of at most 8 MiB."""
    monkeypatch.setattr(room, "devices", lambda: [("GPU0", "a GPU", 100 * MIB, 1000 * MIB)])
    monkeypatch.setattr(room, "largest_tensor", lambda _name: 8 * MIB)


def holdings() -> Holdings:
    """A context of 4096 tokens, in tensors of 16 MiB."""
    found = Holdings()
    for layer in range(3):
        found.note(f"load_tensors: layer {layer} assigned to device GPU0, is_swa = 0")
    found.note("load_tensors: GPU0 model buffer size = 300.00 MiB")
    found.begin_context(4096)
    for layer in range(2):
        found.note(f"llama_kv_cache: layer {layer}: dev = GPU0")
    found.note("llama_kv_cache: GPU0 KV buffer size = 64.00 MiB")
    return found


def test_the_message_has_the_free_the_requested_and_the_fitting_size(device: None) -> None:
    text = room.explain(holdings(), room.fits_in_tensors(holdings()))
    assert "GPU0 has 100 MiB of 1,000 MiB free" in text
    assert "300 MiB of weights and 64 MiB of KV cache" in text
    assert "4096 tokens were asked for: -c 2048 would fit" in text


def test_a_model_that_is_on_no_device_has_no_such_sentence(device: None, tmp_path: Path) -> None:
    assert room.explain(Holdings()) == ""
    assert room.explain_weights(Holdings(), weights(tmp_path, 1)) == ""
    assert room.fits_in_tensors(Holdings()) == 0


def weights(directory: Path, *sizes: int) -> str:
    """A file for each of these sizes in MiB, parts of one model."""
    for i, size in enumerate(sizes, start=1):
        with (directory / f"m-{i:05}-of-{len(sizes):05}.gguf").open("wb") as file:
            file.truncate(size * MIB)
    return str(directory / f"m-00001-of-{len(sizes):05}.gguf")


def test_layers_that_fit_are_in_proportion_to_the_free_memory(device: None, tmp_path: Path) -> None:
    text = room.explain_weights(holdings(), weights(tmp_path, 200, 100))
    assert "3 layers take 300 MiB: about -ngl 1 would fit" in text
    assert "a smaller -ngl may fit" in room.explain_weights(holdings(), weights(tmp_path, 90))


@pytest.mark.parametrize("most", [300, 512, 1000, 4000, 4095])
def test_a_size_that_works_is_found(most: int) -> None:
    found = room.fits_by_trial(4096, 256, lambda n: n <= most)
    assert found % 256 == 0
    assert found <= most < found + max(256, 4096 // 8)


def test_nothing_works() -> None:
    assert room.fits_by_trial(4096, 256, lambda _n: False) == 0


def test_a_context_that_cannot_be_allocated_is_tried_with_fewer_tokens(
    device: None, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specllama.engine.worker.backend import context_setup as module

    create, sizes = llama_cpp.llama_init_from_model, list[int]()

    def limited(handle: object, params: object) -> object:
        sizes.append(params.n_ctx)  # type: ignore[attr-defined]
        if sizes[-1] > 1024:
            monkeypatch.setattr(
                "specllama.engine.worker.backend.library._errors", ["failed to allocate buffer"]
            )
            return None
        return create(handle, params)

    monkeypatch.setattr(module, "holdings", holdings())
    monkeypatch.setattr(llama_cpp, "llama_init_from_model", limited)
    with pytest.raises(BackendError, match=r"failed to allocate.*32768 tokens.*-c 1024 would fit"):
        Context(model, engine_options(), 1, unified=False)
    assert sizes[0] == 32768


def test_the_error_of_a_context_without_room_has_the_memory(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(_model: object, _params: object) -> None:
        monkeypatch.setattr(
            "specllama.engine.worker.backend.library._errors", ["failed to allocate buffer"]
        )

    host = HostMemory(available=3 << 30, total=4 << 30)
    monkeypatch.setattr(room, "host_memory", lambda: host)
    monkeypatch.setattr(room, "devices", lambda: [])
    monkeypatch.setattr(llama_cpp, "llama_init_from_model", none)
    message = r"failed to allocate buffer; 3,072 MiB of 4,096 MiB are free; a smaller -c, or"
    with pytest.raises(BackendError, match=message):
        Context(model, engine_options(), 1, unified=False)
    monkeypatch.setattr(room, "host_memory", lambda: None)
    with pytest.raises(BackendError, match="failed to allocate buffer; a smaller -c, or"):
        Context(model, engine_options(), 1, unified=False)


def test_the_cpu_takes_large_tensors(model: Model) -> None:
    assert room.largest_tensor("CPU") > 1 << 40


def test_an_assertion_is_reported_in_one_sentence() -> None:
    done = subprocess.run(
        [sys.executable, "-u", "-c", _ABORT],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.strip() == "llama.cpp aborted: it can't be"


@pytest.mark.parametrize(
    ("error", "is_short"),
    [
        ("cannot create the context: failed to allocate buffer for kv cache", True),
        ("cannot load the model 'a.gguf': unable to allocate CPU buffer", True),
        # A message of an H200.
        (
            "cannot create the context: ggml_backend_cuda_buffer_type_alloc_buffer: allocating "
            "395507.81 MiB on device 0: cudaMalloc failed: out of memory",
            True,
        ),
        ("cannot load the model 'a.gguf': unknown model architecture: 'b'", False),
        ("cannot load the model '/alloc/a.gguf': unknown model architecture: 'b'", False),
    ],
)
def test_a_lack_of_memory_is_known_by_its_words(error: str, is_short: bool) -> None:
    assert room.is_short(error) == is_short
