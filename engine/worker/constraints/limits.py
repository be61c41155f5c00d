"""What a constraint may cost, and what llguidance says of one that costs more or is wrong."""

from llguidance import LLMatcher, LLParserLimits

# What a hostile grammar may use. The fuel is spent in tens of milliseconds.
LIMITS = LLParserLimits(
    max_items_in_row=4000,
    initial_lexer_fuel=2_000_000,
    step_lexer_fuel=400_000,
    step_max_items=800_000,
    max_lexer_states=50_000,
    max_grammar_size=500_000,
    verbose_errors=False,
)


def reason(matcher: LLMatcher) -> str:
    """llguidance's error without the state of its parser."""
    message = matcher.get_error().split("\n<")[0].strip()
    for marker, meaning in _MEANINGS.items():
        if marker in message:
            return meaning
    return message or "no text can match"


_COMPLEX = "the constraint is too complex, or forces a text without end"
_MEANINGS = {
    "panic": "it is too large",
    "NoExtensionBias": "no text can match",
    "oo many": _COMPLEX,
    "TooComplex": _COMPLEX,
    "fuel": _COMPLEX,
    "max is": _COMPLEX,
}
