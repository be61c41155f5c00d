"""Numbers in requests are clamped to their ranges and made whole, as the description says."""

import struct
from typing import Any

import pytest

from contract_tests.kit import contract
from contract_tests.kit.bodies import body
from contract_tests.kit.server import Server

HAS_DEFAULT = {"dry_base"}
"""Fields for which values below 1 mean the default."""


def fields() -> dict[str, dict[str, Any]]:
    """Returns the number fields of the native operation that `generation_settings` shows."""
    operation = contract.operations()["create_completion"].definition
    found: dict[str, dict[str, Any]] = {}
    pending = [operation["requestBody"]["content"][contract.JSON]["schema"]]
    while pending:
        schema = pending.pop()
        found |= schema.get("properties", {})
        pending += schema.get("allOf", ())
    result = operation["responses"]["200"]["content"][contract.JSON]["schema"]
    shown = result["anyOf"][0]["properties"]["generation_settings"]["properties"]
    return {
        name: schema
        for name, schema in found.items()
        if name in shown and not name.startswith("speculative.")  # without a draft model
    }


def applied(server: Server, name: str, value: float) -> Any:
    request = body("create_completion", **{"n_predict": 1, name: value})
    answer = contract.check(server.post("/completion", request))
    return answer["generation_settings"][name]


def single(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


@pytest.mark.parametrize("value", [-1e308, -(10**30), -1, -0.5, 0, 0.5, 1, 1.5, 10**30, 1e308])
def test_a_number_is_clamped_to_its_range(value: float, server: Server) -> None:
    for name, schema in fields().items():
        if "x-clamped" not in schema or name == "id_slot":
            continue
        if not schema.get("minimum", value) <= value <= schema.get("maximum", value):
            continue
        low, high = schema["x-clamped"]
        expected = min(max(value, low), high)
        if name in HAS_DEFAULT and expected < 1:
            expected = schema["x-default"]
        got = applied(server, name, value)
        assert got == (int(expected) if schema.get("x-whole") else single(expected)), name


def test_the_fraction_of_a_whole_number_is_cut_off(server: Server) -> None:
    for name, schema in fields().items():
        if schema.get("x-whole") and name != "seed":
            whole = 0 if name == "id_slot" else max(schema.get("minimum", 0), 1)
            assert applied(server, name, whole + 0.75) == whole, name


@pytest.mark.parametrize(
    ("seed", "folded"), [(2**32 + 5, 5), (-5, 2**32 - 5), (2**70 + 3, 3), (7.9, 7)]
)
def test_a_seed_is_folded(seed: float, folded: int, server: Server) -> None:
    assert applied(server, "seed", seed) == folded
