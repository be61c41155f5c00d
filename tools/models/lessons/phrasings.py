"""Makes many phrasings of a request from parts, for the training only.

Some phrasings in the lists of the lessons are held out for the evaluation. `phrase` makes no
phrasing that equals one of these, or differs from it only in case, punctuation or politeness.
"""

import re
from collections.abc import Sequence
from functools import cache

from tools.models.lessons.source import Source, is_held_out_phrase

Parts = Sequence[Sequence[str]]
"""A phrasing has one of each part, in this order."""

OPENINGS = (
    "Please {text}", "Could you {text}", "Can you {text}", "I want you to {text}", "Now {text}",
    "Hi, {text}", "I need you to {text}", "Would you please {text}", "Kindly {text}", "Next, {text}",
    "Would you {text}", "please {text}", "can you {text}", "Hello, {text}", "OK, {text}", "Let's {text}",
)  # fmt: skip
QUESTIONS = (
    "Tell me: {text}", "Hi. {text}", "I have a question. {text}", "Question: {text}", "Next: {text}",
    "Please answer: {text}", "One more: {text}", "Hello! {text}", "Now this: {text}", "And: {text}",
    "A question: {text}", "Quick question: {text}", "Please tell me: {text}", "So: {text}", "Answer this: {text}",
)  # fmt: skip

NEXT = (":\n{text}", ": {text}", ":\n\n{text}", ". {text}", ": \"{text}\"", " - {text}", ":\n\"{text}\"", ".\n{text}", ".\n\n{text}")  # fmt: skip
BEFORE = ("{text}\n\n", "{text}\n", "\"{text}\"\n", "\"{text}\" ", "Text: {text}\n", "Text: {text}\n\n", "Here is a text:\n{text}\n\n", "{text} ", "Input: {text}\n", "Take this: {text}\n")  # fmt: skip
"""A text after an instruction, and before one."""

COPY = (
    ("Repeat", "Copy", "Echo", "Write", "Type", "Print", "Output", "Reproduce", "Return", "Say", "Restate", "Give back", "Write out", "Show"),
    (" this text", " the following text", " the text below", " this", " these words", " what follows", " the next text", " this passage", " the following", " the text here", "", ""),
    ("", " exactly", " word for word", " again", " unchanged", " as it is", " verbatim", " without changes", " one more time", " once again", " to me"),
    NEXT,
)  # fmt: skip
COPY_LAST = (
    BEFORE,
    ("Repeat", "Copy", "Echo", "Write", "Type", "Print", "Output", "Reproduce", "Return", "Say", "Show"),
    (" this text", " that", " this", " these words", " it", " that text", " the words above"),
    ("", " exactly", " word for word", " again", " unchanged", " as it is", " verbatim", " once again"),
    (".", "", ", please."),
)  # fmt: skip
SAY = (
    ("Repeat", "Say", "Echo", "Copy", "Write", "Type", "Print", "Output", "Return", "Pronounce", "Recite", "Utter", "Quote", "Name", "Voice", "Reply", "Answer", "Speak", "Tell me", "Give me", "Respond", "Shout", "Call out", "Put down"),
    (" {text}", ": {text}", " \"{text}\"", " \"{text}\".", " the words {text}", " just {text}", " only: {text}", " this: {text}", " {text}, please"),
)  # fmt: skip
_AGAIN = (
    ("Repeat", "Copy", "Write", "Print", "Output", "Reproduce", "Return", "Give me", "Type", "Show"),
    (" this text", " the following text", " the text below", " this", " what follows", " the following", " the next text"),
)  # fmt: skip
_WITH = (
    " with {old} replaced by {new}", " with {new} in place of {old}", " but with {new} instead of {old}", " with {new} for {old}",
    " and replace {old} by {new}", " and change {old} into {new}", ", replacing {old} with {new}", " and put {new} wherever it says {old}",
    " with every {old} turned into {new}", " and swap {old} for {new}", " with \"{old}\" changed to \"{new}\"", " but {old} is now {new}",
    " and use {new} for {old}", " but use {new} in place of {old}", ", where {new} stands for {old}", " so that {old} becomes {new}",
    " and write {new} where it has {old}", " with {new} where {old} was", ". Say {new} for {old}", ", {old} being {new}",
    " and let {new} take the place of {old}", " but put \"{new}\" where \"{old}\" is", ", only with {old} as {new}", ". {old} should be {new}",
)  # fmt: skip
CHANGE = (*_AGAIN, _WITH, NEXT)
CHANGE_LAST = (BEFORE, _AGAIN[0], (" this", " that", " it", " this text", " that text", " the words above"), _WITH, (".", "", ", please."))  # fmt: skip
CHANGE_THAT = (
    ("This text", "The text below", "The following text", "The same text", "This passage", "This", "The next text", "What follows", "These words"),
    ("", ", please,", " again", " once more,", " as it is,"), _WITH, NEXT,
)  # fmt: skip
_SWAP = (
    ("Replace", "Exchange", "Swap", "Switch"),
    (" {old} with {new}", " {old} by {new}", " the word {old} with {new}", " every {old} with {new}", " \"{old}\" by \"{new}\"", " all {old} by {new}", " each {old} for {new}", " {old} for the word {new}", " the word \"{old}\" by the word \"{new}\""),
)  # fmt: skip
_HERE = (" in this text", " in the following text", " in the text below", " here", "", " in what follows", " in the next sentences", " in this", " everywhere in this text")  # fmt: skip
SWAP = (*_SWAP, _HERE, NEXT)
SWAP_LAST = (BEFORE, *_SWAP, ("", " in it", " in that", " there", " in these words"), (".", ""))
TURN = (
    ("Change", "Turn", "Make", "Put", "Use", "Write"),
    (" {new} for {old}", " {new} where {old} is", " {new} in place of {old}", " {new} wherever {old} is", " {new} whenever you see {old}", " {new} for every {old}", " \"{new}\" for \"{old}\""),
    _HERE, NEXT,
)  # fmt: skip
BECOMES = (
    ("In this text", "Below", "In the text below", "Here", "In what follows", "In the next text", "In these sentences"),
    (", ", " "),
    ("{old} is now {new}", "{old} turns into {new}", "every {old} becomes {new}", "\"{old}\" becomes \"{new}\"", "{new} replaces {old}", "{old} has to be {new}", "{old} changes to {new}", "let {old} be {new}", "the word {old} becomes {new}", "{new} takes the place of {old}"),
    (". Copy it", ". Give it back", ". Print the result", ". Write the new text", "", ". Repeat it", ". Type it", ". Return it so", ". Show it"),
    NEXT,
)  # fmt: skip

