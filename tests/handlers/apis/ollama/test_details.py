"""Names and numbers that Ollama shows of a model."""

from gguf import LlamaFileType

from specllama.handlers.apis.ollama.details import quantization, short_number


def test_quantizations_are_those_of_the_file_format() -> None:
    for kind in LlamaFileType:
        name = kind.name.removeprefix("MOSTLY_").removeprefix("ALL_")
        expected = "" if kind is LlamaFileType.GUESSED else name
        assert quantization(str(kind.value)) == expected
    assert quantization("") == quantization("x") == quantization("-1") == quantization("None") == ""


def test_short_numbers() -> None:
    numbers = [0, 999, 1000, 1_442_432, 494_032_768, 8_030_261_248, 1_000_000_000_000]
    expected = ["0", "999", "1.00K", "1.44M", "494.03M", "8.03B", "1.00T"]
    assert [short_number(n) for n in numbers] == expected
