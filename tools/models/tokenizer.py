"""The vocabulary of our models: a byte-level BPE like GPT-2's.

A vocabulary is defined by its merges: the tokens are the 256 bytes, then one token for each merge,
then the special tokens. `merges.txt` has the trained merges, one "left right" pair per line, in
GPT-2's printable alphabet for bytes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from gguf import TokenType

MERGES_FILE = Path(__file__).with_name("merges.txt")
VOCABULARY_SIZE = 4096
MAX_TOKEN_LENGTH = 16  # in bytes; the corpus has long lines of dashes and spaces

# llama.cpp has a hand-written splitter for this name. For other patterns it uses std::regex, which
# overflows the stack on a long input.
PRE_TOKENIZER = "qwen2"
SPLIT_PATTERN = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

END_OF_TEXT = "<|endoftext|>"
END_OF_TURN = "<|im_end|>"
# Control tokens are never shown in generated text. User-defined tokens are texts with an id, which
# parsers of reasoning and tool calls search for.
SPECIAL_TOKENS: dict[str, TokenType] = {
    END_OF_TEXT: TokenType.CONTROL,
    "<|im_start|>": TokenType.CONTROL,
    END_OF_TURN: TokenType.CONTROL,
    "<think>": TokenType.USER_DEFINED,
    "</think>": TokenType.USER_DEFINED,
    "<tool_call>": TokenType.USER_DEFINED,
    "</tool_call>": TokenType.USER_DEFINED,
    "<tool_response>": TokenType.USER_DEFINED,
    "</tool_response>": TokenType.USER_DEFINED,
    "<|fim_prefix|>": TokenType.CONTROL,
    "<|fim_middle|>": TokenType.CONTROL,
    "<|fim_suffix|>": TokenType.CONTROL,
    "<|fim_pad|>": TokenType.CONTROL,
    "<|repo_name|>": TokenType.CONTROL,
    "<|file_sep|>": TokenType.CONTROL,
}
# As in Qwen 2.5, the beginning-of-sequence token exists but is not added.
ROLES = {
    "bos": END_OF_TEXT,
    "eos": END_OF_TURN,
    "eot": END_OF_TURN,
    "padding": END_OF_TEXT,
    "fim_pre": "<|fim_prefix|>",
    "fim_suf": "<|fim_suffix|>",
    "fim_mid": "<|fim_middle|>",
    "fim_pad": "<|fim_pad|>",
    "fim_rep": "<|repo_name|>",
    "fim_sep": "<|file_sep|>",
}
"""The tokens of `Vocabulary.special_ids`."""

Merge = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The metadata of a GGUF file about its tokenizer.

    `tokens` has the tokens by id, spelled as in the file, and `types` their types. `texts` are the
    ids of the tokens that are whole characters. `special_ids` has the GGUF names of the roles (bos,
    eos, eot, fim_pre, ...). `model` and `pre` are llama.cpp's names of the algorithm. A byte-level
    BPE has `merges`, a SentencePiece vocabulary has `scores`.
    """

    model: str
    pre: str | None = None
    tokens: list[str]
    types: list[TokenType]
    texts: list[int]
    special_ids: dict[str, int]
    add_bos: bool
    merges: list[Merge] | None = None
    scores: list[float] | None = None


@cache
def byte_alphabet() -> dict[int, str]:
    """Returns a printable character for each byte: the byte itself if it is printable, otherwise a
    character above U+0100.

    The items are in the order of the token ids. From GPT-2 (Radford et al., 2019).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    characters = {byte: chr(byte) for byte in printable}
    characters |= {byte: chr(0x100 + i) for i, byte in enumerate(rest)}
    return characters


def to_bytes(token: str) -> bytes:
    """Returns the bytes of a token in the byte alphabet."""
    byte_of = _byte_of_character()
    return bytes([byte_of[character] for character in token])


@cache
def _byte_of_character() -> dict[str, int]:
    return {character: byte for byte, character in byte_alphabet().items()}


def from_merges(merges: Sequence[Merge]) -> Vocabulary:
    """Returns the vocabulary of these merges and the special tokens."""
    text_tokens = [*byte_alphabet().values(), *(left + right for left, right in merges)]
    n_text = len(text_tokens)
    return Vocabulary(
        model="gpt2",
        pre=PRE_TOKENIZER,
        tokens=[*text_tokens, *SPECIAL_TOKENS],
        types=[TokenType.NORMAL] * n_text + list(SPECIAL_TOKENS.values()),
        texts=[id for id, token in enumerate(text_tokens) if is_whole_text(to_bytes(token))],
        special_ids={
            role: n_text + list(SPECIAL_TOKENS).index(token) for role, token in ROLES.items()
        },
        add_bos=False,
        merges=list(merges),
    )


def is_whole_text(data: bytes) -> bool:
    """True if these bytes are complete characters, without ASCII control characters."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return all(character.isprintable() or character in "\t\n" for character in text)


def load_merges(path: Path = MERGES_FILE) -> list[Merge]:
    """Returns the trained merges, best first."""
    pairs = [line.split(" ") for line in path.read_text("utf-8").splitlines()]
    return [(left, right) for left, right in pairs]


def chat_vocabulary() -> Vocabulary:
    return from_merges(load_merges())


def extended_vocabulary(size: int, seed: int) -> Vocabulary:
    """Returns the shipped vocabulary, extended to `size` tokens by merges of random pairs of word
    parts.

    Ordinary text is tokenized almost as before, because a trained merge always takes precedence.
    """
    merges = load_merges()
    known = set(byte_alphabet().values()) | {left + right for left, right in merges}
    # A merge is possible only inside one split of the text: letters after at most one space.
    space = byte_alphabet()[0x20]
    words = [(token, token.removeprefix(space)) for token in sorted(known)]
    heads = [token for token, word in words if word.isascii() and word.isalpha()]
    tails = [t for t in heads if not t.startswith(space)]
    rng = np.random.Generator(np.random.PCG64(seed))
    n_more = size - len(known) - len(SPECIAL_TOKENS)
    while n_more > 0:
        left_choices = rng.integers(len(heads), size=n_more).tolist()
        right_choices = rng.integers(len(tails), size=n_more).tolist()
        for i, j in zip(left_choices, right_choices, strict=True):
            left, right = heads[i], tails[j]
            if left + right not in known and len(left + right) <= MAX_TOKEN_LENGTH:
                known.add(left + right)
                merges.append((left, right))
                n_more -= 1
    return from_merges(merges)


def train_merges(
    texts: Iterable[str], size: int = VOCABULARY_SIZE, *, bare_words: bool = False
) -> list[Merge]:
    """Learns merges for a vocabulary of `size` tokens. Needs the `tokenizers` package.

    With `bare_words`, no token combines letters with other characters, so that a word has the same
    tokens after a space, a quote or an underscore.
    """
    import json

    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    bare = [pre_tokenizers.Split(Regex(r"\p{L}+"), behavior="isolated")] if bare_words else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated"),
            *bare,
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=MAX_TOKEN_LENGTH,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    merges: list[list[str]] = json.loads(tokenizer.to_str())["model"]["merges"]
    return [(left, right) for left, right in merges]


def save_merges(merges: Iterable[Merge], path: Path = MERGES_FILE) -> None:
    """Writes the merges that are committed."""
    lines = [f"{left} {right}\n" for left, right in merges]
    path.write_text("".join(lines), "utf-8", newline="\n")
