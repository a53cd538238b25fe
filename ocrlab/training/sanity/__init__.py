"""Whether data, model and loss agree before a training begins."""
