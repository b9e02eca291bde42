"""Find operations by name, words and meaning."""
