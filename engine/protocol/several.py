"""Several texts from one prompt, as one message: a long prompt goes to the engine once."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import msgspec

from specllama.engine.protocol.messages import Prompt, Submit


def joined(requests: Iterable[Submit]) -> Iterator[Submit]:
    """The same requests in fewer messages: neighbours of one group with the same prompt object
    become one. Their parameters differ in nothing but the seed and `id_slot`, which only the
    first of a group has."""
    for _, run in groupby(requests, lambda each: (each.group, id(each.prompt), each.confirm)):
        first, *others = run
        pairs = [(each.id, each.params.seed) for each in others]
        yield msgspec.structs.replace(first, others=pairs) if pairs else first


def apart(submit: Submit, prompt: Prompt) -> Iterator[Submit]:
    """The requests that `submit` stands for, from `prompt` in the place of its own."""
    given = msgspec.structs.replace(submit.params)
    first = msgspec.structs.replace(submit, prompt=prompt, others=[])
    yield first
    for id, seed in submit.others:
        # Each has parameters of its own: preparing a request changes them.
        params = msgspec.structs.replace(given, seed=seed, id_slot=-1)
        yield msgspec.structs.replace(first, id=id, params=params)


def ids(submit: Submit) -> Sequence[int]:
    """The ids of all texts of `submit`."""
    return [submit.id, *(id for id, _ in submit.others)]
