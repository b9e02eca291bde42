"""Who may ask, and the doors."""
