"""LiteLLM's names of vendors: where they are, which protocol they speak, and which variable holds the key."""

from __future__ import annotations

from collections.abc import Mapping

ADDRESSES: Mapping[str, str] = {
    "openai": "https://api.openai.com/v1",
    "groq": "https://api.groq.com/openai/v1",
    "mistral": "https://api.mistral.ai/v1",
    "codestral": "https://codestral.mistral.ai/v1",
    "deepseek": "https://api.deepseek.com/v1",
    "deepinfra": "https://api.deepinfra.com/v1/openai",
    "together_ai": "https://api.together.xyz/v1",
    "openrouter": "https://openrouter.ai/api/v1",
    "fireworks_ai": "https://api.fireworks.ai/inference/v1",
    "perplexity": "https://api.perplexity.ai",
    "xai": "https://api.x.ai/v1",
    "cerebras": "https://api.cerebras.ai/v1",
    "sambanova": "https://api.sambanova.ai/v1",
    "nvidia_nim": "https://integrate.api.nvidia.com/v1",
    "meta_llama": "https://api.llama.com/compat/v1",
    "volcengine": "https://ark.cn-beijing.volces.com/api/v3",
    "friendliai": "https://api.friendli.ai/serverless/v1",
    "ai21": "https://api.ai21.com/studio/v1",
    "moonshot": "https://api.moonshot.ai/v1",
    "dashscope": "https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
    "github": "https://models.inference.ai.azure.com",
    "cohere": "https://api.cohere.ai/compatibility/v1",
    "huggingface": "https://router.huggingface.co/v1",
    "gemini": "https://generativelanguage.googleapis.com/v1beta/openai",
}
"""Where the providers that speak chat.completions are; the others need an `api_base`."""
SAME = {"cohere_chat": "cohere", "ai21_chat": "ai21", "azure_text": "azure", "vllm": "hosted_vllm"}
SELF_HOSTED = frozenset(
    {"hosted_vllm", "lm_studio", "llamafile", "openai_like", "custom_openai", "litellm_proxy", "azure"}
    | {"azure_ai", "databricks", "snowflake", "xinference", "docker_model_runner"}
)
NATIVE = {"anthropic": "anthropic", "ollama": "ollama", "ollama_chat": "ollama"}
"""Vendors whose own protocol the hub speaks, with the type of their provider."""
KEY_VARIABLES = {
    "together_ai": "TOGETHER_API_KEY",
    "fireworks_ai": "FIREWORKS_API_KEY",
    "huggingface": "HF_TOKEN",
    "meta_llama": "LLAMA_API_KEY",
    "friendliai": "FRIENDLI_TOKEN",
}
BARE_NAMES = {"claude": "anthropic", "gemini": "vertex_ai", "command": "cohere"}
"""Vendors of models that are named without one, by how the names begin; the others are OpenAI's."""


def split_model(text: str) -> tuple[str, str]:
    """Return the vendor and the model of LiteLLM's `vendor/model`."""
    vendor, slash, model = text.partition("/")
    if slash:
        return SAME.get(vendor, vendor), model
    return BARE_NAMES.get(text.partition("-")[0], "openai"), text


def key_variable(vendor: str) -> str | None:
    """Return the variable that LiteLLM reads where an entry has no key."""
    if vendor in ADDRESSES or vendor in ("anthropic", "azure", "azure_ai"):
        return KEY_VARIABLES.get(vendor, f"{vendor.upper()}_API_KEY")
    return None
