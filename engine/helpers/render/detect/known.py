"""Call syntaxes of models whose chat template shows tools, but never a call."""

from specllama.engine.chat.syntax import CallSyntax, Fill, TaggedArguments

_LFM = CallSyntax(
    parts=(Fill("name"), "(", Fill("arguments"), ")"),
    begin="<|tool_call_start|>[",
    separator=", ",
    end="]<|tool_call_end|>",
    tagged=TaggedArguments("", "=", "", ", ", quote="'"),
)

KNOWN = (("<|tool_list_start|>", _LFM), ("List of tools: [", _LFM))
"""What a template writes around the tools, and how its model calls them."""


def known_calls(source: str) -> CallSyntax | None:
    """The syntax of calls that `source`, a chat template, is known to go with."""
    return next((calls for words, calls in KNOWN if words in source), None)
