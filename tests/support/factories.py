"""Results and events, as tests need them."""

from engine.params import GenerationParams
from engine.protocol.messages import Finished, StopType, Timings

TIMINGS = Timings(cache_n=4, prompt_n=3, prompt_ms=6.0, predicted_n=2, predicted_ms=5.0)


def finished(text: str = "", stop_type: StopType = "eos") -> Finished:
    return Finished(
        id=1,
        text=text,
        tokens=[],
        stop_type=stop_type,
        stopping_word="",
        truncated=False,
        has_new_line=False,
        id_slot=0,
        prompt="",
        n_prompt=7,
        n_decoded=2,
        timings=TIMINGS,
        params=GenerationParams(),
    )
