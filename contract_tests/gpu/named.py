"""Creates what the options of a case refer to: files, a directory, a process that lends its
device."""

import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from gguf import GGUFReader

from contract_tests.own.servers import model_file
from specllama.engine.shipped import model_path
from tests.support.control_vectors import write_vector
from tests.support.lending import lending
from tools.models import build
from tools.models.zoo import write_zoo

SHIPPED, ADAPTER, VECTOR, EYES, DIRECTORY, LENT, DEVICE, ZOO = (
    f"<{name}>"
    for name in (
        "shipped",
        "lora",
        "vector",
        "mmproj",
        "directory",
        "host:port",
        "device",
        "models",
    )
)
"""Placeholders in options for things that exist only while a case runs."""
SOFTWARE = "Vulkan0"
"""The name of Mesa's software device if there is no other device."""
STRENGTH = 0.5
"""The strength of the control vector, relative to a layer's output."""


def there(
    options: tuple[str, ...], directory: Path, stack: ExitStack, device: str = SOFTWARE
) -> list[str]:
    """Returns the options with their placeholders replaced. `stack` ends the things that they refer
    to."""
    return [device if option == DEVICE else _there(option, directory, stack) for option in options]


def _there(option: str, directory: Path, stack: ExitStack) -> str:
    if option == SHIPPED:
        return str(model_path())
    if option == ADAPTER:
        return str(build.ensure_adapter("lora-a"))
    if option == VECTOR:
        return _vector(directory / "vector.gguf")
    if option == EYES:
        return model_file("tiny-mmproj")
    if option == DIRECTORY:
        return str(directory)
    if option == ZOO:
        return str(write_zoo(Path(tempfile.mkdtemp(dir=directory))).directory)
    if option == LENT:
        return stack.enter_context(lending())
    return option


def _vector(path: Path) -> str:
    fields = GGUFReader(model_path()).fields
    n_embd, n_layers = (
        int(fields[f"llama.{name}"].contents()) for name in ("embedding_length", "block_count")
    )
    generator = np.random.default_rng(1)
    return write_vector(
        path,
        {
            f"direction.{layer}": (STRENGTH * generator.normal(size=n_embd)).astype(np.float32)
            for layer in range(1, n_layers)
        },
    )
