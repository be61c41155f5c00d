"""How processes start, and what they say to each other: for both ends."""
