"""Words and phrasings, each on one side of the split between training and evaluation.

A made-up or listed word belongs to the evaluation if its hash says so, and of each list of
phrasings every fifth does. So nothing that the evaluation says was ever trained on.
"""

import random
import zlib
from collections.abc import Sequence
from typing import TypeVar

from tools.models.lessons import words

T = TypeVar("T")

HELD_OUT = 6
"""One word of so many, and one phrasing of `PHRASINGS`, is for the evaluation alone."""
PHRASINGS = 5


def is_held_out(word: str) -> bool:
    return zlib.crc32(word.lower().encode()) % HELD_OUT == 0


class Source:
    """One seeded stream of choices. `level` (0 to 1) is how long and hard its texts get."""

    def __init__(self, seed: int, *, held_out: bool = False, level: float = 1.0) -> None:
        self.random = random.Random(seed)
        self.held_out = held_out
        self.level = level

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def number(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def upto(self, low: int, high: int) -> int:
        """A number from `low` to as much of `high` as the level allows."""
        return self.random.randint(low, max(low, round(low + (high - low) * self.level)))

    def one(self, options: Sequence[T]) -> T:
        """Any of them: what both sides share."""
        return self.random.choice(options)

    def some(self, options: Sequence[T], n: int) -> list[T]:
        return self.random.sample(options, n)

    def phrase(self, options: Sequence[T]) -> T:
        """A phrasing of this side."""
        assert len(options) >= PHRASINGS, options
        last = PHRASINGS - 1
        return self.random.choice(
            [each for i, each in enumerate(options) if (i % PHRASINGS == last) == self.held_out]
        )

    def listed(self, options: Sequence[str]) -> str:
        """A listed word of this side."""
        while True:
            word = self.random.choice(options)
            if is_held_out(word) == self.held_out:
                return word

    def made_up(self) -> str:
        """A word that no language has, in lower case."""
        while True:
            word = self._letters() if self.chance(0.2) else self._syllables()
            if is_held_out(word) == self.held_out and len(word) > 1:
                return word

    def noun(self) -> str:
        return self.listed(words.NOUNS) if self.chance(0.5) else self.made_up()

    def word(self) -> str:
        """Any word: listed or made up."""
        return self.listed(words.COMMON) if self.chance(0.55) else self.made_up()

    def name(self) -> str:
        return self.listed(words.NAMES) if self.chance(0.35) else self.made_up().capitalize()

    def city(self) -> str:
        if self.chance(0.35):
            return self.listed(words.CITIES)
        name = self.made_up().capitalize()
        return (
            f"{self.one(('New', 'Old', 'San', 'Port', 'East'))} {name}"
            if self.chance(0.1)
            else name
        )

    def words(self, low: int, high: int) -> list[str]:
        return [self.word() for _ in range(self.number(low, high))]

    def sentence(self, low: int = 3, high: int = 10) -> str:
        """Words without a meaning, that end like a sentence."""
        text = " ".join(self.words(low, high))
        return text[0].upper() + text[1:] + self.one((".", ".", ".", "!", "?"))

    def value(self) -> str:
        """A short string that has to be copied: a word or a few, a code, an address."""
        pick = self.random.random()
        if pick < 0.35:
            return self.made_up()
        if pick < 0.5:
            return self.name()
        if pick < 0.65:
            return self.listed(words.COMMON)
        if pick < 0.8:
            return " ".join(self.words(2, 4))
        return self.code()

    def code(self) -> str:
        pick = self.number(0, 6)
        if pick == 0:
            return f"{self.made_up().upper()[:3]}-{self.number(1, 9999)}"
        if pick == 1:
            return f"{self.made_up()}@{self.made_up()}.{self.one(('com', 'org', 'net', 'io'))}"
        if pick == 2:
            return f"{self.made_up()}.{self.one(('txt', 'py', 'md', 'csv', 'json', 'log'))}"
        if pick == 3:
            return f"{self.number(1990, 2039)}-{self.number(1, 12):02}-{self.number(1, 28):02}"
        if pick == 4:
            return f"/{self.made_up()}/{self.made_up()}"
        if pick == 5:
            return f"{self.made_up()}_{self.made_up()}"
        return f"{self.number(0, 23):02}:{self.number(0, 59):02}"

    def _syllables(self) -> str:
        n = self.random.choices((1, 2, 3, 4), (2, 6, 4, 1))[0]
        return "".join(
            self.one(words.ONSETS) + self.one(words.VOWELS) + self.one(words.CODAS)
            for _ in range(n)
        )

    def _letters(self) -> str:
        return "".join(self.random.choices(words.LETTERS, k=self.number(3, 9)))
