"""A recorded step that failed, run again in children: which module, operator and sample, and what makes it go away."""
