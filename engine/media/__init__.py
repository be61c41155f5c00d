"""Images, sounds and videos in requests. Separate processes fetch and decode them."""
