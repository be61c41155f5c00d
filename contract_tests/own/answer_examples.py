"""Compares the description's examples of answers with real answers, and rewrites the examples."""

import json
import textwrap
from pathlib import Path
from typing import Any

import yaml

from contract_tests.kit import lint

KEPT = {
    # equal in all examples
    "call_id", "completed_at", "created", "created_at", "encrypted_content", "expires_at",
    "first_id", "id", "item_id", "last_id", "modified_at", "responseId", "seed", "signature",
    "started_at", "timestamp", "tool_call_id",
    # machine, build and files
    "build_info", "cwd", "digest", "filename", "media_marker", "model_path", "modelfile",
    "n_bytes", "path", "system_fingerprint",
    # long texts, and pieces of texts
    "arguments", "chat_template", "context", "embedding", "embeddings", "grammar", "input",
    "parameters", "partial_json", "response", "template",
}  # fmt: skip
"""Fields that keep their values when an example is recorded."""
PROPOSED = {"draft_n", "draft_n_accepted"}
"""Fields that exist only if tokens were proposed, which depends on measured times."""
VARYING = KEPT | PROPOSED | {
    # generated texts, and values that follow from them
    "bytes", "completion_tokens", "content", "delta", "done_reason", "eval_count",
    "finish_reason", "has_new_line", "incomplete_details", "index", "is_done", "logprob",
    "n_decoded", "n_remain", "output_text", "output_tokens", "piece", "prob", "reasoning_content",
    "reasoning_tokens", "relevance_score", "score", "status", "stop_reason",
    "stop_sequence", "stop_type", "stopping_word", "text", "thinking", "token", "token_logprobs",
    "tokens", "tokens_predicted", "total_bytes", "total_tokens", "truncated",
    "candidatesTokenCount", "finishReason", "thoughtsTokenCount",
    # earlier requests
    "cache", "cache_creation_input_tokens", "cache_disk_n", "cache_kv_n", "cache_miss_at",
    "cache_miss_reason", "cache_n", "cache_ram_n", "cache_read_input_tokens", "cache_write_tokens",
    "cached_disk_tokens", "cached_ram_tokens", "cached_tokens", "id_slot", "id_task",
    "input_tokens", "is_processing",
    "last_used", "n_erased", "n_past", "n_prompt_tokens", "n_prompt_tokens_cache",
    "n_prompt_tokens_from_files",
    "n_prompt_tokens_processed", "n_read", "n_restored", "n_saved", "n_tokens", "n_written",
    "cachedContentTokenCount",
    "predicted_n", "processed", "prompt_n", "t", "tokens_cached", "tokens_evaluated", "total",
    "cache_hit_rate", "gen_throughput", "num_total_tokens", "num_used_tokens",
    "num_waiting_uncached_tokens", "token_usage", "utilization",
    # the model's file, and the options of the server
    "max_running_requests", "max_total_num_tokens",
    "args", "capabilities", "n_ctx", "preset", "prompt_prefix", "size", "size_vram",
    "task_name", "total_slots",
    "seconds",
    # memory of devices on this machine
    "compute", "kv_cache",
}  # fmt: skip
"""Fields whose values differ from answer to answer, with equal types."""
WORDS = {"content", "reasoning_content", "text", "thinking"}
"""Fields with generated text."""
OPAQUE = {"input", "top_logprobs"}
"""Objects whose fields vary, too."""
TIMES = ("_ms", "_duration", "_second", "_seconds")


def differences(
    example: Any, real: Any, *, varying: bool = True, strict: bool = False, where: str = "answer"
) -> list[str]:
    """Returns the places where the two differ in members, in types, or in constant values.

    An element of a list is compared with the real element at the same index. If the real list is
    shorter, it is compared with the most similar element. Unless `strict`, null matches any varying
    value.
    """
    options: Any = {"varying": varying, "strict": strict}
    if isinstance(example, dict) and isinstance(real, dict):
        only, lacks = example.keys() - real.keys(), real.keys() - example.keys()
        found = [f"{where}: only the example has {name}" for name in only - PROPOSED]
        found += [f"{where}: the example lacks {name}" for name in lacks - PROPOSED]
        for name in example.keys() & real.keys():
            one, other, place = example[name], real[name], f"{where}.{name}"
            if isinstance(one, dict | list) and isinstance(other, dict | list):
                varies = varying and name in VARYING and isinstance(one, list)
                varies = varies and not any(isinstance(each, dict) for each in one)
                if not varies and name not in OPAQUE:
                    found += differences(one, other, **options, where=place)
            elif varying and (name in VARYING or name.endswith(TIMES)):
                found += _kinds(one, other, strict, place)
            elif one != other or type(one) is not type(other):
                found.append(f"{place}: {one!r:.80} for {other!r:.80}")
        return sorted(found)
    if isinstance(example, list) and isinstance(real, list):
        found = [f"{where}: nothing for {len(real)} elements"] if real and not example else []
        for i, value in enumerate(example):
            others = real[i : i + 1] or real
            place = f"{where}[{i}]"
            possible = [differences(value, other, **options, where=place) for other in others]
            best = min(possible, key=_count, default=[f"{place}: nothing like it"])
            found += best
        return found
    return [] if example == real else [f"{where}: {example!r:.80} for {real!r:.80}"]


def _count(found: list[str]) -> int:
    return len(found)


def _kinds(example: Any, real: Any, strict: bool, where: str) -> list[str]:
    if (not strict and (example is None or real is None)) or _kind(example) == _kind(real):
        return []
    return [f"{where}: {_kind(example)} for {_kind(real)}"]


def _kind(value: Any) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return "number" if is_number else type(value).__name__


