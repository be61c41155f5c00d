"""A model's vocabulary as llguidance reads it."""

from collections import OrderedDict
from collections.abc import Callable
from itertools import count

from llguidance import LLTokenizer

from specllama.engine import system
from specllama.engine.grammars.gbnf import GrammarError
from specllama.engine.worker.backend import Model

STRIDE = 256  # tokens; reading so many takes a millisecond or two
CACHED = 4  # sets of visible control tokens; a template needs one


class Vocabulary:
    """The tokens of a model while the control tokens `shown` are text like any other.

    `texts` are the bytes of every token, nothing for those that don't show in a text. `bytes`
    are 256 tokens, one for each byte; those that the model lacks come after its own. `lexemes` are
    all of these as llguidance has them, `number` is no other vocabulary's.
    """

    _numbers = count()

    def __init__(self, model: Model, lexemes: list[bytes], shown: frozenset[int]) -> None:
        lexemes = lexemes.copy()
        for token in shown:
            lexemes[token] = lexemes[token].removeprefix(_HIDDEN)
        self.texts = [b"" if lexeme.startswith(_HIDDEN) else lexeme for lexeme in lexemes]
        single = {text: token for token, text in enumerate(self.texts) if len(text) == 1}
        self.bytes: list[int] = []
        for byte in range(256):
            text = bytes([byte])
            if text not in single:
                single[text] = len(lexemes)
                lexemes.append(text)
            self.bytes.append(single[text])
        self.lexemes, self.eog = lexemes, sorted(model.eog)
        self.number = next(self._numbers)
        address, tokenize = model.tokenizer_addresses()
        self.tokenizer: LLTokenizer = LLTokenizer.from_llamacpp(  # type: ignore[attr-defined]  # no stub
            tokens=lexemes,
            vocab_ptr=address,
            tokenize_fptr=tokenize,
            eos_token=self.eog,
        )

    def spelled(self, text: bytes) -> list[int]:
        """`text` as one token per byte, which a grammar takes as well as any other tokens."""
        return [self.bytes[byte] for byte in text]


class Vocabularies:
    """The vocabularies of one model, read when they are first needed. One thread at a time may use
    it."""

    def __init__(self, model: Model, closed: system.Event) -> None:
        self._model = model
        self._closed = closed
        self._lexemes: list[bytes] = []
        self._cache: OrderedDict[frozenset[int], Vocabulary] = OrderedDict()

    def get(
        self, shown: frozenset[int] = frozenset(), pause: Callable[[], None] = lambda: None
    ) -> Vocabulary:
        """The vocabulary with `shown`, which are control tokens that end no text. `pause` is
        called now and then while it is being read, which takes seconds if it is large."""
        if (found := self._cache.get(shown)) is None:
            lexemes = self._read(pause)
            pause()
            found = self._cache[shown] = Vocabulary(self._model, lexemes, shown)
            if len(self._cache) > CACHED:
                self._cache.popitem(last=False)
        self._cache.move_to_end(shown)
        return found

    def _read(self, pause: Callable[[], None]) -> list[bytes]:
        """The bytes of every token. What doesn't show in a text can't follow a grammar either:
        such tokens begin with a byte that occurs in no text."""
        if not self._lexemes:
            lexemes = []
            for token in range(self._model.n_vocab):
                if token % STRIDE == 0:
                    pause()
                if self._closed.is_set():
                    raise GrammarError("the server is shutting down")
                piece = self._model.piece(token, special=True)
                lexemes.append(_HIDDEN + piece if self._model.is_hidden(token) else piece)
            self._lexemes = lexemes
        return self._lexemes


_HIDDEN = b"\xff"
