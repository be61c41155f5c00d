"""Decoding images, sounds and PDF files."""
