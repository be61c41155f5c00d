"""Options that name files, which are looked at before anything is started."""

from pathlib import Path

import pytest

from specllama.handlers.options import parse
from tests.support.options_support import error


def test_files_of_control_vectors(tmp_path: Path) -> None:
    good, text = tmp_path / "a:b.gguf", tmp_path / "text"
    good.write_bytes(b"GGUF and so on")
    text.write_text("no vector")
    options = parse(
        ["--control-vector", str(good), "--control-vector-scaled", f"{good}:-0.5,{good}:2"], {}
    )
    assert options.model.engine.model.control_vector == (str(good),)
    assert options.model.engine.model.control_vector_scaled == ((str(good), -0.5), (str(good), 2.0))
    for name, value in (
        ("--control-vector", str(text)),
        ("--control-vector", str(tmp_path)),
        ("--control-vector", str(tmp_path / "nothing")),
        ("--control-vector-scaled", f"{text}:1"),
        ("--control-vector-scaled", str(good)),
        ("--control-vector-scaled", f"{good}:x"),
        ("--control-vector-scaled", ":1"),
    ):
        assert error(name, value).startswith(name)
    assert "--direct-io" in error("--mlock", "--direct-io")


def test_adapters_count_in_the_order_of_the_command_line(tmp_path: Path) -> None:
    a, b, c = (str(tmp_path / name) for name in ("a.gguf", "b:1.gguf", "c.gguf"))
    for path in (a, b, c):
        Path(path).write_bytes(b"GGUF rest")
    argv = ["--lora-scaled", f"{b}:-0.5", "--lora", a, "--lora-scaled", f"{c}:2,{a}:0"]
    options = parse(argv, {})
    assert options.model.engine.model.lora == ((b, -0.5), (a, 1.0), (c, 2.0), (a, 0.0))
    assert parse(["--lora", f"{a},{c}"], {}).model.engine.model.lora == ((a, 1.0), (c, 1.0))


@pytest.mark.parametrize("text", ["", "a", "a:", ":1", "a:x", "a:nan", "a:1e7", "a:1,b"])
def test_scaled_adapters_have_a_scale(text: str) -> None:
    assert error(f"--lora-scaled={text}").startswith("--lora-scaled: ")


def test_files_of_adapters_and_slots_are_looked_at_first(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("text")
    assert "cannot open" in error("--lora", str(tmp_path / "missing"))
    assert "not a GGUF file" in error("--lora", str(text))
    assert "not a GGUF file" in error("--lora-scaled", f"{text}:1")
    assert "is not a directory" in error("--slot-save-path", str(text))
    assert "cannot use" in error("--slot-save-path", str(tmp_path / "missing"))
    assert parse(
        ["--slot-save-path", str(tmp_path)], {}
    ).model.engine.slot_files.slot_save_path == str(tmp_path)


def test_the_model_file(tmp_path: Path) -> None:
    empty, other, good = tmp_path / "empty", tmp_path / "other", tmp_path / "good"
    empty.touch()
    other.write_bytes(b"PK\x03\x04")
    good.write_bytes(b"GGUF\x03\0\0\0")
    assert "No such file" in error("-m", str(tmp_path / "missing"))
    assert error("-m", str(tmp_path)).endswith("is a directory")
    assert error("-m", str(empty)).endswith("is empty")
    assert error("-m", str(other)).endswith("is not a GGUF file")
    assert "not a regular file" in error("-m", "/dev/null")
    assert error(LLAMA_ARG_MODEL=str(empty)).startswith("--model: ")
    assert parse(["-m", str(good)], {}).model.engine.model.model == str(good)


def test_other_files(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing" / "file")
    assert "No such file" in error("--chat-template-file", missing)
    template = tmp_path / "template"
    template.write_text("{{ messages }}", encoding="utf-8")
    assert parse(["--chat-template-file", str(template)], {}).model.chat.chat_template_file == str(
        template
    )


def test_a_constraint_from_a_file_or_the_command_line(tmp_path: Path) -> None:
    grammar, schema = tmp_path / "g.gbnf", tmp_path / "s.json"
    grammar.write_text('root ::= "ä"', "utf-8")
    schema.write_text('{"type": "null"}', "utf-8")
    expected = {
        ("--grammar", "root ::= x"): ("root ::= x", None),
        ("--grammar-file", str(grammar)): ('root ::= "ä"', None),
        ("-j", "{}"): ("", "{}"),
        ("-jf", str(schema)): ("", '{"type": "null"}'),
        ("--grammar", "root ::= x", "-jf", str(schema)): ("", '{"type": "null"}'),
    }
    for argv, constraint in expected.items():
        defaults = parse(list(argv), {}).model.engine.generation_defaults()
        assert (defaults.grammar, defaults.json_schema) == constraint
