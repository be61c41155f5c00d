"""Completion scripts for shells: `--completion-bash`, `--completion-zsh`, `--completion-fish`."""

from specllama.handlers.options.completion.bash import bash_completion
from specllama.handlers.options.completion.fish import fish_completion
from specllama.handlers.options.completion.zsh import zsh_completion

__all__ = ["bash_completion", "fish_completion", "zsh_completion"]
