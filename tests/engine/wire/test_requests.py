"""Several texts in one message, and what each of them is."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.params import GenerationParams
from specllama.engine.wire.requests import PromptParts, Submit, apart, ids, joined

SEEDS = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=4)


@given(st.lists(st.tuples(SEEDS, st.booleans(), st.integers(-1, 3)), max_size=4))
def test_joined_and_apart_again_nothing_has_changed(
    requests: list[tuple[list[int], bool, int]],
) -> None:
    sent: list[Submit] = []
    for number, (seeds, confirm, slot) in enumerate(requests):
        prompt: PromptParts = [f"prompt {number}"]
        for i, seed in enumerate(seeds):
            params = GenerationParams(seed=seed, id_slot=-1 if i else slot, top_k=number)
            own = len(sent) + 1
            sent.append(Submit(own, prompt, params, confirm=confirm, group=own - i))
    messages = [
        msgspec.msgpack.decode(msgspec.msgpack.encode(each), type=Submit) for each in joined(sent)
    ]
    assert len(messages) == len(requests)
    assert [number for each in messages for number in ids(each)] == [each.id for each in sent]
    found = [text for each in messages for text in apart(each, each.prompt)]
    assert found == [msgspec.structs.replace(s, is_repeated=s.id != s.group) for s in sent]
    assert len({id(each.params) for each in found}) == len(found)
