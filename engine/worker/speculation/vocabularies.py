"""Compares vocabularies: a draft model's tokens mean something to the model only if both agree."""

from typing import Final

from specllama.engine.worker.backend import Model

MAX_MORE: Final = 128
"""Tokens that one of the vocabularies may have more: the padding of models of different sizes."""
FIRST_COMPARED: Final = 5
"""Models of one family have other texts for the very first tokens, which are special."""

_KINDS: Final = {1: "SPM", 2: "BPE", 3: "WPM", 4: "UGM", 5: "RWKV", 6: "PLaMo-2"}


def difference(target: Model, draft: Model) -> str:
    """Why tokens of `draft` can't be taken for tokens of `target`, as the end of a sentence; "" if
    they can. By llama-server's rules."""
    if target.vocab_type != draft.vocab_type:
        return f"it is of the kind {_kind(draft)}, not {_kind(target)}"
    for name, add, ids in (
        ("begin", (target.add_bos, draft.add_bos), (target.bos, draft.bos)),
        ("end", (target.add_eos, draft.add_eos), (target.eos, draft.eos)),
    ):
        if add[0] != add[1] or (add[0] and ids[0] != ids[1]):
            return f"texts {name} with another token"
    if abs(target.n_vocab - draft.n_vocab) > MAX_MORE:
        return f"it has {draft.n_vocab} tokens, not {target.n_vocab}"
    for token in range(FIRST_COMPARED, min(target.n_vocab, draft.n_vocab)):
        own, other = target.raw_text(token), draft.raw_text(token)
        if own != other:
            return f"its token {token} is {_shown(other)}, not {_shown(own)}"
    return ""


def _kind(model: Model) -> str:
    return _KINDS.get(model.vocab_type, str(model.vocab_type))


def _shown(text: bytes) -> str:
    return ascii(text.decode("utf-8", "replace")[:40])
