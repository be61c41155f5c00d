"""The training of the shipped model: lessons to tokens, a network, its optimizer and its file."""
