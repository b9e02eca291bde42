"""A small model on this machine, served by llama.cpp in a child process."""
