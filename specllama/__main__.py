"""The program `specllama`, and `python -m specllama`.

Reading the options takes as long as importing what the engine process needs before it can load a
model, so that process is started first.
"""

import sys
from collections.abc import Sequence

from specllama import early_signals
from specllama.commands import COMMANDS
from specllama.engine.wire import head_start
from specllama.engine.wire.commands import engine_command

PRINTING = frozenset(
    (
        *("-h", "--help", "--usage", "--version", "--license", "-cl", "--cache-list"),
        *("--completion-bash", "--completion-zsh", "--completion-fish", "--list-devices"),
    )
)
"""The names of the options in `handlers.options.tables.general.GeneralOptions`."""


def main() -> int:
    """Runs the program, see `specllama.cli.main`."""
    words = sys.argv[1:]
    if serves(words):
        early_signals.handle()
        head_start.begin(engine_command(), logs=True)
    try:
        from specllama import cli

        return cli.main(words)
    except KeyboardInterrupt:
        return 0
    finally:
        head_start.withdraw()


def serves(words: Sequence[str]) -> bool:
    """Returns whether the arguments probably start a server."""
    return not (words and words[0] in COMMANDS) and PRINTING.isdisjoint(words)


if __name__ == "__main__":
    sys.exit(main())
