"""The notes of a request in the head of its answer."""

from specllama.handlers.http.log_fields import MAX_KEYWORD, MAX_RELAXED, relaxed_header


def test_keywords_are_written_as_addresses() -> None:
    header = relaxed_header(["#/not", "get.it#/$defs/größe, a/pattern", "#/a\r\nb/if", "#/🦙"])
    assert header == (
        "#/not, get.it#/$defs/gr%C3%B6%C3%9Fe%2C%20a/pattern, #/a%0D%0Ab/if, #/%F0%9F%A6%99"
    )


def test_the_header_has_a_bound() -> None:
    many = [f"#/{i}{'é' * 10_000}" for i in range(1000)]
    header = relaxed_header(many)
    assert header.endswith(", ...")
    assert header.count(", ") == MAX_RELAXED
    assert len(header) < MAX_RELAXED * (MAX_KEYWORD * len("%C3%A9") + 2) + 3
    assert relaxed_header(many[:MAX_RELAXED]).count(", ") == MAX_RELAXED - 1