WHO = (
    (("What is ", "Tell me ", "Please tell me ", "Could you tell me ", "Can you tell me ", "I want to know ", "I would like to know ", "May I know ", "May I hear ", "Let me know ", "Say ", "Do you know ", "Would you say ", "Do you mind saying "), ("your name", "what your name is", "how you are called", "who you are", "which name you have", "the name you go by", "what I should call you", "whom I am talking to"), ("?", ".", "")),
)  # fmt: skip
_ASK = (
    "Tell me ",
    "Can you tell me ",
    "Please say ",
    "I want to know ",
    "Say ",
    "Could you repeat ",
    "I forgot ",
    "Now say ",
)
_REMEMBER = (
    "Do you know ",
    "Do you still know ",
    "Do you remember ",
    "Have you kept in mind ",
    "Can you remember ",
    "Do you recall ",
    "Did you note ",
)


def asking(what: Sequence[str]) -> Sequence[Parts]:
    """Returns questions for earlier statements."""
    return ((_ASK, what, (".", "", ", please.")), (_REMEMBER, what, ("?", "")))


_KEY = (
    "the {key}",
    "its {key}",
    "{key}",
    "the {key} there",
    "the {key} now",
    "this {key}",
    "the new {key}",
    "the {key} at the end",
    "their {key}",
    "your {key}",
    "the {key} of it",
    "the {key} still",
    "the {key} in it",
    "the {key} today",
)
SAID = (
    (_KEY, (" is {value}", " was {value}", ": {value}", " = {value}", " {value}", " has been {value}", " will be {value}", " - {value}", " equals {value}", ", {value}", ", which is {value}", " ({value})", " became {value}", " stays {value}", " reads {value}")),
    (("has", "shows", "with", "bears", "holds", "takes", "gets", "we have", "you find", "it had", "having", "I see", "there is", "it got"), (" {value}",), (" as {key}", " for {key}", " as its {key}", " as the {key}", " for the {key}", " under {key}", " being the {key}")),
    (("{value}",), (" is", " was", " is given as", " counts as", " became", " is there as"), (" the {key}", " its {key}", " this {key}")),
)  # fmt: skip
"""A key and its value in a text."""
SET = (
    (("the {name}", "its {name}", "{name}", "a {name}", "the new {name}", "my {name}", "the right {name}", "the {name} now", "the {name} of it"), (" should be {value}", " must be {value}", " has to be {value}", " shall be {value}", " set to {value}", " to be {value}", ": {value}", "={value}", " = {value}", " {value}", " is {value}", " of {value}", " -> {value}", " being {value}", " equal to {value}", " will be {value}", " being set to {value}", ", which is {value}")),
    (("use", "with", "take", "I want", "put in", "set", "choose", "give it", "let it have", "having", "go for", "and", "namely", "it has"), (" {value}",), (" as {name}", " for {name}", " as the {name}", " as its {name}", " for the {name}", " as a {name}", " for its {name}")),
)  # fmt: skip
"""A parameter and its value in a request."""


