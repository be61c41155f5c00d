"""Images and sounds as requests bring them: fetched and decoded in processes of their own."""
