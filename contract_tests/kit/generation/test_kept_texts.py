"""The tiers below the KV cache restore texts, also after a restart, and damaged files break
nothing."""

import os
from pathlib import Path
from typing import Any

import pytest

from contract_tests.kit.server import OwnServer, Server, Start, wait_until

SLOTS = ("-np", "1", "-c", "512", "--metrics")  # room for one of the texts
PROMPTS = [f"class Reader{i}:\n" + f"    total_{i} += {i}\n" * 25 for i in range(3)]


def ask(server: Server, prompt: str) -> Any:
    request = {"prompt": prompt, "n_predict": 8, "temperature": 0, "ignore_eos": True}
    return server.ask("/completion", request)


def n_restored(server: Server) -> float:
    text = server.get("/metrics").text
    [value] = [
        line.split()[1]
        for line in text.splitlines()
        if line.startswith("specllama_prompt_tokens_restored_total ")
    ]
    return float(value)


def came_back(answer: Any) -> bool:
    timings = answer["timings"]
    return bool(timings["cache_n"] > 10 * timings["prompt_n"])


def test_host_memory_gives_texts_back(own_server: Start) -> None:
    server = own_server(*SLOTS)
    first = [ask(server, prompt) for prompt in PROMPTS]
    assert n_restored(server) == 0
    again = [ask(server, prompt) for prompt in PROMPTS]
    assert [a["content"] for a in again] == [a["content"] for a in first]
    assert all(came_back(answer) for answer in again)
    assert n_restored(server) == sum(answer["timings"]["cache_n"] for answer in again)
    for timings in (answer["timings"] for answer in again):
        if "cache_ram_n" in timings:
            assert (timings["cache_kv_n"], timings["cache_disk_n"]) == (0, 0)
            assert timings["cache_ram_n"] == timings["cache_n"]
    [slot] = server.wait_until_idle()
    assert slot["n_prompt_tokens_restored"] == slot["n_prompt_tokens_cache"] > 0


def test_without_it_texts_are_evaluated_again(own_server: Start) -> None:
    server = own_server(*SLOTS, "--cache-ram", "0")
    for prompt in PROMPTS * 2:
        assert not came_back(ask(server, prompt))
    assert n_restored(server) == 0


@pytest.mark.parametrize("ram", ["0", "-1"])
def test_files_outlive_the_server(own_server: Start, tmp_path: Path, ram: str) -> None:
    directory = tmp_path / "texts"
    directory.mkdir()
    options = (*SLOTS, "--cache-disk", str(directory), "--cache-ram", ram)
    server = own_server(*options)
    first = [ask(server, prompt) for prompt in PROMPTS]
    assert server.stop() == 0
    files = sorted(directory.iterdir())
    assert len(files) == len(PROMPTS)
    damage(files[0])
    (directory / f"{'0' * 64}.kv").write_bytes(os.urandom(5000))
    (directory / f"{'1' * 64}.kv").write_bytes(files[1].read_bytes())
    (directory / "notes.txt").write_text("not ours")
    server = own_server(*options)
    engine = server.engine().pid
    again = [ask(server, prompt) for prompt in PROMPTS]
    assert [a["content"] for a in again] == [a["content"] for a in first]
    assert sum(came_back(answer) for answer in again) == len(PROMPTS) - 1
    for timings in (answer["timings"] for answer in again if came_back(answer)):
        if "cache_disk_n" in timings:
            assert timings["cache_disk_n"] == timings["cache_n"]
    assert server.engine().pid == engine
    assert server.get("/health").status_code == 200
    assert (directory / "notes.txt").read_text() == "not ours"
    log = server.log.read_text("utf-8", "replace")
    assert "is ignored" in log, "the log has a warning"


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-100] ^= 1  # in the state, where only the digest shows it
    path.write_bytes(data)


def test_two_servers_share_a_directory(own_server: Start, tmp_path: Path) -> None:
    directory = tmp_path / "texts"
    directory.mkdir()
    options = (*SLOTS, "--cache-disk", str(directory), "--cache-ram", "0")
    servers: list[OwnServer] = [own_server(*options), own_server(*options)]
    for server in servers:
        for prompt in PROMPTS:
            ask(server, prompt)
    assert [server.stop() for server in servers] == [0, 0]
    assert len(list(directory.iterdir())) == len(PROMPTS)


def test_a_killed_engine_leaves_nothing_half_written(own_server: Start, tmp_path: Path) -> None:
    directory = tmp_path / "texts"
    directory.mkdir()
    options = (*SLOTS, "--cache-disk", str(directory), "--cache-ram", "0")
    server = own_server(*options)
    first = [ask(server, prompt) for prompt in PROMPTS]
    server.kill_engine()
    short = {"prompt": "a", "n_predict": 1}  # the first request after the end fails
    wait_until(lambda: server.post("/completion", short).status_code == 200, "a new engine")
    again = [ask(server, prompt) for prompt in PROMPTS]
    assert [a["content"] for a in again] == [a["content"] for a in first]
