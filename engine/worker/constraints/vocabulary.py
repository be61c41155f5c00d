"""A model's vocabulary in the form that llguidance needs."""

from collections import OrderedDict
from collections.abc import Callable
from itertools import count

from llguidance import LLTokenizer

from specllama.engine import system
from specllama.engine.grammars.gbnf import GrammarError
from specllama.engine.worker.backend import Model

STRIDE = 256  # tokens, which take one or two milliseconds to read
CACHED = 4  # sets of visible control tokens; a template needs one


class Vocabulary:
    """The tokens of a model, in which the control tokens `shown` count as text.

    `texts` are the bytes of every token, empty for tokens without text. `bytes` are 256 tokens, one
    for each byte; tokens that the model lacks have ids after its own. `lexemes` are all tokens in
    llguidance's form. `number` identifies the vocabulary.
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
        """`text` as one token per byte, which any grammar accepts like other tokens."""
        return [self.bytes[byte] for byte in text]


class Vocabularies:
    """The vocabularies of one model, read when they are first needed. Only one thread may use it at
    a time."""

    def __init__(self, model: Model, closed: system.Event) -> None:
        self._model = model
        self._closed = closed
        self._lexemes: list[bytes] = []
        self._cache: OrderedDict[frozenset[int], Vocabulary] = OrderedDict()

    def get(
        self, shown: frozenset[int] = frozenset(), pause: Callable[[], None] = lambda: None
    ) -> Vocabulary:
        """The vocabulary for `shown`, which are control tokens that don't end the text. Calls
        `pause` regularly while reading, which takes seconds for a large vocabulary."""
        if (found := self._cache.get(shown)) is None:
            lexemes = self._read(pause)
            pause()
            found = self._cache[shown] = Vocabulary(self._model, lexemes, shown)
            if len(self._cache) > CACHED:
                self._cache.popitem(last=False)
        self._cache.move_to_end(shown)
        return found

    def _read(self, pause: Callable[[], None]) -> list[bytes]:
        """The bytes of every token. Hidden tokens get a prefix byte that occurs in no text, so that
        no grammar can match them."""
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
