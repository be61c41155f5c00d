"""The native API: completions, tokens, gaps."""

from collections.abc import Callable, Iterator
from typing import Any

from contract_tests.kit import checks
from contract_tests.kit.checks import generation
from contract_tests.kit.mutants.exchange import Event, Mutation
from contract_tests.kit.mutants.mutant import Mutants
from contract_tests.kit.mutants.mutations import (
    at,
    bodies,
    documents,
    events,
    plain,
    renamed,
    requests,
    without,
)

MUTANTS = Mutants("Native API")

COMPLETION, INFILL = "create_completion", "create_infill"


def _change_results(change: Callable[[Any], Any]) -> Mutation:
    """Changes results: a whole answer, and the last event of a stream."""

    def changed(document: Any) -> Any:
        if isinstance(document, list):
            return [changed(each) for each in document]
        return change(document) if document.get("stop") else document

    return documents(changed, COMPLETION, INFILL)


@MUTANTS.caught_by(checks.plain_answers_are_as_described, r"\$: .*index")
def a_field_is_missing() -> Mutation:
    """Results are without `timings`."""
    return _change_results(without("timings"))


@MUTANTS.caught_by(checks.plain_answers_are_as_described, "create_completion|/completion")
def a_field_has_another_name() -> Mutation:
    """`tokens_predicted` is called `n_predicted`."""
    return _change_results(renamed("tokens_predicted", "n_predicted"))


@MUTANTS.caught_by(checks.streams_are_as_described, r"event \d+, .*\"stop\":true")
def a_number_is_text() -> Mutation:
    """`tokens_cached` is a text of digits."""
    return _change_results(at("tokens_cached", str))


@MUTANTS.caught_by(checks.plain_answers_are_as_described, "/completion")
def a_number_is_null() -> Mutation:
    """`id_slot` is null."""
    return _change_results(at("id_slot", lambda number: None))


@MUTANTS.caught_by(checks.stop_texts_are_never_shown, "==", as_described=True)
def a_stop_text_is_shown() -> Mutation:
    """The text ends with the stop string."""
    return _change_results(lambda r: {**r, "content": r["content"] + r["stopping_word"]})


@MUTANTS.caught_by(checks.counts_add_up, "==", as_described=True)
def cached_tokens_are_not_counted() -> Mutation:
    """`tokens_evaluated` leaves out the cached tokens."""
    return _change_results(
        lambda r: {**r, "tokens_evaluated": r["tokens_evaluated"] - r["tokens_cached"]}
    )


@MUTANTS.caught_by(generation.timings_follow_from_each_other, "prompt_ms", as_described=True)
def a_time_is_in_seconds() -> Mutation:
    """`prompt_ms` is a thousandth of the right value."""
    return _change_results(at("timings.prompt_ms", lambda ms: ms / 1000))


@MUTANTS.caught_by(generation.cached_tokens_have_an_origin, "origins", as_described=True)
def cached_tokens_come_from_two_caches() -> Mutation:
    """A token more comes from the cache in host memory than there is."""
    return _change_results(at("timings.cache_ram_n", lambda n: n + 1))


@MUTANTS.caught_by(generation.cached_tokens_have_an_origin, "the reason", as_described=True)
def all_prompts_are_new() -> Mutation:
    """`cache_miss_reason` is always `new`."""
    return _change_results(at("timings.cache_miss_reason", lambda reason: "new"))


@MUTANTS.caught_by(generation.time_limits_end_texts, "took longer", as_described=True)
def deadlines_are_ignored() -> Mutation:
    """A text has no time limit."""
    return bodies(without("timeout_ms"), COMPLETION)


# ---- streams ---------------------------------------------------------------------------------


def _change_events(change: Callable[[Event], Iterator[Event]]) -> Mutation:
    return events(change, COMPLETION, INFILL)


def _is_last(event: Event) -> bool:
    document = event.json
    return isinstance(document, dict) and bool(document.get("stop"))


@MUTANTS.caught_by(checks.streams_are_as_described, "'a'} is not valid")
def streams_have_a_broken_event() -> Mutation:
    """An event without most of its fields comes before the last."""

    def change(event: Event) -> Iterator[Event]:
        if _is_last(event):
            yield Event('{"content":"a"}')
        yield event

    return _change_events(change)


@MUTANTS.caught_by(generation.streams_end_once, "`stop` in a stream", as_described=True)
def streams_end_twice() -> Mutation:
    """The last event of a stream is sent twice."""

    def change(event: Event) -> Iterator[Event]:
        yield event
        if _is_last(event):
            yield event

    return _change_events(change)


@MUTANTS.caught_by(checks.streams_are_as_described, "DONE")
def native_streams_end_as_openais() -> Mutation:
    """A native stream ends with `[DONE]`."""

    def change(event: Event) -> Iterator[Event]:
        yield event
        if _is_last(event):
            yield Event("[DONE]")

    return _change_events(change)


def _change_pieces(change: Callable[[str], str]) -> Mutation:
    """Changes the texts of events, without the last event of a stream."""

    def changed(event: Event) -> Iterator[Event]:
        data = event.data or ""
        new = data if _is_last(event) else change(data)
        yield event if new == data else Event(new, event.name)

    return _change_events(changed)


@MUTANTS.caught_by(checks.characters_stay_whole, "UTF-8")
def characters_are_broken() -> Mutation:
    """An event has the first byte of a character but not the others."""

    def halved(text: str) -> str:
        for character in text:
            if not character.isascii():
                first = character.encode()[:1].decode(errors="surrogateescape")
                return text.replace(character, first, 1)
        return text

    return _change_pieces(halved)


@MUTANTS.caught_by(checks.characters_stay_whole, "\ufffd", as_described=True)
def characters_are_replaced() -> Mutation:
    """Partial characters in tokens become question marks."""
    return _change_pieces(lambda text: "".join(c if c.isascii() else "\ufffd" for c in text))


@MUTANTS.caught_by(checks.streams_outlive_their_clients, "got 404")
def streams_end_with_their_clients() -> Mutation:
    """A stream is not kept although the client asks for it."""
    return requests(lambda request: request.with_header("X-Conversation-Id", None))


@MUTANTS.caught_by(checks.streams_outlive_their_clients, "==", as_described=True)
def streams_come_back_from_the_beginning() -> Mutation:
    """A kept stream is repeated from its first byte, whatever `from` says."""
    return requests(lambda request: request.with_query(**{"from": None}), "get_stream")


# ---- tokens and gaps -------------------------------------------------------------------------


@MUTANTS.caught_by(checks.tokens_and_text_correspond, "two", as_described=True)
def spaces_get_lost() -> Mutation:
    """/detokenize trims its text."""
    return plain(at("content", str.strip), "detokenize")


@MUTANTS.caught_by(checks.tokens_and_text_correspond, "==", as_described=True)
def tokens_come_backwards() -> Mutation:
    """/tokenize returns the tokens in reverse order."""
    return plain(at("tokens", lambda tokens: tokens[::-1]), "tokenize")


@MUTANTS.caught_by(
    generation.gaps_are_filled_between_both_texts, "after the gap", as_described=True
)
def gaps_have_no_end() -> Mutation:
    """/infill ignores `input_suffix`."""
    return bodies(at("input_suffix", lambda suffix: ""), INFILL)
