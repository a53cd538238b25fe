"""Experiments in watched children: a failed step replayed, the factor that makes it fail, the batch that fits."""
