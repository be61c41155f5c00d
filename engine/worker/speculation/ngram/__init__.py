"""Sources of proposals that look for the last tokens of a text earlier in it, by the names that
llama-server has for them."""
