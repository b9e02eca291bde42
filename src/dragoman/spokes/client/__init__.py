"""The spoke's end of the connection."""
