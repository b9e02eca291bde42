"""Builds the sender of runs' webhooks from the configuration."""

from __future__ import annotations

from dragoman.config import Config
from dragoman.errors import ConfigError
from dragoman.runs.webhooks import WebhookSender
from dragoman.server.app.services import HubServices
from dragoman.tools.web.guarded_post import GuardedPost
from dragoman.tools.web.host_policy import HostPolicy, WebSettings

TIMEOUT = 15.0  # seconds of one attempt


def build_webhook_sender(config: Config, services: HubServices) -> WebhookSender:
    """Build the sender. Raises ConfigError when the variable of its secret is not set, or is empty."""
    section, secret = config.webhooks, None
    if section.secret_env is not None:
        secret = services.environment.environ.get(section.secret_env)
        if not secret:
            raise ConfigError(f"webhooks.secret_env: {section.secret_env} is not set in the environment")
        services.environment.secrets.add(secret)
    elif section.url is not None:
        raise ConfigError("webhooks.url: deliveries have to be signed", hint="set webhooks.secret_env")
    policy = HostPolicy(
        WebSettings(
            allow_hosts=section.allow_hosts, allow_networks=section.allow_networks, ports=section.ports
        )
    )
    guarded = GuardedPost(policy, timeout=TIMEOUT)
    return WebhookSender(services.store, guarded.post, secret=secret, attempts=section.attempts)
