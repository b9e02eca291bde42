"""`dragoman doctor`: check an installation end to end, and say what to do about what is found."""
