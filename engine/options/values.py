"""Converts the text of a command line or an environment variable to a checked value, and back.

Every function raises `OptionError` with a sentence that quotes the text and names what is expected;
the parser adds the option's name.
"""

import csv
import math
import re
from collections.abc import Sequence
from typing import get_args

from specllama.engine.params import SAMPLER_LETTERS, SamplerName, sampler_name

# llama.cpp gets numbers as C floats: other values than normal floats become 0 or infinity.
FLOAT_MAX = 3.4028234663852886e38
FLOAT_MIN = 1.1754943508222875e-38

_ON = ("on", "enabled", "true", "1")
_OFF = ("off", "disabled", "false", "0")
_AUTO = ("auto", "-1")

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_REAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_BIAS = re.compile(r"([0-9]{1,10})([+-])(.+)")
_MASK = re.compile(r"(0x)?[0-9a-fA-F]{1,128}")
_RPC_SERVER = re.compile(r"[A-Za-z0-9._-]{1,253}:([0-9]{1,5})")

MAX_DEVICES = 16  # llama_max_devices()
MAX_CPUS = 512  # GGML_MAX_N_THREADS
MAX_PATTERN = 1024  # characters; parsing nested groups of a longer one could overflow a stack


class OptionError(Exception):
    """An option can't be used as given. The message is one line for the user."""


def quote(text: str) -> str:
    """Returns `text` in quotes on one line, shortened in the middle if it is long."""
    short = text if len(text) <= 300 else f"{text[:57]}...{text[-57:]}"
    return '"' + short.encode("unicode_escape").decode("ascii") + '"'


def legible(text: str) -> str:
    """Returns `text` itself if it is printable and short, else as `quote` shows it."""
    return text if text.isprintable() and len(text) <= 300 else quote(text)