def described(key: str) -> Sequence[Parts]:
    """Returns statements about a person, with the key's own name."""
    return (
        (("has", "gives", "names", "notes", "put down", "entered", "filled in", "has always had", "wrote"), (" {}",), (f" as {key}", f" as the {key}", f" for {key}", f" for the {key}", f" under {key}")),
        (("has", "gives", "names", "goes with", "is listed with", "has a", "is here with", "told us"), (f" the {key} ", f" {key} ", f" as {key} ", f" the {key}: ", f" {key}: "), ("{}",)),
    )  # fmt: skip


_FIND = ("Extract", "Get", "Find", "Pull out", "Return", "Give me", "Collect", "Take", "Identify", "Read off", "Look up", "Report", "Parse", "Show me", "List", "I need", "Write down", "Fetch", "Tell me", "Note")  # fmt: skip
_KEYS = (" {keys}", " {keys}", " the values of {keys}", " the fields {keys}", " the keys {keys}", " {keys} only", " the values for {keys}", " these: {keys}", " data on {keys}")  # fmt: skip
_JSON = ("", " as JSON", " as a JSON object", " in JSON", " in a JSON object", " and answer in JSON", " and give JSON", " as an object")  # fmt: skip
EXTRACT = (
    _FIND, _KEYS,
    (" from this text", " from the following", " from this sentence", " in the text below", " out of this", "", " from the text", " from this", " of this text"),
    _JSON,
    (*NEXT, ". Text: {text}", "\nText: {text}", ".\nInput: {text}"),
)  # fmt: skip
EXTRACT_LAST = (BEFORE, _FIND, _KEYS, ("", " from this", " from it", " in this text", " from the text above"), _JSON, (".", "", ":", ", please."))  # fmt: skip
FROM = (
    ("From", "Out of", "In", "Using", "Of", "Look at", "Read", "Given", "With", "See"),
    (" this: {text}", " this text: {text}", " \"{text}\"", " this text: \"{text}\"", " the sentence \"{text}\"", " the following: \"{text}\"", " the text '{text}'", ": {text}"),
    ("\n", " ", ", ", "\n\n", " - "),
    ("extract", "get", "find", "return", "pick out", "give me", "read off", "collect", "report", "list", "write", "note", "keep"),
    _KEYS, _JSON, (".", "", ":"),
)  # fmt: skip
LABELLED = (
    ("", "Text: ", "Input: ", "Sentence: ", "Data: ", "Passage: ", "Note: ", "Document: "),
    ("{text}", "\"{text}\""),
    ("\n", "\n\n", " "),
    ("Fields", "Wanted", "Keys to find", "Extract", "JSON keys", "Find", "Needed", "Output keys", "Values of", "JSON with", "Write JSON with"),
    (": {keys}", ": {keys}.", ":\n{keys}", " - {keys}"),
)  # fmt: skip
LABELLED_FIRST = (
    ("Fields", "Keys", "Wanted", "Keys to find", "Extract", "JSON keys", "Find", "Needed", "Output", "I want", "Your keys"),
    (": {keys}", ": {keys}.", " - {keys}"),
    ("\n", "\n\n", " "),
    ("Text: ", "Input: ", "Sentence: ", "Data: ", "Passage: ", "From: ", "Document: "),
    ("{text}", "\"{text}\""),
)  # fmt: skip
ASK_KEYS = (
    ("What is said about", "What do we learn about", "What are the values of", "What does it say on", "What is"),
    (" {keys}",), ("", " in this text", " in the text"), ("?", "? JSON please.", "? Give JSON.", "? As JSON."), ("\n{text}", " {text}", "\n\n{text}", " \"{text}\""),
)  # fmt: skip
EXTRACTION = (EXTRACT, EXTRACT, EXTRACT_LAST, FROM, LABELLED, LABELLED_FIRST, ASK_KEYS)
_DATA = ("the data", "all data", "all fields", "the facts", "everything", "all values", "the details", "all keys and values", "what you find", "all of it")  # fmt: skip
EXTRACT_ALL = (
    (_FIND[:8], (" ",), _DATA, ("", " in this text", " from this", " from this sentence", " here"), _JSON[1:], NEXT),
    (BEFORE, ("Extract ", "Return ", "Write ", "Put ", "Collect "), (*_DATA, "this", "that", "it"), _JSON[1:5], (".", "", ":")),
    (("Turn", "Convert", "Change", "Transform", "Parse", "Put", "Bring"), (" this text", " the following", " this sentence", " what follows"), (" into JSON", " into a JSON object", " to JSON", " to an object"), NEXT),
)  # fmt: skip

