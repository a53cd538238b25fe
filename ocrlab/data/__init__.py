"""Data: folders and annotation files -> samples -> one composed warp -> target maps -> batches; and synthetic receipts."""
