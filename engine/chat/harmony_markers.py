"""The fixed texts of Harmony (`engine.chat.parse.harmony`), for the code that reads, writes or
constrains it."""

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
END, CALL, RETURN, CONSTRAIN = "<|end|>", "<|call|>", "<|return|>", "<|constrain|>"
MARKERS = (START, END, MESSAGE, CHANNEL, CONSTRAIN, CALL)
"""Markers that have to be included in generated text. RETURN ends the answer."""
NEXT = f"{START}assistant"
"""The beginning of all messages of an answer except the first, which the prompt has begun."""
FUNCTIONS = "functions."
THOUGHTS = f"{CHANNEL}analysis{MESSAGE}"
FINAL = f"{CHANNEL}final"
COMMENTARY = f"{CHANNEL}commentary"
