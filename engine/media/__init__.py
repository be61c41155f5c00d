"""Images and sounds: from where they are to pixels and samples."""
