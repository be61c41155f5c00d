"""Options that both servers have, and that differ on purpose. No request shows these differences.

`docs/options.md` lists the options that have no effect here, or are refused.
"""

from typing import NamedTuple


class OptionRow(NamedTuple):
    """A row of the table of options."""

    option: str
    there: str
    here: str
    reason: str


ROWS = (
    OptionRow(
        "`--backend-sampling`",
        "The device applies all samplers that it supports, and chooses the token.",
        "The device finds the 128 likeliest tokens. The host applies all samplers to them, and "
        "looks at all tokens where these aren't sufficient.",
        "The same seed gives the same tokens as without the option. llama.cpp doesn't plan its "
        "graphs again for each request.",
    ),
    OptionRow(
        "`--cache-idle-slots`",
        "On by default: when a request gets a slot, the texts of idle slots are copied to "
        "`--cache-ram`, and removed from a unified KV cache.",
        "By default, such a text is copied and removed once its cells in a unified KV cache have "
        "delayed other requests for as long as the copy takes; others stay until their cells are "
        "needed. With the option, it is as there, except that a text which can't be copied stays.",
        "Requests share the cells of equal prefixes, also with texts of idle slots. A text that "
        "was removed has to be copied back. The copies delay the request that gets the slot.",
    ),
    OptionRow(
        "`--checkpoint-min-step`",
        "8192 by default. Checkpoints are made at user messages and near the end of a prompt.",
        "0 by default. Checkpoints are made every 4096 tokens, where texts diverge, and near the "
        "end of a prompt. In both servers, the minimum doesn't apply near the end.",
        "The least useful checkpoints are removed when there are too many (`--ctx-checkpoints`).",
    ),
    OptionRow(
        "`--mmproj-device` with `--no-mmproj-offload`",
        "The last of the two counts.",
        "The projector runs on the CPU.",
        "The order of options doesn't matter here, nor does it in a file.",
    ),
    OptionRow(
        "`AIP_PREDICT_ROUTE` and the instances of Vertex AI",
        "`/predict` exists only without the variable. An instance that is no object, or whose "
        "`@requestFormat` is no text, gets an error as its prediction. A name stands for any path "
        "from which it can be made. Every operation can be called. Without `AIP_MODE`, the path "
        "doesn't exist (404).",
        "`/predict` always exists. Such a request is refused with 400. Of two paths with the same "
        "name, the one below `/v1` is called. Operations of administrators, and those with `GET`, "
        "can't be called; each instance needs the rights, and counts towards the limits, of its "
        "API key. Without `AIP_MODE`, the status is 501.",
        "A prediction does what the same request would do.",
    ),
    OptionRow(
        "`--log-prompts-dir`",
        "A file for each request, named by the milliseconds since the start; a later request of "
        "the same millisecond overwrites it. The server starts without the directory if it can't "
        "be created.",
        "A file for each prompt, with a name of its own, which only the server's user can read. "
        "The server doesn't start if the directory can't be created. Prompts are left out, with a "
        "warning, while the disk is full or too slow.",
        "Prompts are confidential, and a debugging aid must not delay or fail requests.",
    ),
)
