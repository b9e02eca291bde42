"""Keep a conversation within what its model can read."""