_UPPER = (" in upper case", " in capital letters", " in capitals", " into upper case", " to upper case", " all in capitals", " in uppercase", " with capital letters", " in big letters", " in block capitals")  # fmt: skip
_LOWER = (" in lower case", " in small letters", " into lower case", " to lower case", " all in small letters", " in lowercase", " with small letters", " without capitals")  # fmt: skip
_CASE = ("Write", "Put", "Convert", "Turn", "Print", "Change", "Give me", "Type", "Show", "Make", "Say", "Set")  # fmt: skip
_THIS = (" this", " the following", " these words", " this text", " the next words", " what follows", " the text", " the words")  # fmt: skip
UPPER = (
    (_CASE, _THIS, _UPPER, NEXT),
    (_CASE, (" {text}", " \"{text}\"", " the word \"{text}\"", " the text {text}"), _UPPER, (".", "", ", please")),
    (BEFORE, _CASE, (" this", " that", " it", " these words"), _UPPER, (".", "")),
    (("In upper case", "Uppercase", "Capitals", "Upper", "All capitals", "To upper case", "In big letters", "CAPS"), NEXT),
)  # fmt: skip
LOWER = (
    (_CASE, _THIS, _LOWER, NEXT),
    (_CASE, (" {text}", " \"{text}\"", " the word \"{text}\"", " the text {text}"), _LOWER, (".", "", ", please")),
    (BEFORE, _CASE, (" this", " that", " it", " these words"), _LOWER, (".", "")),
    (("In lower case", "Lowercase", "No capitals", "Lower", "To lower case", "Only small letters"), NEXT),
)  # fmt: skip

