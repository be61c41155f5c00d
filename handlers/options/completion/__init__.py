"""The scripts with which shells complete commands and options: `--completion-bash` and its like."""

from handlers.options.completion.bash import bash_completion
from handlers.options.completion.fish import fish_completion
from handlers.options.completion.zsh import zsh_completion

__all__ = ["bash_completion", "fish_completion", "zsh_completion"]
