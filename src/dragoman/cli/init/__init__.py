"""`dragoman init`: begin a project, with the models of this machine or from a LiteLLM configuration."""
