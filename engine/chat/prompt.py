"""The text that a model reads, and the form of its answer."""

import msgspec

from specllama.engine.chat.syntax import OutputSyntax


class Continuation(msgspec.Struct, frozen=True):
    """The beginning of an answer that the model goes on with: its content, or, with `thinks`, its
    thoughts (then there is no content yet)."""

    content: str = ""
    reasoning: str = ""
    thinks: bool = False


class ChatPrompt(msgspec.Struct, frozen=True, tag="prompt", omit_defaults=True):
    """The text that the model reads, and the form of its answer.

    The special tokens that the tokenizer adds are still in `text`. At most one of `thinking`
    and `answering` is set: the prompt ends inside of the model's thoughts, after
    `syntax.reasoning.begin`; or inside of the answer's content, after `syntax.content.begin`,
    as an answer that is continued does. `given` is the beginning of such an answer.
    """

    text: str
    syntax: OutputSyntax
    thinking: bool = False
    answering: bool = False
    given: Continuation | None = None

    @property
    def begun(self) -> str:
        """The end of the prompt, with the markers that the answer already has: for the `prompt` of
        a parser."""
        return (self.answering and self.syntax.content.begin) or self.text
