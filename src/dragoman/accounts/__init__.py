"""What models cost, who may spend how much, and what was spent."""
