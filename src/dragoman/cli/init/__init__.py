"""`dragoman init`: begin a project, from what this machine offers or from a LiteLLM configuration."""