_COMPUTE = ("What is ", "What's ", "How much is ", "Calculate ", "Compute ", "Work out ", "Solve ", "Find ", "Give me ", "Tell me ", "what is ", "how much is ", "", "", "The result of ", "I need ", "Can you compute ", "What do you get for ", "What does ", "What would be ", "Do the sum: ", "Result of ")  # fmt: skip
SUM = ((_COMPUTE, ("{a} {sign} {b}", "{a}{sign}{b}", "{a} {sign} {b}"), ("?", "", ".", " =", " equal?", " = ?", "=", " give?", ", please")),)  # fmt: skip
SPOKEN = ((_COMPUTE, ("{a} {word} {b}",), ("?", "", ".", ", please", " equal?", " =")),)
PLUS = (
    (("Add ", "Sum ", "Put together ", "The sum of ", "What is the sum of ", "Find the sum of ", "The total of ", "What is the total of ", "Add up "), ("{a} and {b}", "{a}, {b}"), ("", ".", "?")),
    (("Add ",), ("{a} to {b}", "to {b} the number {a}"), ("", ".")),
    (("What do ", "How much do ", "What would "), ("{a} and {b}",), (" make", " give", " add up to", " come to"), ("?", "")),
)  # fmt: skip
MINUS = (
    (("Subtract {b} from {a}", "Take {b} from {a}", "Take {b} away from {a}", "What is {a} less {b}", "{a} without {b}", "What is left of {a} without {b}", "Take {a} and subtract {b}", "What remains of {a} after {b} is taken away", "The difference of {a} and {b}", "How far is it from {b} to {a}"), ("", ".", "?")),
)  # fmt: skip
TIMES = (
    (("Multiply {a} by {b}", "Multiply {a} and {b}", "{a} multiplied by {b}", "The product of {a} and {b}", "What is the product of {a} and {b}", "{a} x {b}", "What is {a} multiplied by {b}", "{a} multiplied with {b}", "What is {a} x {b}"), ("", ".", "?")),
)  # fmt: skip
CHAIN = (
    (_COMPUTE, ("{a} + {b} + {c}", "{a} plus {b} plus {c}", "{a}+{b}+{c}"), ("?", "", ".", " =", " = ?")),
    (("Add ", "Sum ", "Sum up ", "Add together ", "Total: ", "Count together ", "The total of ", "What is the sum of ", "The sum of ", "What is the total of ", "Put together "), ("{a}, {b} and {c}", "{a} and {b} and {c}", "{a}, {b}, {c}", "{a} and {b}, then {c}", "the numbers {a}, {b} and {c}"), ("", ".", "?")),
    (("What do ", "How much do ", "How much are ", "What are ", "What would "), ("{a}, {b} and {c}", "{a} and {b} and {c}", "{a}, {b}, {c}", "the numbers {a}, {b} and {c}"), (" make", " give", " add up to", " in total", " come to", " together", " in all", " sum to"), ("?", "")),
)  # fmt: skip
LARGER = (
    (("Which is ", "Which number is ", "Which one is ", "What is ", "Which of them is ", "Say which is ", "Find which is ", "Choose which is "), ("larger", "greater", "bigger", "more", "higher", "the larger one", "the bigger number", "the greater one", "the largest"), (", ", ": ", "? "), ("{a} or {b}", "{a}, {b}", "{a} and {b}"), ("?", "", ".")),
    (("Tell me", "Give me", "Find", "Say", "Name", "Pick", "Choose", "Write", "Show", "Take", "Which is", "What is"), (" the larger", " the bigger", " the greater", " the higher", " the largest", " the maximum"), (" of", " number of", " out of", " number:", " of these:", " of the two:"), (" {a} and {b}", " {a}, {b}", " {a} or {b}"), (".", "", "?")),
    (("{a} and {b}", "{a} or {b}", "{a}, {b}", "Here are {a} and {b}", "Compare {a} with {b}", "Look at {a} and {b}", "We have {a} and {b}", "Two numbers, {a} and {b}"), (": ", ", ", ". ", " - "), ("which is ", "which one is ", "what is ", "which number is ", "tell me which is "), ("larger", "greater", "bigger", "more", "higher", "the larger"), ("?", "")),
    (("Is ",), ("{a} or {b}", "the number {a} or {b}", "{a} or rather {b}"), (" the bigger one", " larger", " the larger one", " more", " the greater number", " greater", " bigger", " higher"), ("?", "")),
)  # fmt: skip