def closest(example: Any, candidates: list[Any]) -> Any:
    """Returns the candidate of the same type that differs least, above all in its members."""

    def distance(candidate: Any) -> int:
        found = differences(example, candidate, strict=True)
        return sum(1 if " for " in each and "nothing" not in each else 3 for each in found)

    return min([each for each in candidates if isinstance(each, type(example))], key=distance)


def parsed(text: str) -> Any:
    """Returns the document in the data of an event or in a line; a text that is not JSON is
    returned unchanged."""
    try:
        return json.loads(text)
    except ValueError:
        return text


# ---- recording -------------------------------------------------------------------------------


def words(value: Any) -> list[str]:
    """Returns the generated texts of an answer."""
    if isinstance(value, list):
        return [each for element in value for each in words(element)]
    if not isinstance(value, dict):
        return []
    said = [each for name, each in value.items() if name in WORDS and isinstance(each, str)]
    return sorted(said) + words([*value.values()])


def recorded(example: Any, real: Any, name: str = "") -> Any:
    """Returns the real answer with the example's values for fields that keep them. Times are
    rounded, and vectors shortened."""
    if name in KEPT and example is not None and isinstance(real, type(example)):
        return example
    if isinstance(real, dict):
        fields = example if isinstance(example, dict) else {}
        new = [each for each in real if each not in PROPOSED]
        names = dict.fromkeys([*(each for each in fields if each in real), *new])
        return {each: recorded(fields.get(each), real[each], each) for each in names}
    if isinstance(real, list):
        shown = real[:3] if name == "embedding" else real
        before = [*(example if isinstance(example, list) else []), *([None] * len(shown))]
        return [recorded(before[i], value) for i, value in enumerate(shown)]
    return round(real, 3) if name.endswith(TIMES) else real


def write(operation: str, status: int, kind: str, name: str, value: Any) -> None:
    """Replaces an example by `value`, written out in full. Raises LookupError if the example is
    neither in the file of its operation nor in one that this file refers to."""
    for path in sorted((lint.DESCRIPTION.parent / "paths").glob("*.yaml")):
        for mapping in _mappings(yaml.compose(path.read_text("utf-8"))):
            fields = _fields(mapping)
            if _scalar(mapping, "operationId") == operation and "responses" in fields:
                keys = ("example",) if name == "example" else ("examples", name, "value")
                names = ("responses", str(status), "content", kind, *keys)
                _replace(*_follow(path, mapping, *names), value)
                return
    raise LookupError(operation)


def _replace(path: Path, node: yaml.Node, value: Any) -> None:
    text = path.read_text("utf-8")
    start, end = node.start_mark.index, node.end_mark.index
    length = len(text[start:end].rstrip())
    path.write_text(text[:start] + _dumped(value, node, text) + text[start + length :], "utf-8")


def _mappings(node: yaml.Node | None) -> list[yaml.MappingNode]:
    if isinstance(node, yaml.MappingNode):
        return [node, *(each for _, value in node.value for each in _mappings(value))]
    return []


def _fields(mapping: yaml.MappingNode) -> dict[str, yaml.Node]:
    """The values of a mapping by their keys, with those of the mapping that it merges (`<<`)."""
    own = {key.value: value for key, value in mapping.value}
    merged = own.pop("<<", None)
    return _fields(merged) | own if isinstance(merged, yaml.MappingNode) else own


def _scalar(mapping: yaml.MappingNode, name: str) -> str | None:
    found = _fields(mapping).get(name)
    return found.value if isinstance(found, yaml.ScalarNode) else None


def _follow(path: Path, node: yaml.Node, *names: str) -> tuple[Path, yaml.Node]:
    """The node below `node` under these keys, and the file that has it: a reference on the way
    may lead to another file."""
    for name in names:
        assert isinstance(node, yaml.MappingNode)
        node = _fields(node)[name]
        if isinstance(node, yaml.MappingNode) and (reference := _scalar(node, "$ref")):
            file, _, pointer = reference.partition("#/")
            path = path.parent / file if file else path
            root = yaml.compose(path.read_text("utf-8"))
            assert root is not None
            path, node = _follow(path, root, *pointer.split("/"))
    return path, node


def _dumped(value: Any, node: yaml.Node, text: str) -> str:
    """Returns the YAML of a value that begins at the place of a node of the text."""
    line = text.split("\n")[node.start_mark.line]
    margin = len(line) - len(line.lstrip())
    indent = node.start_mark.column
    if isinstance(value, str) and value.endswith("\n"):
        return "|\n" + textwrap.indent(value.rstrip("\n"), " " * (margin + 2))
    if isinstance(value, dict) and isinstance(value.get("data"), str):
        data = value["data"]
        lines = textwrap.wrap(data, 98 - indent, break_long_words=False, break_on_hyphens=False)
        if " ".join(lines) == data and len(lines) > 1:
            event = [f"event: {value['event']}"] if "event" in value else []
            folded = [" " * indent + "data: >-", *(" " * (indent + 2) + line for line in lines)]
            return "\n".join([*event, *folded]).lstrip(" ")
    dumped = yaml.dump(
        value,
        Dumper=_Indented,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=False,
        width=max(40, 98 - indent),
    )
    return textwrap.indent(dumped.rstrip("\n"), " " * indent).lstrip(" ")


class _Indented(yaml.SafeDumper):
    """A YAML dumper that indents lists as the description does."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = '"' if "\n" in text or not text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _list(dumper: yaml.SafeDumper, items: list[Any]) -> yaml.Node:
    short = all(not isinstance(each, dict | list) for each in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=short)


_Indented.add_representer(str, _text)
_Indented.add_representer(list, _list)
