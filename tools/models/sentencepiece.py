"""A vocabulary like SentencePiece's in Llama 2: scores and byte fallback."""

from gguf import TokenType

from tools.models.tokenizer import Vocabulary, is_whole_text, load_merges, to_bytes

SPACE = "\u2581"
N_PIECES = 1000


def small_vocabulary() -> Vocabulary:
    """Returns the printable ASCII characters and the best trained merges, as scored pieces.

    A beginning-of-sequence token is added to every prompt, and a space before its text.
    """
    characters = [chr(code) for code in range(0x20, 0x7F)]
    merged = [to_bytes(left + right) for left, right in load_merges()]
    words = [data.decode("utf-8") for data in merged if is_whole_text(data)]
    pieces = [text.replace(" ", SPACE) for text in [*characters, *words[:N_PIECES]]]
    control = ["<unk>", "<s>", "</s>"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    n_before = len(control) + len(bytes_)
    return Vocabulary(
        model="llama",
        tokens=[*control, *bytes_, *pieces],
        types=[
            *[TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL],
            *[TokenType.BYTE] * len(bytes_),
            *[TokenType.NORMAL] * len(pieces),
        ],
        texts=list(range(n_before, n_before + len(pieces))),
        special_ids={"unknown": 0, "bos": 1, "eos": 2},
        add_bos=True,
        # Pairs are merged in use in the order in which training merged them.
        scores=[0.0] * n_before + [-float(rank) for rank in range(len(pieces))],
    )
