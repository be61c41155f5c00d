"""Stories: requests of all APIs that build on each other. Each story is a function of a `Talk`."""

from collections.abc import Callable, Mapping
from typing import Any

from contract_tests.fuzz.knowing import TOOL, conversation, items, messages
from contract_tests.fuzz.malformed import changed
from contract_tests.fuzz.talking import Talk
from contract_tests.fuzz.texts import constrained, edges, seeing, settings
from contract_tests.kit.bodies import NO_THOUGHT, body

Story = Callable[[Talk], None]
FOUND = (200, 404)
REFUSED = (200, 400)
SAID = {"role": "user", "content": "How is the weather in Lima?"}


def generated(talk: Talk) -> None:
    """Sends some requests that are made from the description."""
    for _ in range(talk.dice.choice((1, 2, 3))):
        talk.send(talk.maker.request(talk.maker.operation()))


def malformed(talk: Talk) -> None:
    talk.send(changed(talk.maker, talk.target))


def _short(talk: Talk, **fields: Any) -> dict[str, Any]:
    return {"seed": talk.dice.randrange(99), **NO_THOUGHT, **fields}


# ---- kept responses ------------------------------------------------------------------------------


def responses(talk: Talk) -> None:
    """A response is made, read, continued and deleted."""
    asked = _short(talk, input=items(talk.values), max_output_tokens=talk.dice.randint(1, 8))
    if talk.values.chance(0.5):
        asked = {**body("create_response"), "background": talk.values.chance(0.3)}
    made = talk.ask("create_response", asked, right=(200, 400, 501))
    if not isinstance(made, dict):
        return
    id_ = str(made["id"])
    if talk.values.chance(0.3):  # other clients may delete it
        talk.board.responses.append(id_)
        return
    talk.ask("get_response", response_id=id_)
    query = {"limit": talk.dice.choice((1, 20, 100)), "order": talk.dice.choice(("asc", "desc"))}
    talk.ask("list_response_input_items", response_id=id_, query=query)
    if talk.values.chance(0.5):
        follow = _short(talk, input="And then?", previous_response_id=id_, max_output_tokens=4)
        # A response in the background may still be running.
        talk.ask("create_response", follow, right=REFUSED)
    if talk.values.chance(0.5):
        talk.ask("cancel_response", response_id=id_, right=REFUSED)
    if talk.values.chance(0.5):
        talk.ask("delete_response", response_id=id_, right=(200, 400))
        if talk.exchanges[-1].answer.status == 200:
            talk.ask("get_response", response_id=id_, right=(404,))
            gone = _short(talk, input="Hello", previous_response_id=id_, max_output_tokens=1)
            talk.ask("create_response", gone, right=(400,))


def conversations(talk: Talk) -> None:
    """A conversation is made, continued by responses, changed and deleted."""
    made = talk.ask(
        "create_conversation",
        {"items": items(talk.values) if talk.values.chance(0.5) else [], "metadata": {"a": 1}},
        right=(200, 400, 501),
    )
    if not isinstance(made, dict):
        return
    id_ = str(made["id"])
    added = {"items": [{"role": "user", "content": talk.values.words()}]}
    talk.ask("create_conversation_items", added, conversation_id=id_)
    for _ in range(talk.dice.randint(0, 2)):
        follow = _short(talk, input=items(talk.values), conversation=id_, max_output_tokens=4)
        talk.ask("create_response", follow, right=(200, 400, 501))
    query = {"limit": talk.dice.choice((1, 20, 100)), "order": talk.dice.choice(("asc", "desc"))}
    page = talk.ask("list_conversation_items", conversation_id=id_, query=query)
    talk.ask("update_conversation", {"metadata": {"b": talk.values.words()}}, conversation_id=id_)
    if isinstance(page, dict) and page["data"]:
        item = str(page["data"][0]["id"])
        for name in ("get_conversation_item", "delete_conversation_item"):
            talk.ask(name, conversation_id=id_, item_id=item, right=(200, 404))
    if talk.values.chance(0.7):
        talk.ask("delete_conversation", conversation_id=id_)
        talk.ask("get_conversation", conversation_id=id_, right=(404,))
        gone = _short(talk, input="Hello", conversation=id_, max_output_tokens=1)
        talk.ask("create_response", gone, right=(404,))


