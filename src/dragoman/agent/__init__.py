"""Ask the model, run its calls, repeat."""
