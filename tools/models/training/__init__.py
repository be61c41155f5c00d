"""The training of the shipped model: tokens of lessons, a network, its optimizers and its file."""
