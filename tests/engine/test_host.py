"""Linux's description of the processor."""

from pathlib import Path

import pytest

from specllama.engine.host import Processor, this_processor

X86 = """processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Some Processor @ 2.00GHz
flags\t\t: fpu avx2 amx_int8
bugs\t\t: spectre_v1: not
"""
ARM = """processor\t: 0
BogoMIPS\t: 50.00
Features\t: fp asimd i8mm
CPU part\t: 0xd0c
"""


@pytest.mark.parametrize(
    ("text", "processor"),
    [
        (X86, Processor("Some Processor @ 2.00GHz", frozenset({"fpu", "avx2", "amx_int8"}))),
        (ARM, Processor("", frozenset({"fp", "asimd", "i8mm"}))),
        ("", Processor("", frozenset())),
    ],
    ids=["x86", "ARM", "empty"],
)
def test_the_first_cpu_is_read(tmp_path: Path, text: str, processor: Processor) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(f"{text}\n{text.replace('avx2', 'other').replace('asimd', 'other')}")
    assert this_processor(file) == processor


def test_other_systems_have_no_such_file(tmp_path: Path) -> None:
    assert this_processor(tmp_path / "none") == Processor("", frozenset())
