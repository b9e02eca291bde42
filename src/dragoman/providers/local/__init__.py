"""A small local model, served by llama.cpp in a child process."""
