"""Media in the texts of tests: the number of tokens by id, and the ids of media that have to be
evaluated at once."""

from collections.abc import Iterable, Sequence

from hypothesis import strategies as st

from specllama.engine.worker.scheduling.sequences import Span

LENGTHS = {-2: 6, -3: 5, -4: 1, -5: 4}
WHOLE = {-3, -5}


def text(elements: Iterable[int], n_most: int = 20) -> list[int]:
    """Returns the tokens of `elements` (tokens and ids of media), at most `n_most`."""
    tokens: list[int] = []
    for element in elements:
        n = LENGTHS.get(element, 1)
        if len(tokens) + n > n_most:
            break
        tokens += n * [element]
    return tokens


def texts(n_most: int = 20, min_size: int = 1) -> st.SearchStrategy[list[int]]:
    """Generates tokens of a small vocabulary, mostly with media between them."""
    plain = st.integers(0, 2)
    mixed = st.one_of(plain, plain, st.sampled_from(sorted(LENGTHS)))
    lists = st.one_of(
        *(st.lists(each, min_size=min_size, max_size=n_most) for each in (plain, mixed))
    )
    return lists.map(lambda elements: text(elements, n_most))


def spans(tokens: Sequence[int]) -> list[Span]:
    """Returns the places of media in a text. The last medium may be cut off."""
    found: list[Span] = []
    at = 0
    while at < len(tokens):
        n = LENGTHS.get(tokens[at], 1)
        if tokens[at] < 0:
            found.append(Span(at, at + n, tokens[at] in WHOLE))
        at += n
    return found


def is_uncut(tokens: Sequence[int]) -> bool:
    """True if all media are complete."""
    places = spans(tokens)
    return not places or (
        places[-1].stop <= len(tokens)
        and all(len({*tokens[span.start : span.stop]}) == 1 for span in places)
    )
