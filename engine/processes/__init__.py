"""What parent and child processes share. Runs in all of them."""
