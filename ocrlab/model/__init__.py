"""The detector: encoder -> decoder (ends in `fusion`) -> DB head. Start reading at `dbnet.py`."""
