"""Which commands of an example start a server."""

from tools.docs.shell import starts


def test_a_server_stands_between_other_commands() -> None:
    text = "curl x\nspecllama --api-key a \\\n    -c 8 # why\ncurl y\nspecllama doctor\n"
    assert list(starts(text)) == [
        ("curl x\n", None),
        ("", ["--api-key", "a", "-c", "8"]),
        ("curl y\nspecllama doctor\n", None),
    ]


def test_a_plain_server_has_no_options() -> None:
    assert list(starts("specllama   # the shipped model\n")) == [("", None), ("", []), ("", None)]
    for text in ("curl x # specllama\n", "specllama-contract --base-url x\n"):
        assert list(starts(text)) == [(text, None)]