_SIZE = ("How many words", "What number of words", "how many words")
COUNT = (
    (_SIZE, (" are in", " does it take to say", " do you count in", " are there in", " can you find in", " do you see in", " make up"), (" \"{text}\"", " this: {text}", ": {text}", " the text \"{text}\"", " this text: {text}"), ("?", "")),
    (_SIZE, (" are here", " do you see", " is this", " are these", " does this text have", " are in this text", " can you count"), ("? {text}", ": {text}", "?\n{text}", "? \"{text}\"")),
    (("Count", "Give me the number of", "Tell me the number of", "Say the number of", "Work out the number of", "Find the number of"), (" words", " the words", " all words", " all the words"), (" here", " of this text", " in the following", "", " below"), NEXT),
    (BEFORE, (*_SIZE, "Count the words", "Tell me how many words", "The number of words"), (" are there", " is that", " are these", " do you see here", ""), ("?", ".", "")),
)  # fmt: skip
LETTERS = (
    (("How many letters", "How many characters", "how many letters", "What number of letters"), (" has", " does it take to write", " are in", " are there in", " make up", " do you count in", " are needed for"), (" the word {word}", " {word}", " \"{word}\"", " the word \"{word}\"", " '{word}'"), ("?", "")),
    (("Count", "Tell me the number of", "Give me the number of", "What is the count of", "Say the number of", "The number of"), (" letters", " the letters", " all letters"), (" in", " of", " for"), (" the word {word}", " {word}", " \"{word}\"", ": {word}"), ("", ".", "?")),
    (("{word}", "\"{word}\"", "Take the word {word}", "The word {word}", "Word: {word}", "Here is a word: {word}"), (": ", ". ", "\n", " - "), ("how many letters are there", "how many letters is that", "count the letters", "number of letters", "how many letters are in it", "how long is it in letters"), ("?", ".", "")),
)  # fmt: skip
SPELL = (
    (("Spell", "Spell out", "Give the spelling of", "Show the letters of", "Write the letters of", "Say the letters of", "Name the letters of", "Tell me the letters of", "How would you spell", "Type the letters of", "List the letters in"), (" {word}", " the word {word}", " \"{word}\"", ": {word}", " the word \"{word}\"", " this word: {word}"), ("", ".", ", please", "?", " with hyphens")),
    (("{word}", "\"{word}\"", "Word: {word}", "The word {word}"), (": ", ". ", "\n", " - "), ("spell it", "how is that spelled", "how do you spell it", "letter for letter", "spell that", "which letters are in it"), ("?", ".", "")),
)  # fmt: skip
_WHICH = ("Which word is", "What is", "What's", "Tell me", "Give me", "Say", "Find", "Name", "which word is", "Write", "Show me", "Pick", "Return")  # fmt: skip
PLACE = (
    (_WHICH, (" word {n}", " word number {n}", " number {n}", " the word at place {n}", " the word with the number {n}", " the word in position {n}"), (" of", " in", " from", " in the text", " among", " out of"), (" \"{text}\"", ": {text}", " these words: {text}", " this text: {text}", " {text}"), ("?", "", ".")),
    (BEFORE, _WHICH, (" word {n}", " number {n}", " the word at place {n}", " the word in position {n}", " word no. {n}"), ("?", "", " here.", " of this text?", " there?")),
    (("In", "Look at", "From", "Out of", "Take", "Of"), (" \"{text}\"", " these words: {text}", " the text \"{text}\""), (", ", ": ", " - "), ("what is word {n}", "tell me word {n}", "which word has the place {n}", "find word number {n}", "give me the word at place {n}", "say word {n}"), ("?", ".", "")),
)  # fmt: skip
BACKWARDS = (
    (("Write", "Say", "Give me", "Print", "Put", "Type", "Repeat", "Return", "List", "Show"), (" these words", " the words", " the following words", " this text", " the following", " this"), (" backwards", " in reverse", " in reverse order", " from the end to the start", " from back to front", " with the last word first", " starting with the last one", " the other way round", " in the opposite order"), NEXT),
    (("Reverse", "Turn round", "Invert", "Flip"), (" these words", " the words", " the following words", " the word order of", " this", " the sequence of these words"), NEXT),
    (BEFORE, ("Write", "Say", "Repeat", "Type"), (" it", " this", " these words"), (" backwards", " in reverse", " from the last word to the first", " in reverse order"), (".", "")),
)  # fmt: skip
FIRST_WORD = (
    (_WHICH, (" the first word", " the word at the beginning", " the first one", " the word that comes first", " the word at the start"), (" of", " in"), (" \"{text}\"", ": {text}", " this text: {text}", " this: {text}"), ("?", "", ".")),
    (BEFORE, _WHICH, (" the first word", " the word at the beginning", " the word it starts with", " the word that comes first"), ("?", "", ".")),
    (("With which word does ", "What word does ", "Which word does "), ("\"{text}\"", "the text \"{text}\"", "this"), (" start", " begin", " open"), (" with?", "?")),
)  # fmt: skip
LAST_WORD = (
    (_WHICH, (" the last word", " the word at the end", " the last one", " the final word", " the word that comes last"), (" of", " in"), (" \"{text}\"", ": {text}", " this text: {text}", " this: {text}"), ("?", "", ".")),
    (BEFORE, _WHICH, (" the last word", " the word at the end", " the final word", " the word it ends with", " the word that comes last"), ("?", "", ".")),
    (("With which word does ", "What word does ", "Which word does "), ("\"{text}\"", "the text \"{text}\"", "this"), (" end", " stop", " close"), (" with?", "?")),
)  # fmt: skip