def of_others(talk: Talk) -> None:
    """Uses ids of other clients, of deleted things, and unknown ids."""
    known = [*talk.board.responses, "resp_0", "resp_" + "0" * 48]
    id_ = talk.dice.choice(known)
    names = ("get_response", "list_response_input_items", "cancel_response", "delete_response")
    talk.ask(talk.dice.choice(names), response_id=id_, right=(200, 400, 404))
    follow = _short(talk, input="Hello", previous_response_id=id_, max_output_tokens=2)
    talk.ask("create_response", follow, right=REFUSED)
    control = {"id": talk.dice.choice([*talk.board.completions, "chatcmpl-0"])}
    talk.ask("control_chat_completion", {**control, "action": "reasoning_end"}, right=(200, 400))


# ---- tools ---------------------------------------------------------------------------------------


def tools(talk: Talk) -> None:
    """A call of a tool, and its result, in the format of one API."""
    kind = talk.dice.choice((_openai_tools, _anthropic_tools, _responses_tools, _ollama_tools))
    kind(talk)


def _openai_tools(talk: Talk) -> None:
    offered = [{"type": "function", "function": TOOL}]
    choice = talk.dice.choice(("required", "auto", "none"))
    asked = _short(talk, messages=[SAID], tools=offered, tool_choice=choice, max_tokens=40)
    answer = talk.ask("create_chat_completion", asked)
    if answer:
        talk.board.completions.append(str(answer["id"]))
        said = answer["choices"][0]["message"]
        calls = said.get("tool_calls") or []
        results = [{"role": "tool", "tool_call_id": c["id"], "content": "dry"} for c in calls]
        follow = _short(talk, messages=[SAID, said, *results], tools=offered, max_tokens=4)
        # The arguments of a call that was cut off are no JSON, and some templates need JSON.
        talk.ask("create_chat_completion", follow, right=REFUSED)


