"""Resumed streams, the end of reasoning, and budgets of reasoning."""

from typing import Any

from contract_tests.peer.request import GREEDY, PROMPT, SMALL, USER, Request, both_ways, get, post

CHAT = "/v1/chat/completions"
BASE: dict[str, Any] = {"model": "any", "messages": USER, **SMALL}
CONTROL = "/v1/chat/completions/control"
LOOKUP = "/v1/streams/lookup"
TEXT: dict[str, Any] = {"prompt": PROMPT, "n_predict": 16, **GREEDY}
TAGS = {"reasoning_budget_start_tag": "<think>", "reasoning_budget_end_tag": "</think>"}


def _chat(name: str, conversation: str, **fields: Any) -> Request:
    return post(name, CHAT, {**BASE, **fields}, headers={"X-Conversation-Id": conversation})


def _look(name: str, *conversations: Any) -> Request:
    return post(name, LOOKUP, {"conversation_ids": list(conversations)})


def _delete(name: str, path: str) -> Request:
    return Request(name=name, path=path, method="DELETE")


REQUESTS = [
    _chat("a chat of a conversation", "one", stream=True),
    get("come back", "/v1/stream?conv_id=one"),
    get("come back from the beginning", "/v1/stream?conv_id=one&from=0"),
    get("nothing behind the end", "/v1/stream?conv_id=one&from=100000000"),
    _look("looked up", "one"),
    _look("looked up among others", "none", "one", ""),
    post("looked up without ids", LOOKUP, {}),
    post("looked up by null", LOOKUP, {"conversation_ids": None}),
    post("looked up by a text", LOOKUP, {"conversation_ids": "one"}),
    Request(name="looked up without JSON", path=LOOKUP, raw=b"{"),
    _chat("a chat of a model", "two::model", stream=True),
    _look("looked up without the model", "two"),
    _chat("an answer that isn't streamed", "one"),
    _look("is in the place of the stream", "one"),
    _chat("a chat that fails", "two::model", stream=True, grammar="root ::= ("),
    _look("leaves no stream", "two"),
    post("a text of a conversation", "/completion", {**TEXT, "stream": True}, headers={"X-Conversation-Id": "text"}),
    get("come back to a text", "/v1/stream?conv_id=text"),
    _delete("ended", "/v1/stream?conv_id=text"),
    get("gone", "/v1/stream?conv_id=text"),
    _delete("ended again", "/v1/stream?conv_id=text"),
    get("no conversation", "/v1/stream"),
    get("an empty conversation", "/v1/stream?conv_id="),
    _delete("no conversation ended", "/v1/stream"),
    get("unknown conversation", "/v1/stream?conv_id=none"),
    _chat("another chat", "three", stream=True),
    get("no offset", "/v1/stream?conv_id=three&from=x"),
    get("offset too large", "/v1/stream?conv_id=three&from=99999999999999999999999"),
    get("the list of all", "/v1/streams"),
    post("control nothing", CONTROL, {}),
    post("control without an action", CONTROL, {"id": "a"}),
    post("control, unknown action", CONTROL, {"id": "a", "action": "dance"}),
    post("control, empty id", CONTROL, {"id": "", "action": "reasoning_end"}),
    post("control, null", CONTROL, {"id": None, "action": "reasoning_end"}),
    post("control, unknown id", CONTROL, {"id": "a", "action": "reasoning_end"}),
    post("control, a model", CONTROL, {"id": "a", "action": "reasoning_end", "model": "any"}),
    Request(name="control without JSON", path=CONTROL, raw=b"{"),
    *both_ways("no budget", CHAT, {**BASE, "reasoning_budget_tokens": -1}),
    *both_ways("controllable", CHAT, {**BASE, "reasoning_control": True}),
    *both_ways("a message without a budget", CHAT, {**BASE, "reasoning_budget_message": "!"}),
    *both_ways("a budget that isn't used up", CHAT, {**BASE, "reasoning_budget_tokens": 100}),
    post("a negative budget", CHAT, {**BASE, "reasoning_budget_tokens": -2}),
    post("another name of the budget", CHAT, {**BASE, "thinking_budget_tokens": 100}),
    *both_ways("a budget of a text", "/completion", {**TEXT, **TAGS, "generation_prompt": "<think>", "reasoning_budget_tokens": 4, "reasoning_budget_message": "!"}),
    *both_ways("a budget without markers", "/completion", {**TEXT, "reasoning_budget_tokens": 4}),
    *both_ways("thoughts that never begin", "/completion", {**TEXT, **TAGS, "reasoning_budget_tokens": 0}),
    post("a grammar that has begun", "/completion", {**TEXT, "grammar": 'root ::= "abc"', "grammar_type": "tool_calls", "generation_prompt": "a"}),
    post("a grammar that has begun differently", "/completion", {**TEXT, "grammar": 'root ::= "abc"', "grammar_type": "tool_calls", "generation_prompt": "x"}),
    post("a user's grammar", "/completion", {**TEXT, "grammar": 'root ::= "abc"', "grammar_type": "user", "generation_prompt": "x"}),
    post("a schema that has begun", "/completion", {**TEXT, "json_schema": {"const": "abc"}, "generation_prompt": '"a'}),
]  # fmt: skip
