"""Hand-written tasks of the evaluation, whose phrasings, words and schemas no lesson has."""
