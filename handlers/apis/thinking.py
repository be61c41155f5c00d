"""Fields of bodies about thinking: the token budget, and the variables of the chat template."""

from collections.abc import Sequence
from typing import Any

from specllama.engine.chat.request import ThinkingBudget
from specllama.engine.errors import invalid_request
from specllama.engine.options import Options
from specllama.engine.params import ThinkingRules, Thoughts
from specllama.handlers.http import schemas


def thinking_budget(
    body: schemas.GenerationOptions, options: Options, other: int | None = None
) -> ThinkingBudget:
    """Returns the thinking budget of `body`. The server's options are the default for missing
    fields and for -1 tokens. `other` is the number of tokens from another field of the API;
    `reasoning_budget_tokens` wins."""
    chat, message = options.chat, body.get("reasoning_budget_message")
    given = (body.get("reasoning_budget_tokens"), other)
    return ThinkingBudget(
        next((int(n) for n in given if n is not None and n >= 0), chat.reasoning_budget),
        chat.reasoning_budget_message if message is None else message,
        bool(body.get("reasoning_control")),
    )


def template_variables(
    options: Options,
    given: schemas.ChatTemplateKwargs | None,
    *,
    effort: str | None = None,
    thinks: Sequence[bool | None] = (),
) -> dict[str, Any]:
    """Returns the variables of the chat template, other than the messages. `given` ones, from the
    request, win over the server's. `effort` is the reasoning effort. "none", or a False in
    `thinks`, switches thinking off; otherwise a True in it switches thinking on.

    Raises EngineError (invalid_request_error) if `enable_thinking` isn't a boolean.
    """
    variables = {**options.chat.variables(), **(given or {})}
    if effort == "none" or False in thinks:
        variables["enable_thinking"] = False
    elif True in thinks:
        variables["enable_thinking"] = True
    if effort is not None and effort != "none":
        variables["reasoning_effort"] = effort
    if not isinstance(variables.get("enable_thinking", True), bool):
        raise invalid_request("chat_template_kwargs: enable_thinking must be true or false")
    return variables


def thinking_rules(body: schemas.GenerationOptions) -> ThinkingRules | None:
    """Returns the rules for thoughts between the markers in `body`; None unless it has both a start
    and an end marker. Thoughts have already begun if the last marker in `generation_prompt`, the
    end of the prompt, is a start marker."""
    begin = body.get("reasoning_budget_start_tag") or ""
    ends = body.get("reasoning_budget_end_tags")
    if ends is None:
        ends = [body.get("reasoning_budget_end_tag") or ""]
    ends = [end for end in ends if end.strip()]
    if not (begin.strip() and ends):
        return None
    prompt = body.get("generation_prompt") or ""
    last_end = max(prompt.rfind(end.strip()) for end in ends)
    first, *others = ends
    budget = body.get("reasoning_budget_tokens")
    return ThinkingRules(
        Thoughts(begin, first, prompt.rfind(begin.strip()) > last_end, others),
        budget=-1 if budget is None else int(budget),
        message=body.get("reasoning_budget_message") or "",
        control=bool(body.get("reasoning_control")),
        anywhere=True,
    )
