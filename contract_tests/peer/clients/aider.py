"""aider, through LiteLLM: long system texts, diffs, and commit messages."""

from contract_tests.peer.request import both_ways

REQUESTS = [
    *both_ways("edit", "/v1/chat/completions", {
        "model": "llama", "temperature": 0, "max_tokens": 16, "messages": [
            {"role": "system", "content": "Act as an expert software developer.\n" * 3},
            {"role": "user", "content": "I have *added these files to the chat*.\n\na.py\n```\nx = 1\n```"},
            {"role": "assistant", "content": "Ok, any changes I propose will be to those files."},
            {"role": "user", "content": "Rename x to y."}]}),
    *both_ways("commit message", "/chat/completions", {
        "model": "llama", "temperature": 0, "max_tokens": 16, "messages": [
            {"role": "system", "content": "Write a commit message."}, {"role": "user", "content": "# Diffs:\n-x = 1\n+y = 1"}]}),
    *both_ways("cache marks", "/v1/chat/completions", {
        "model": "llama", "temperature": 0, "max_tokens": 8, "messages": [
            {"role": "system", "content": [{"type": "text", "text": "Be an expert.", "cache_control": {"type": "ephemeral"}}]},
            {"role": "user", "content": "Hi"}]}),
    *both_ways("edits as a function", "/v1/chat/completions", {
        "model": "llama", "temperature": 0, "max_tokens": 200, "messages": [{"role": "user", "content": "Edit."}],
        "functions": [{"name": "replace_lines", "description": "Edits", "parameters": {"type": "object", "required": ["edits"], "properties": {
            "edits": {"type": "array", "maxItems": 1, "items": {"type": "object", "required": ["path"], "properties": {"path": {"type": "string", "maxLength": 6}}}}}}}],
        "function_call": {"name": "replace_lines"}}),
]  # fmt: skip
