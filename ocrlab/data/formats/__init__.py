"""Annotation formats: one file for each, and what recognises, reads, writes and converts them."""
