"""The last step of a replay under a magnifying glass: the first module, operator and sample at which it goes wrong."""