_LABEL = ("Text: ", "Context: ", "Facts: ", "Note: ", "Passage: ", "Information: ", "Story: ", "Known: ", "Sentence: ", "Input: ", "This is given: ", "I was told: ", "We know: ", "Read this: ", "Consider: ", "Suppose: ", "Here are the facts: ", "It is known that this holds: ", "As you know: ", "Remember: ", "Listen: ", "Look: ", "Data: ")  # fmt: skip
_ASKED = ("{question}", "{question}", "Question: {question}", "Q: {question}", "Answer this: {question}", "So: {question}", "Tell me: {question}", "My question: {question}", "And now: {question}", "What do you say: {question}")  # fmt: skip
ABOUT = (
    (_LABEL, ("{text}", "{text}", "\"{text}\""), ("\n", " ", "\n\n"), _ASKED),
    (("{text}", "\"{text}\"", "'{text}'"), ("\n", " ", "\n\n", " - "), _ASKED),
    (_ASKED, ("\n", " ", "\n\n"), _LABEL, ("{text}", "\"{text}\"")),
    (_ASKED, ("\n\n", "\n", " "), ("{text}", "\"{text}\"", "({text})")),
    (("Answer the question", "Answer", "Answer a question", "Reply to this", "Use the text", "Read and answer"), (".", ":", " by the text.", " from this."), ("\n", " "), ("{text}", "Text: {text}"), ("\n", " "), _ASKED),
)  # fmt: skip
LEFT = (
    (("{text} ", "{text}\n", "{text}\n\n", "Story: {text} ", "Task: {text} ", "\"{text}\" "), ("How many {thing} ", "How many ", "What number of {thing} ", "So how many {thing} ", "Now how many {thing} ", "how many {thing} "), ("are there", "are there in the end", "are left", "do we have", "is it now", "are there after that", "are there in total", "do you count now", "remain"), ("?", "")),
    (("{text} ", "{text}\n", "{text}\n\n"), ("Count the {thing}", "Tell me the number of {thing}", "Say how many {thing} there are", "The number of {thing} now", "Give me the number of {thing}", "What is the new number of {thing}", "Compute how many {thing} there are now"), (".", "?", "")),
    (("How many {thing} are there in the end? ", "How many {thing} are there now? ", "Find the number of {thing}: ", "Count the {thing}: ", "Tell me how many {thing} there are after this: "), ("{text}",)),
)  # fmt: skip

_OPENING = re.compile(
    r"^(please|could you|can you|would you|will you|i want you to|i need you to|kindly|now|next|hi|"
    r"hello|hey|ok|lets|question|and|so|one more|please tell me|i have a question|now this|"
    r"please answer|a question|quick question|answer this|it would be nice if you) (?=.)"
)


@cache
def bare(pattern: str) -> str:
    """Returns the pattern without case, punctuation and polite openings, for comparisons."""
    text = " ".join(re.sub(r"[^\w{} +*-]", "", pattern.lower().replace("\n", " ")).split())
    while text != (text := _OPENING.sub("", text)):
        pass
    return text.removesuffix(" please").replace(" ", "")


@cache
def _held_out(listed: Sequence[str]) -> frozenset[str]:
    return frozenset(bare(each) for i, each in enumerate(listed) if is_held_out_phrase(i))


