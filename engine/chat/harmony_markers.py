"""The fixed texts of Harmony (`engine.chat.parse.harmony`), for all that read, write or constrain
it."""

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
END, CALL, RETURN, CONSTRAIN = "<|end|>", "<|call|>", "<|return|>", "<|constrain|>"
MARKERS = (START, END, MESSAGE, CHANNEL, CONSTRAIN, CALL)
"""Markers that have to be shown to be read. RETURN ends the answer."""
NEXT = f"{START}assistant"
"""The beginning of every message of an answer but the first, which the prompt has begun."""
FUNCTIONS = "functions."
THOUGHTS = f"{CHANNEL}analysis{MESSAGE}"
FINAL = f"{CHANNEL}final"
COMMENTARY = f"{CHANNEL}commentary"
