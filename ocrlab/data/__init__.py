"""Data: folders and annotations -> samples -> one composed warp -> target maps -> batches; synthetic receipts."""