def check_text(text: str) -> None:
    if "\0" in text:
        raise OptionError(f"{quote(text)} contains a null character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise OptionError(f"{quote(text)} is not valid UTF-8") from None


# ---- scalars -----------------------------------------------------------------------------


def flag(text: str) -> bool:
    if text in _ON:
        return True
    if text in _OFF:
        return False
    expected = ", ".join(_ON + _OFF)
    raise OptionError(f"{quote(text)} is neither on nor off (one of {expected})")


def choice(text: str, choices: Sequence[str]) -> str:
    if text in choices:
        return text
    raise OptionError(f"{quote(text)} is not one of {', '.join(c for c in choices if c)}")


def switch(text: str) -> str:
    """Returns 'on', 'off' or 'auto' for any of their spellings."""
    for name, spellings in (("on", _ON), ("off", _OFF), ("auto", _AUTO)):
        if text in spellings:
            return name
    raise OptionError(f"{quote(text)} is not one of on, off, auto")


def integer(text: str, low: float | None = None, high: float | None = None) -> int:
    if not _INTEGER.fullmatch(text):
        raise OptionError(f"{quote(text)} is not a whole number{_range(low, high)}")
    value = int(text)
    _check_range(text, value, low, high)
    return value


def real(text: str, low: float | None = None, high: float | None = None) -> float:
    """Returns a finite number that a C float can hold."""
    if not _REAL.fullmatch(text):
        raise OptionError(f"{quote(text)} is not a number{_range(low, high)}")
    value = float(text)
    if abs(value) > FLOAT_MAX:
        raise OptionError(f"{quote(text)} is too large")
    if value and abs(value) < FLOAT_MIN:
        raise OptionError(f"{quote(text)} is too close to 0")
    _check_range(text, value, low, high)
    return value


def positive(text: str) -> float:
    value = real(text)
    if value <= 0:
        raise OptionError(f"{quote(text)} is out of range (more than 0)")
    return value


def _check_range(text: str, value: float, low: float | None, high: float | None) -> None:
    if (low is not None and value < low) or (high is not None and value > high):
        raise OptionError(f"{quote(text)} is out of range{_range(low, high)}")


def _range(low: float | None, high: float | None) -> str:
    if low is not None and high is not None:
        return f" ({low:.12g} to {high:.12g})"
    if low is not None:
        return f" ({low:.12g} or more)"
    return "" if high is None else f" ({high:.12g} or less)"


# ---- lists -------------------------------------------------------------------------------


def comma_separated(text: str) -> tuple[str, ...]:
    """Returns the non-empty elements. An element in double quotes may contain commas."""
    try:
        rows = list(csv.reader([text]))
    except csv.Error as error:
        raise OptionError(f"{quote(text)} is not a comma-separated list: {error}") from None
    elements = tuple(element.strip() for row in rows for element in row)
    elements = tuple(element for element in elements if element)
    if not elements:
        raise OptionError(f"{quote(text)} contains no elements")
    return elements


def show_comma_separated(elements: Sequence[str]) -> str:
    return ",".join(
        '"' + e.replace('"', '""') + '"' if "," in e or e.startswith('"') else e for e in elements
    )


def tensor_split(text: str) -> tuple[float, ...]:
    """Returns non-negative proportions, separated by commas or slashes, one for each device."""
    shares = tuple(real(share, 0) for share in re.split(r"[,/]", text))
    if len(shares) >= MAX_DEVICES:
        raise OptionError(f"{len(shares)} proportions are too many (at most {MAX_DEVICES - 1})")
    return shares


def show_tensor_split(shares: Sequence[float]) -> str:
    return ",".join(str(share) for share in shares)


def devices(text: str) -> tuple[str, ...]:
    names = comma_separated(text)
    if "none" in names and len(names) > 1:
        raise OptionError(f'{quote(text)}: "none" excludes other devices')
    return names


def override_kv(text: str) -> tuple[str, ...]:
    """Returns KEY=TYPE:VALUE elements that llama.cpp accepts."""
    elements = comma_separated(text)
    for element in elements:
        key, equals, typed = element.partition("=")
        kind, colon, value = typed.partition(":")
        if not (key and equals and colon):
            raise OptionError(f"{quote(element)} does not look like KEY=TYPE:VALUE")
        if len(key.encode()) > 127:
            raise OptionError(f"{quote(element)}: the key is longer than 127 bytes")
        _check_override(element, kind, value)
    return elements


def _check_override(element: str, kind: str, value: str) -> None:
    try:
        match kind:
            case "int":
                integer(value)
            case "float":
                real(value)
            case "bool":
                choice(value, ("true", "false"))
            case "str":
                if len(value.encode()) > 127:
                    raise OptionError("the text is longer than 127 bytes")
            case _:
                raise OptionError(f"{quote(kind)} is not one of int, float, bool, str")
    except OptionError as error:
        raise OptionError(f"{quote(element)}: {error}") from None


def override_tensor(text: str) -> tuple[str, ...]:
    """Returns PATTERN=BUFFER elements. Only llama.cpp can check the pattern and the buffer type."""
    elements = comma_separated(text)
    for element in elements:
        pattern, _, buffer = element.partition("=")
        if not (pattern and buffer):
            raise OptionError(f"{quote(element)} does not look like PATTERN=BUFFER")
        if len(pattern) > MAX_PATTERN:
            raise OptionError(f"{quote(pattern)} is longer than {MAX_PATTERN} characters")
    return elements


def scaled_files(text: str) -> tuple[tuple[str, float], ...]:
    """Returns FILE:SCALE elements. A path may contain colons, a number doesn't."""
    pairs = []
    for element in comma_separated(text):
        path, _, scale = element.rpartition(":")
        if not path:
            raise OptionError(f"{quote(element)} does not look like FILE:SCALE")
        try:
            pairs.append((path, real(scale)))
        except OptionError as error:
            raise OptionError(f"{quote(element)}: {error}") from None
    return tuple(pairs)


def show_scaled_files(pairs: Sequence[tuple[str, float]]) -> str:
    return show_comma_separated([f"{path}:{scale}" for path, scale in pairs])


def layer_range(text: str) -> tuple[int, int]:
    """Returns the first and the last layer."""
    numbers = [integer(part, 1, 2**31 - 1) for part in text.split()]
    if len(numbers) != 2 or numbers[0] > numbers[1]:
        raise OptionError(f"{quote(text)} is not a first and a last layer")
    return numbers[0], numbers[1]


def show_layer_range(layers: Sequence[int]) -> str:
    return " ".join(map(str, layers))


# ---- CPUs --------------------------------------------------------------------------------


def cpu_mask(text: str) -> tuple[int, ...]:
    """Returns the CPUs whose bits are set in a hexadecimal number."""
    if not _MASK.fullmatch(text):
        raise OptionError(f"{quote(text)} is not a hexadecimal mask of up to {MAX_CPUS} CPUs")
    bits = int(text, 16)
    cpus = tuple(cpu for cpu in range(MAX_CPUS) if bits >> cpu & 1)
    if not cpus:
        raise OptionError(f"{quote(text)} selects no CPU")
    return cpus


def show_cpu_mask(cpus: Sequence[int]) -> str:
    return f"{sum(1 << cpu for cpu in cpus):x}"


def cpu_range(text: str) -> tuple[int, ...]:
    """Returns all CPUs from the first to the last; one of the two may be missing."""
    first, dash, last = text.partition("-")
    if not dash or not (first or last):
        raise OptionError(f"{quote(text)} does not look like FIRST-LAST")
    low = integer(first, 0, MAX_CPUS - 1) if first else 0
    high = integer(last, 0, MAX_CPUS - 1) if last else MAX_CPUS - 1
    if low > high:
        raise OptionError(f"{quote(text)} selects no CPU")
    return tuple(range(low, high + 1))


def show_cpu_range(cpus: Sequence[int]) -> str:
    return f"{cpus[0]}-{cpus[-1]}" if cpus else ""


def fit(text: str) -> str:
    """Returns 'on' or 'off' for any of their spellings."""
    return "on" if flag(text) else "off"


MAX_FIT_TARGET = 1 << 30  # MiB


def fit_target(text: str) -> tuple[int, ...]:
    """Returns sizes in MiB, separated by commas or, as in llama-server, slashes."""
    sizes = tuple(integer(size, 0, MAX_FIT_TARGET) for size in re.split(r"[,/]", text))
    if len(sizes) >= MAX_DEVICES:
        raise OptionError(f"{len(sizes)} sizes are too many (at most {MAX_DEVICES - 1})")
    return sizes


def show_fit_target(sizes: Sequence[int]) -> str:
    return show_comma_separated([str(size) for size in sizes])


MAX_LORA_SCALE = 1e6  # as in requests; much larger scales make numbers of the model infinite


def lora(text: str) -> tuple[tuple[str, float], ...]:
    return tuple((path, 1.0) for path in comma_separated(text))


def show_lora(adapters: Sequence[tuple[str, float]]) -> str:
    return show_comma_separated([path for path, _ in adapters])


def lora_scaled(text: str) -> tuple[tuple[str, float], ...]:
    """Returns FILE:SCALE elements with scales in the range of requests."""
    adapters = scaled_files(text)
    for _, scale in adapters:
        _check_range(f"{scale:g}", scale, -MAX_LORA_SCALE, MAX_LORA_SCALE)
    return adapters


# ---- sampling ----------------------------------------------------------------------------


def samplers(text: str) -> tuple[SamplerName, ...]:
    """Returns the names in order, separated by semicolons."""
    chain = []
    for name in text.split(";"):
        known = sampler_name(name)
        if known is None:
            expected = ", ".join(get_args(SamplerName))
            raise OptionError(f"unknown sampler {quote(name)} (known: {expected})")
        chain.append(known)
    return tuple(chain)


def show_samplers(chain: Sequence[str]) -> str:
    return ";".join(chain)


def sampler_sequence(text: str) -> str:
    for letter in text:
        if letter not in SAMPLER_LETTERS:
            known = "".join(SAMPLER_LETTERS)
            raise OptionError(f"unknown sampler {quote(letter)} in {quote(text)} (known: {known})")
    return text


def logit_bias(text: str) -> tuple[tuple[int, float], ...]:
    """Returns a token id and a bias, written for example 15043-1.5 or 15043-inf."""
    match = _BIAS.fullmatch(text)
    if not match or int(match[1]) > 2**31 - 1:
        raise OptionError(f"{quote(text)} does not look like TOKEN_ID+BIAS or TOKEN_ID-BIAS")
    amount = math.inf if match[3] == "inf" else real(match[3], 0)
    return ((int(match[1]), -amount if match[2] == "-" else amount),)


def show_logit_bias(bias: Sequence[tuple[int, float]]) -> str:
    return ",".join(f"{token}{amount:+}" for token, amount in bias)


# ---- models and devices ------------------------------------------------------------------


def idle_seconds(text: str) -> int:
    """Returns -1 (never), or a number of seconds."""
    value = integer(text, -1, 2**31 - 1)
    if value == 0:
        raise OptionError(
            f"{quote(text)} seconds would unload the model before it works (1 or more, or -1)"
        )
    return value


def rpc_servers(text: str) -> tuple[str, ...]:
    """Returns HOST:PORT elements. llama.cpp accepts only names and IPv4 addresses as HOST."""
    servers = comma_separated(text)
    for server in servers:
        match = _RPC_SERVER.fullmatch(server)
        if not match or not 0 < int(match[1]) < 65536:
            raise OptionError(f"{quote(server)} does not look like HOST:PORT")
    return servers


# ---- others ------------------------------------------------------------------------------


def slots(text: str) -> int:
    """Returns -1 (automatic) or a number of slots, at most llama.cpp's number of sequences
    (LLAMA_MAX_SEQ)."""
    value = integer(text, -1, 256)
    if value == 0:
        raise OptionError(f"{quote(text)} is not a number of slots (1 to 256, or -1)")
    return value


def gpu_layers(text: str) -> int | str:
    """Returns a count, 'auto' or 'all'; -1 and -2 are llama.cpp's numbers for these two."""
    named = {"auto": "auto", "-1": "auto", "all": "all", "-2": "all"}.get(text)
    if named:
        return named
    try:
        return integer(text, 0, 2**31 - 1)
    except OptionError:
        message = f"{quote(text)} is neither a number of layers (0 or more) nor auto nor all"
        raise OptionError(message) from None
