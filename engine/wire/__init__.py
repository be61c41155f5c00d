"""The start of processes, and their messages, for both ends of the pipes."""
