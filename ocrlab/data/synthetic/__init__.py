"""Synthetic receipts with exact polygons."""
