"""The log lines that the options of the log allow."""

import logging

import pytest

from specllama.handlers.options import parse

OFF = logging.CRITICAL + 1


@pytest.mark.parametrize(
    ("argv", "server", "engine"),
    [
        ([], logging.INFO, logging.WARNING),
        (["-lv", "0"], logging.CRITICAL, logging.ERROR),
        (["-lv", "1"], logging.ERROR, logging.ERROR),
        (["-lv", "2"], logging.WARNING, logging.WARNING),
        (["-lv", "4"], logging.DEBUG, logging.DEBUG),
        (["-lv", "99"], logging.DEBUG, logging.DEBUG),
        (["-v"], logging.DEBUG, logging.DEBUG),
        (["--log-disable"], logging.INFO, OFF),
        (["--log-disable", "-v"], logging.DEBUG, OFF),
    ],
)
def test_levels(argv: list[str], server: int, engine: int) -> None:
    log = parse(argv, {}).log
    assert (log.level(), log.engine_level()) == (server, engine)
