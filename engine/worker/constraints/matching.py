"""llguidance's matchers, and what a grammar may use of memory and work there.

The trial of a grammar and the engine begin them in the same way.
"""

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from specllama.engine.worker.constraints.gbnf import GrammarError

# What a hostile grammar may use for one mask. The fuel is spent in tens of milliseconds.
_LIMITS = LLParserLimits(
    max_items_in_row=4000,
    initial_lexer_fuel=2_000_000,
    step_lexer_fuel=400_000,
    step_max_items=800_000,
    max_lexer_states=50_000,
    max_grammar_size=500_000,
    verbose_errors=False,
)
TOO_COMPLEX = "the constraint is too complex, or forces a text without end"
_MEANINGS = {
    "panic": "it is too large",
    "NoExtensionBias": "no text can match",
    "oo many": TOO_COMPLEX,
    "TooComplex": TOO_COMPLEX,
    "fuel": TOO_COMPLEX,
    "max is": TOO_COMPLEX,
}


class ConstraintError(Exception):
    """The generation can't go on under its constraint."""


def begin(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """A matcher at the beginning of `grammar`. Raises GrammarError."""
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=_LIMITS)
    if matcher.is_error():
        raise GrammarError(_reason(matcher))
    return matcher


def mask(matcher: LLMatcher) -> bytes:
    """A bit for each token that `matcher` allows next. Raises ConstraintError."""
    bits = matcher.compute_bitmask()
    if matcher.is_error():
        raise ConstraintError(_reason(matcher))
    return bits


def consume(matcher: LLMatcher, tokens: list[int]) -> None:
    """Go on behind `tokens`. Raises ConstraintError."""
    if not matcher.consume_tokens(tokens):
        raise ConstraintError(_reason(matcher))


def _reason(matcher: LLMatcher) -> str:
    """llguidance's error without the state of its parser."""
    message = matcher.get_error().split("\n<")[0].strip()
    for marker, meaning in _MEANINGS.items():
        if marker in message:
            return meaning
    return message or "no text can match"