_WONDER = ("Who", "What", "Why", "When", "Where", "How", "Which {noun}", "How often", "How long", "How many {noun}", "Since when", "With whom", "For how long", "How fast", "How big")  # fmt: skip
UNKNOWABLE = (
    (_WONDER, (" is", " was", " will be", " are", " has"), (" the {noun}", " {name}", " {city}", " a {noun}", " the {noun} of {name}", " the {color} {noun}"), ("?", " in {country}?", " in {city}?", " in {year}?", " today?", " now?")),
    (_WONDER, (" does", " did", " can", " will", " should"), (" the {noun}", " {name}", " a {noun}", " {city}"), (" live", " cost", " work", " go", " win", " make", " need", " eat", " sleep", " come", " last", " weigh", " open", " end"), ("?", " in {country}?", " in {city}?", " today?")),
    (("The", "What's the", "Name the", "Tell me the", "Which is the", "Do you know the", "What was the", "Say the", "I need the"), (" capital", " capital", " capital city", " president", " flag", " size", " population", " king", " language"), (" of {country}", " of {city}", " of {name}", " of the {noun}"), ("?", "", ".")),
    (("Capital", "The capital", "President", "Population", "King", "The flag", "Capital city", "Mayor"), (" of {country}", " of {city}"), ("?", "", ".")),
    (("Which city is", "What city is", "Is {city}", "Since when is {city}", "Why is {city}"), (" the capital", " the largest city", " the oldest city"), (" of {country}", " of {city}"), ("?", "")),
    (("Tell me", "Explain", "Describe", "Teach me", "I want to know"), (" something about", " all about", " the history of", " the news on", " the reason for", " the price of"), (" {city}", " the {noun}", " {name}", " {country}", " a {noun}"), (".", "", " please.")),
)  # fmt: skip


def is_held_out_in(listed: Sequence[str], pattern: str) -> bool:
    """True if the pattern, with or without an opening, is one of the evaluation."""
    return bare(pattern) in _held_out(tuple(listed))


def phrase(
    source: Source, listed: Sequence[str], parts: Sequence[Parts], share: float = 0.75
) -> str:
    """Returns one of `listed`, or, in a `share` of the training, a phrasing made from one of
    `parts`."""
    if source.held_out:
        return source.phrase(listed)
    pattern = made(source, listed, parts) if source.chance(share) else source.phrase(listed)
    return worn(source, listed, pattern) if source.chance(WORN) else pattern


WORN = 0.08
"""The share of requests with an unknown word."""
_OWN_WORD = re.compile(r"(?<![{\w])[A-Za-z]{3,}\b(?!})")


def worn(source: Source, listed: Sequence[str], pattern: str) -> str:
    """Returns the pattern with some of its words replaced by any other word; enough words stay to
    understand it. The result is not one that is held out of `listed`."""
    own = list(_OWN_WORD.finditer(pattern))
    if len(own) < 4:
        return pattern
    while True:
        gone = source.one(own)
        word = source.one((source.made_up, source.word, source.piece))()
        other = f"{pattern[: gone.start()]}{word}{pattern[gone.end() :]}"
        if not is_held_out_in(listed, other):
            return other


def made(source: Source, listed: Sequence[str], parts: Sequence[Parts]) -> str:
    """Returns a phrasing made from one of `parts` that is not held out of `listed`."""
    while True:
        pattern = "".join(map(source.one, source.one(parts)))
        if not is_held_out_in(listed, pattern):
            return pattern


def several(
    source: Source,
    listed: Sequence[str],
    more: Sequence[str],
    parts: Sequence[Parts] = (),
    share: float = 0.0,
) -> str:
    """Returns one of `listed`, or, in the training, one of `more`, or in a `share` of it one made
    from one of `parts`."""
    if not source.held_out and source.chance(share):
        return made(source, listed, parts)
    if source.held_out or not source.chance(len(more) / (len(listed) + len(more))):
        return source.phrase(listed)
    return source.one(more)


ASKS = "What Who How Which Where Is Does When Why Do Are What's Has Can Did In Whose Whom".split()
TELLS = (
    "Repeat Say Write Spell Count Tell Give Calculate Compute Convert Make Turn Put Add Compare Take "
    "Find Introduce Explain Echo Copy Print Get Show List Return Extract Replace Change Search Send "
    "Set Play Book Delete Create Remove Open Close Start Stop Read Look Type Work Pick Subtract "
    "Multiply Reverse"
).split()


def varied(source: Source, request: str) -> str:
    """Returns `request` as other people would type it, in the training."""
    first = request.split(" ", 1)[0]
    if source.held_out or first not in (*ASKS, *TELLS) or not source.chance(0.35):
        return request
    lower = request[0].lower() + request[1:]
    if source.chance(0.3):
        return lower
    if first in ASKS:
        if source.chance(0.3):
            return request.removesuffix("?")
        return source.one(QUESTIONS).format(text=request)
    return source.one(OPENINGS).format(text=lower)
