"""Decoding of images, sounds and PDF files."""
