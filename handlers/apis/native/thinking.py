"""The limit of thinking of a request that names the markers of thoughts itself."""

from collections.abc import Mapping
from typing import Any

from specllama.engine.params import ThinkingRules, Thoughts


def thinking_rules(body: Mapping[str, Any]) -> ThinkingRules | None:
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
