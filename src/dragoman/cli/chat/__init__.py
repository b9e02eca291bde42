"""`dragoman chat`: talk to a hub in the terminal."""