def _anthropic_tools(talk: Talk) -> None:
    offered = [{"name": TOOL["name"], "input_schema": TOOL["parameters"]}]
    choice = {"type": talk.dice.choice(("any", "auto"))}
    asked = _short(talk, messages=[SAID], tools=offered, tool_choice=choice, max_tokens=40)
    answer = talk.ask("create_message", asked)
    if answer:
        blocks = answer["content"]
        used = [each["id"] for each in blocks if each["type"] == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": u, "content": "dry"} for u in used]
        said = {"role": "assistant", "content": blocks}
        last = {"role": "user", "content": results or "And then?"}
        follow = _short(talk, messages=[SAID, said, last], tools=offered, max_tokens=4)
        talk.ask("create_message", follow, right=REFUSED)
        talk.ask(
            "count_message_tokens", {k: follow[k] for k in ("messages", "tools")}, right=REFUSED
        )


def _responses_tools(talk: Talk) -> None:
    offered = [{"type": "function", **TOOL}]
    asked = _short(talk, input="The weather?", tools=offered, tool_choice="required")
    answer = talk.ask("create_response", {**asked, "max_output_tokens": 40})
    if answer:
        calls = [each for each in answer["output"] if each["type"] == "function_call"]
        results = [
            {"type": "function_call_output", "call_id": c["call_id"], "output": "dry"}
            for c in calls
        ]
        follow = _short(talk, input=results or "And then?", previous_response_id=answer["id"])
        talk.ask("create_response", {**follow, "max_output_tokens": 4}, right=REFUSED)


def _ollama_tools(talk: Talk) -> None:
    options = {"num_predict": 40, "seed": talk.dice.randrange(99)}
    asked = {"model": "any", "messages": [SAID], "tools": [{"type": "function", "function": TOOL}]}
    answer = talk.ask("create_ollama_chat", {**asked, "options": options, "stream": False})
    if answer and "message" in answer:
        history = [
            SAID,
            answer["message"],
            {"role": "tool", "content": "dry", "tool_name": "weather"},
        ]
        follow = {**asked, "messages": history, "options": options, "stream": False}
        talk.ask("create_ollama_chat", follow, right=REFUSED)
    talk.ask("list_ollama_processes")


# ---- tokens and templates ------------------------------------------------------------------------


def tokens(talk: Talk) -> None:
    """A text is converted to tokens, back, and continued with tokens."""
    text = talk.values.words(20) + talk.dice.choice(
        ("", " größe", "🦙", "日本", "\x00", "<|im_end|>")
    )
    found = talk.ask("tokenize", {"content": text, "with_pieces": talk.values.chance(0.2)})
    if not found:
        return
    ids = [each["id"] if isinstance(each, dict) else each for each in found["tokens"]]
    back = talk.ask("detokenize", {"tokens": ids})
    if back and talk.board.models == ("specllama-tiny",):
        talk.claim(back["content"] == text, f"{text!r} was returned as {back['content']!r}")
    asked = _short(talk, prompt=ids, n_predict=2, return_tokens=True)
    done = talk.ask("create_completion", asked, right=(200, 400, 501))
    if done and done["tokens"]:
        talk.ask("detokenize", {"tokens": done["tokens"]})


def templates(talk: Talk) -> None:
    said = messages(talk.values)
    prompt = talk.ask("apply_template", {"messages": said}, right=(200, 400, 501))
    talk.ask("count_chat_tokens", {"messages": said}, right=(200, 400, 501))
    if prompt:
        asked = _short(talk, prompt=prompt["prompt"], n_predict=2)
        talk.ask("create_completion", asked, right=REFUSED)


def infill(talk: Talk) -> None:
    """Behaves like an editor: requests for the same file, with some more text each time."""
    extra = [{"filename": "a.py", "text": talk.values.words(30)}]
    line = "def " + talk.values.words(3)
    for n in range(3):
        asked = {"input_prefix": line[: 4 + 3 * n], "input_suffix": "\n    return", "n_predict": 3}
        talk.ask("create_infill", {**asked, "input_extra": extra}, right=(200, 501))


# ---- slots, adapters, properties -----------------------------------------------------------------


def slots(talk: Talk) -> None:
    """A slot is filled, saved, erased and restored, also with missing files."""
    slot = str(talk.dice.randrange(4))
    name = f"{talk.dice.choice('abc')}.bin"
    off = (200, 400, 404, 501)
    asked = _short(talk, prompt=talk.values.words(20), n_predict=2, id_slot=int(slot))
    talk.ask("create_completion", asked, right=REFUSED)
    for action, file in (
        ("save", name),
        ("erase", None),
        ("restore", name),
        ("restore", "none.bin"),
        (talk.dice.choice(("save", "restore")), talk.dice.choice(("../x", "", "a/b", "x" * 300))),
    ):
        changes = {"filename": file} if file is not None else {}
        talk.ask("act_on_slot", changes, right=off, id_slot=slot, query={"action": action})
    talk.ask("list_slots", right=(200, 501))
    talk.ask("get_metrics", right=(200, 501))


def adapters(talk: Talk) -> None:
    found = talk.ask("list_lora_adapters") or []
    scales = [{"id": each["id"], "scale": talk.dice.choice((0, 0.5, 1, -2))} for each in found]
    talk.ask("set_lora_adapters", scales)
    asked = _short(talk, prompt="def f(", n_predict=3, lora=scales[:1])
    talk.ask("create_completion", asked, right=(200, 501))
    talk.ask("set_lora_adapters", [{"id": 99, "scale": 1}], right=REFUSED)


def administration(talk: Talk) -> None:
    talk.ask("get_props")
    talk.ask("set_props", {}, right=(200, 501))
    talk.ask("list_models")
    talk.ask("list_ollama_models")
    talk.ask("show_ollama_model", {"model": talk.dice.choice(["missing", *talk.board.models])},
             right=FOUND)  # fmt: skip


# ---- streams that go on without their clients ----------------------------------------------------


def kept_streams(talk: Talk) -> None:
    """A stream is begun, left, looked up, resumed from some byte, and ended."""
    id_ = conversation(talk.values)
    header = ("X-Conversation-Id", id_)
    n = talk.dice.choice((4, 40, 400))
    asked = _short(talk, messages=[SAID], stream=True, max_tokens=n, ignore_eos=True)
    leaves = talk.dice.choice((0.01, 0.05, None if n == 4 else 0.1))
    talk.ask("create_chat_completion", asked, header=header, leaves=leaves)
    talk.ask("lookup_streams", {"conversation_ids": [id_, "missing"]})
    at = talk.dice.choice((0, 7, 500, 10**9))
    # Another client may have ended it, and a long stream continues for some time.
    talk.ask("get_stream", query={"conv_id": id_, "from": at}, right=FOUND, leaves=2.0)
    if talk.values.chance(0.6):
        talk.ask("delete_stream", query={"conv_id": id_}, right=(204,))
        talk.ask("delete_stream", query={"conv_id": id_}, right=(204,))
    talk.ask("get_stream", query={"conv_id": f"{id_}-none"}, right=(404,))


def left(talk: Talk) -> None:
    """A long text without a limit, whose client leaves."""
    name = talk.dice.choice(("create_completion", "create_chat_completion", "create_message"))
    asked = {**body(name), "max_tokens": 2000, "ignore_eos": True}
    asked.pop("n_predict", None)
    asked["stream"] = talk.values.chance(0.5)
    talk.ask(name, asked, leaves=talk.dice.choice((0.0, 0.03, 0.2)))


# ---- vectors -------------------------------------------------------------------------------------


def embeddings(talk: Talk) -> None:
    texts = [talk.values.words() for _ in range(talk.dice.randint(1, 4))]
    made = talk.ask("create_openai_embeddings", {"input": texts})
    if made:
        talk.claim(len(made["data"]) == len(texts), "another number of vectors than of texts")
    found = talk.ask("tokenize", {"content": texts[0], "add_special": True})
    if found:
        talk.ask("create_embedding", {"content": found["tokens"]}, right=REFUSED)
    talk.ask("embed_ollama_inputs", {"model": "any", "input": texts})
    talk.ask("embed_ollama_prompt", {"model": "any", "prompt": texts[0]})


def reranking(talk: Talk) -> None:
    texts = [talk.values.words() for _ in range(talk.dice.randint(1, 5))]
    top = talk.dice.randint(0, 6)
    asked = {"query": talk.values.words(), "documents": texts, "top_n": top}
    made = talk.ask("create_versioned_rerank", asked)
    if made:
        n = min(top, len(texts))
        talk.claim(len(made["results"]) == n, f"{len(made['results'])} results rather than {n}")


# ---- many models ---------------------------------------------------------------------------------


def router(talk: Talk) -> None:
    """A model is loaded, used, unloaded and loaded again, while others do the same."""
    name = talk.dice.choice([*talk.board.models, "missing"])
    answers = (200, 400, 404)
    talk.ask("load_model", {"model": name}, right=answers)
    asked = _short(talk, model=name, prompt="def f(", n_predict=2)
    # The model may be of another kind, being unloaded, or without room.
    talk.ask("create_completion", asked, right=(200, 400, 501, 503))
    for operation in talk.dice.sample(("unload_model", "load_model", "unload_model"), 2):
        talk.ask(operation, {"model": name}, right=answers)
    talk.ask("list_models", query={"reload": "1"} if talk.values.chance(0.2) else None)
    talk.ask("download_model", {"model": "maker/nothing"}, right=(200, 400, 404))


STORIES: Mapping[str, Story] = {
    each.__name__: each
    for each in (
        *(generated, malformed, responses, of_others, tools, tokens, templates, infill, slots),
        *(adapters, administration, kept_streams, left, embeddings, reranking, router),
        *(constrained, settings, edges, seeing, conversations),
    )
}
"""All stories by name."""
