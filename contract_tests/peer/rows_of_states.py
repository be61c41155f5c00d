"""Differences that `nox -s peer` doesn't show: they need files, another state of the server, or a
client that a request can't play. Tests of llama-server's own suite show them."""

from typing import NamedTuple


class StateRow(NamedTuple):
    """A row of the second table."""

    title: str
    there: str
    here: str
    reason: str


ROWS = (
    StateRow(
        "Slot files",
        "Files of llama.cpp, also with the plain list of tokens of older versions.",
        "Files of another format, with a checksum and a fingerprint of the model. Files of "
        "llama-server are refused with status 400.",
        "llama.cpp doesn't check a state that it restores: one of another model, or with a wrong "
        "bit, would give wrong texts or end the engine process.",
    ),
    StateRow(
        "A slot whose file can't be restored",
        "It is empty afterwards.",
        "It keeps its text. A request may find its prompt in another slot.",
        "Prefixes are shared between slots.",
    ),
    StateRow(
        "Counts of an idle slot",
        "`n_decoded` in `/slots` is 0.",
        "It is the number of tokens of the last request; `has_next_token` is false, and `n_remain` "
        "is -1.",
        "An idle slot shows what it did last.",
    ),
    StateRow(
        "`/metrics` of a sleeping server",
        "The whole text stays the same.",
        "The series of llama-server stay the same; the server's own, such as the durations of "
        "requests, go on.",
        "The server itself doesn't sleep.",
    ),
    StateRow(
        "Draft models",
        "Every step has a draft of up to `--spec-draft-n-max` tokens, 3 by default.",
        "A step has as many tokens of a draft as pay, at most 16 by default; without "
        "`--spec-draft-p-min`, only tokens with a probability of at least 0.75. `--spec-synth-*` "
        "switches this off.",
        "A draft that doesn't pay makes the answer slower.",
    ),
    StateRow(
        "Images in the results of tools, in Messages",
        "A model without image input answers 500.",
        "A line of text says that the image can't be shown.",
        "Agents send images in results unasked, and could not continue the conversation.",
    ),
    StateRow(
        "Inputs of embeddings",
        "`content` has to be a list of parts.",
        "It may be a text, too.",
        "Messages have both forms.",
    ),
    StateRow(
        "Allowed headers in preflight answers",
        "`*`.",
        "The headers that the browser asks for.",
        "For browsers, `*` doesn't include `Authorization`, and means nothing if the request has "
        "credentials.",
    ),
    StateRow(
        "Files of the page",
        "The page is sent to every client. It consists of many files, with a service worker.",
        "The page is sent to browsers; other clients get `Ollama is running`. It has other files, "
        "and no service worker.",
        "Ollama's clients read these words.",
    ),
    StateRow(
        "`POST /models` with `--offline`",
        "The model is downloaded.",
        "Status 400.",
        "The option promises that the network isn't used.",
    ),
    StateRow(
        "Files of `--tools`",
        "Tools read and write all files that the server's user can. Links are followed.",
        "They see only the files below `--tools-dir`, by default the working directory. Links lead "
        "to no other place.",
        "A model's call, or a page that gets a key, shouldn't reach the whole machine.",
    ),
    StateRow(
        "Commands of `--tools`",
        "They run with the rights of the server.",
        "They run in bubblewrap: without network, and without files outside of `--tools-dir`. "
        "Without bubblewrap, `exec_shell_command` is left out.",
        "A model's call, or a page that gets a key, shouldn't reach the whole machine.",
    ),
    StateRow(
        "`--tools-runtime`, `x-tool-runtime`",
        "Tools run in a container or on another machine; an unknown one gives status 500.",
        "The server doesn't start with the option. The header gives status 501.",
        "Tools have a sandbox of their own, and a client shouldn't choose machines for the server.",
    ),
    StateRow(
        "Arguments of built-in tools",
        "A missing argument, or one of a wrong type, gives status 400.",
        "Status 200 with `error`, as for every tool that fails.",
        "The model made the mistake, and corrects it if it sees the message.",
    ),
    StateRow(
        "`.gitignore` in searches",
        "`git` lists the files.",
        "Only directories such as `.git`, `node_modules` and `build` are left out.",
        "The configuration in a repository can make `git` run programs.",
    ),
    StateRow(
        "Environment of MCP servers",
        "They inherit all variables of the server.",
        "They get `HOME`, `PATH` and a few more, and their own `env`.",
        "The server's variables may have keys.",
    ),
    StateRow(
        "`permissions` of MCP servers' tools",
        "`write` is always false.",
        "`write` is true, unless the MCP server calls the tool read-only.",
        "A client can ask before a call that may change something.",
    ),
    StateRow(
        "`--ui-mcp-proxy`, `/cors-proxy`",
        "The server fetches any address for a page.",
        "It never does: status 403.",
        "A page could reach the network of the server's machine. The server itself connects to the "
        "MCP servers of its configuration.",
    ),
)
