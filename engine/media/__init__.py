"""Images and sounds in requests. Separate processes fetch and decode them."""
