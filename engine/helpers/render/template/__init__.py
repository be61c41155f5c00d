"""From a conversation to a prompt. Runs in the template processes."""
