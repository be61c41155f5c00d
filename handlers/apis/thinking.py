"""Fields of bodies about thinking: the limit of tokens, and the variables of the chat template."""

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
    """The server's stands in for what `body` lacks, and for -1 tokens. `other` is the number of
    tokens under another name; that of `body` wins."""
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
    """The variables of the template beside the messages: those that a request has `given` win over
    the server's. `effort` is that of reasoning; "none" and a False of `thinks` switch thinking off,
    else a True switches it on.

    Raises EngineError (invalid_request_error).
    """
    variables = {**options.chat.variables(), **(given or {})}
    if effort == "none" or False in thinks:
        variables["enable_thinking"] = False
    elif True in thinks:
        variables["enable_thinking"] = True
    if effort is not None and effort != "none":
        variables["reasoning_effort"] = effort
    if not isinstance(variables.get("enable_thinking", True), bool):
        raise invalid_request("chat_template_kwargs: enable_thinking is true or false")
    return variables


def thinking_rules(body: schemas.GenerationOptions) -> ThinkingRules | None:
    """None without markers for both ends. Thoughts have begun if `generation_prompt`, with which
    the prompt ends, says so."""
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
