"""A vocabulary like BERT's WordPiece in GGUF files."""

from gguf import TokenType

from tools.models.tokenizer import Vocabulary, is_whole_text, load_merges, to_bytes

START = "\u2581"
"""The mark of a piece that begins a word; other pieces continue a word."""
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
N_PIECES = 600


def wordpiece_vocabulary() -> Vocabulary:
    """Returns the lower-case ASCII characters and the best words of the trained merges.

    A text is enclosed in [CLS] and [SEP].
    """
    characters = [chr(code) for code in range(0x21, 0x7F) if not chr(code).isupper()]
    merged = [to_bytes(left + right) for left, right in load_merges()]
    texts = [data.decode("utf-8").lower() for data in merged if is_whole_text(data)]
    begin = [START + text[1:] for text in texts if text.startswith(" ") and text[1:].isalpha()]
    inner = [text for text in texts if text.isalpha()]
    pieces = [*(START + each for each in characters), *characters]
    pieces = list(dict.fromkeys([*pieces, *begin[:N_PIECES], *inner[:N_PIECES]]))
    n_special = len(SPECIAL)
    return Vocabulary(
        model="bert",
        tokens=[*SPECIAL, *pieces],
        types=[TokenType.CONTROL] * n_special + [TokenType.NORMAL] * len(pieces),
        texts=list(range(n_special, n_special + len(pieces))),
        special_ids={"padding": 0, "unknown": 1, "bos": 2, "cls": 2, "seperator": 3, "mask": 4},
        add_bos=True,
    )
