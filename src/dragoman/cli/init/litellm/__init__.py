"""A LiteLLM configuration as a Dragoman configuration, with a list of what cannot be translated.

Source: LiteLLM's documented `config.yaml` (`model_list`, `litellm_settings`, `router_settings`,
`general_settings`, `mcp_servers`, `include`).
"""

from dragoman.cli.init.litellm.document import ImportedConfig as ImportedConfig
from dragoman.cli.init.litellm.translation import import_litellm as import_litellm
