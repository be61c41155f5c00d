"""Models that come over the network. The parent runs in the server process, all else in a child."""
