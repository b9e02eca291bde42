"""The configuration files of the gateways: the same two upstreams for each, in its own words."""

import json
from collections.abc import Mapping
from pathlib import Path

INPUT, OUTPUT = 0.5, 1.5
"""US dollars for a million tokens, for whoever computes a cost."""


def dragoman(*, upstream: int, limits: Mapping[str, object] | None) -> str:
    """dragoman.yaml; JSON is YAML."""
    url = f"http://127.0.0.1:{upstream}"
    prices = {"*": {"input": INPUT, "output": OUTPUT}}
    providers = {
        "openai": {"type": "openai", "base_url": f"{url}/v1", "api_key_env": "UP_KEY", "prices": prices},
        "anthropic": {"type": "anthropic", "base_url": url, "api_key_env": "UP_KEY", "prices": prices},
    }
    sections = {"providers": providers, "limits": limits} if limits else {"providers": providers}
    return json.dumps(sections, indent=1)


def litellm(*, upstream: int, model: str) -> str:
    """config.yaml of LiteLLM's proxy."""
    url = f"http://127.0.0.1:{upstream}"
    cost = {"input_cost_per_token": INPUT / 1e6, "output_cost_per_token": OUTPUT / 1e6}
    models = [
        {
            "model_name": f"{family}/{model}",
            "litellm_params": {
                "model": f"{family}/{model}",
                "api_base": base,
                "api_key": "sk-upstream",
                "timeout": 600,
            },
            "model_info": cost,
        }
        for family, base in (("openai", f"{url}/v1"), ("anthropic", url))
    ]
    settings = {"drop_params": True, "use_chat_completions_url_for_anthropic_messages": True}
    general = {"master_key": "sk-benchmark", "disable_spend_logs": True}
    return json.dumps(
        {"model_list": models, "litellm_settings": settings, "general_settings": general}, indent=1
    )


def nginx(*, folder: Path, port: int, upstream: int) -> str:
    """nginx.conf: a reverse proxy that passes on each read at once."""
    directives = " ".join(
        f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return f"""daemon off;
master_process on;
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr error;
events {{ worker_connections 16384; }}
http {{
  access_log off;
  {directives}
  keepalive_requests 1000000000;
  tcp_nodelay on;
  upstream models {{ server 127.0.0.1:{upstream}; keepalive 4096; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://models;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 600s;
    }}
  }}
}}
"""
