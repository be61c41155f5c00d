"""Words, values and phrasings, each on one side of the split between training and evaluation.

A hash decides whether a word, a number or a date belongs to the evaluation, and so does every fifth
phrasing of each list. Combinations of them belong to their side. Both sides share the forms of
answers: fixed sentences, and the keys of the sentences about persons, goods and meetings.
"""

import random
import zlib
from collections.abc import Callable, Sequence
from typing import TypeVar

from tools.models.lessons import words

T = TypeVar("T")

HELD_OUT = 6
"""One word of this many, and one phrasing of `PHRASINGS`, is only in the evaluation."""
PHRASINGS = 5
FOREIGN = 0.08
"""The share of made-up names and values that may have letters of other alphabets."""


def is_held_out(word: str) -> bool:
    return zlib.crc32(word.lower().encode()) % HELD_OUT == 0


def is_held_out_phrase(number: int) -> bool:
    """True for a phrasing that is only in the evaluation, by its number in its list."""
    return number % PHRASINGS == PHRASINGS - 1


class Source:
    """A seeded stream of choices. `level` (0 to 1) determines the length and difficulty of its
    texts. Some made-up words consist of `pieces`, if there are any: tokens of a vocabulary, each of
    which has to be practised, even if it is a word for the evaluation only."""

    def __init__(
        self,
        seed: int,
        *,
        held_out: bool = False,
        level: float = 1.0,
        pieces: Sequence[str] = (),
    ) -> None:
        self._pieces = pieces
        self.random = random.Random(seed)
        self.held_out = held_out
        self.level = level

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def number(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def upto(self, low: int, high: int) -> int:
        """Returns a number from `low` to as much of `high` as the level allows."""
        return self.random.randint(low, max(low, round(low + (high - low) * self.level)))

    def one(self, options: Sequence[T]) -> T:
        """Returns any of them, for kinds and forms that both sides of the split share."""
        return self.random.choice(options)

    def some(self, options: Sequence[T], n: int) -> list[T]:
        """Returns any `n` of them in any order; see `one`."""
        return self.random.sample(options, n)

    def own(self, make: Callable[[], T]) -> T:
        """Returns the first value of `make` that belongs to this side of the split."""
        while True:
            value = make()
            if is_held_out(str(value)) == self.held_out:
                return value

    def integer(self, low: int, high: int) -> int:
        """Returns a number for a text, of this side; `number` is for everything else."""
        return self.own(lambda: self.number(low, high))

    def date(self) -> str:
        return self.own(
            lambda: f"{self.number(1990, 2039)}-{self.number(1, 12):02}-{self.number(1, 28):02}"
        )

    def time(self) -> str:
        return self.own(lambda: f"{self.number(0, 23):02}:{self.number(0, 59):02}")

    def phrase(self, options: Sequence[T]) -> T:
        """Returns a phrasing of this side."""
        assert len(options) >= PHRASINGS, options
        return self.random.choice(
            [each for i, each in enumerate(options) if is_held_out_phrase(i) == self.held_out]
        )

    def listed(self, options: Sequence[str]) -> str:
        """Returns a listed word of this side."""
        return self.own(lambda: self.random.choice(options))

    def listed_some(self, options: Sequence[str], n: int) -> list[str]:
        """Returns `n` different listed words of this side."""
        return self.some([each for each in options if is_held_out(each) == self.held_out], n)

    def made_up(self, longest: int = 99) -> str:
        """Returns a word that no language has, in lower case, of two letters or more."""
        assert longest > 1, longest
        while True:
            if self._pieces and self.chance(0.3):
                word = self._of_pieces().lower()
            else:
                word = self._letters() if self.chance(0.2) else self._syllables()
            word = word[:longest]
            if is_held_out(word) == self.held_out and len(word) > 1:
                return word

    def foreign(self) -> str:
        """Returns a made-up word, in the training sometimes with letters that English lacks."""
        word = self.made_up()
        if self.held_out or not self.chance(FOREIGN):
            return word
        letters = list(word)
        for place in self.some(range(len(word)), min(len(word), self.number(1, 3))):
            letters[place] = self.one(words.ACCENTS.get(letters[place], letters[place]))
        other = "".join(letters)
        return word if is_held_out(other) else other

    def noun(self) -> str:
        return self.listed(words.NOUNS) if self.chance(0.5) else self.made_up()

    def word(self) -> str:
        """Returns any word, listed or made up."""
        return self.listed(words.COMMON) if self.chance(0.55) else self.made_up()

    def running_word(self) -> str:
        """Returns a word for a text that is only copied."""
        if self._pieces and self.chance(0.1):
            return self.compound()
        return self.one(words.SMALL) if self.chance(0.2) else self.word()

    def link(self, least: int, most: int) -> str:
        """Returns meaningless words for the space between others."""
        return " ".join(self.one(words.LINKS) for _ in range(self.number(least, most)))

    def name(self) -> str:
        return self.listed(words.NAMES) if self.chance(0.35) else self.foreign().capitalize()

    def city(self) -> str:
        if self.chance(0.35):
            return self.listed(words.CITIES)
        name = self.foreign().capitalize()
        return f"{self.listed(words.CITY_PREFIXES)} {name}" if self.chance(0.1) else name

    def words(self, low: int, high: int) -> list[str]:
        return [self.word() for _ in range(self.number(low, high))]

    def sentence(self, low: int = 3, high: int = 10) -> str:
        """Returns words without a meaning that end like a sentence."""
        text = " ".join(self.running_word() for _ in range(self.number(low, high)))
        return text[0].upper() + text[1:] + self.one((".", ".", ".", "!", "?"))

    def value(self) -> str:
        """Returns a short string to copy: one or a few words, a code, an address."""
        if self._pieces and self.chance(0.1):
            return self.compound()
        pick = self.random.random()
        if pick < 0.35:
            return self.foreign()
        if pick < 0.5:
            return self.name()
        if pick < 0.65:
            return self.listed(words.COMMON)
        if pick < 0.8:
            return " ".join(self.words(2, 4))
        return self.code()

    def address(self) -> str:
        """Returns an e-mail address."""
        domain = self._suffix(words.DOMAINS)
        return f"{self.made_up()}@{self.made_up()}.{domain}"

    def file(self) -> str:
        suffix = self._suffix(words.FILE_TYPES)
        return f"{self.made_up()}.{suffix}"

    def _suffix(self, listed: Sequence[str]) -> str:
        """In the training it is sometimes an unknown one, because the evaluation's are unknown,
        too."""
        unknown = not self.held_out and self.chance(0.35)
        return self.made_up(4) if unknown else self.listed(listed)

    def code(self) -> str:
        pick = self.number(0, 6)
        if pick == 0:
            return f"{self.made_up(3).upper()}-{self.integer(1, 9999)}"
        if pick == 1:
            return self.address()
        if pick == 2:
            return self.file()
        if pick == 3:
            return self.date()
        if pick == 4:
            return f"/{self.made_up()}/{self.made_up()}"
        if pick == 5:
            return f"{self.made_up()}_{self.made_up()}"
        return self.time()

    def _syllables(self) -> str:
        n = self.random.choices((1, 2, 3, 4), (2, 6, 4, 1))[0]
        return "".join(
            self.one(words.ONSETS) + self.one(words.VOWELS) + self.one(words.CODAS)
            for _ in range(n)
        )

    def compound(self) -> str:
        """Returns pieces that stay separate tokens, because their letters don't touch:
        `ject-Can`."""
        mark = self.one("-_-_./")
        return self.own(lambda: mark.join(self.random.choices(self._pieces, k=2)))

    def piece(self) -> str:
        """Returns a token of three letters or more, of either side, as a part of a made-up word; or
        a made-up word if there is no such token."""
        if not self._pieces:
            return self.made_up()
        return self.one([each for each in self._pieces if len(each) > 2]).lower()

    def _of_pieces(self) -> str:
        return "".join(self.random.choices(self._pieces, k=self.number(1, 3)))

    def _letters(self) -> str:
        return "".join(self.random.choices(words.LETTERS, k=self.number(3, 9)))
