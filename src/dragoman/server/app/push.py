"""Builds the parts of push notifications from the configuration."""

from __future__ import annotations

from collections.abc import Mapping

from dragoman.config import Config
from dragoman.errors import ConfigError
from dragoman.server.a2a.push import PushSettings
from dragoman.tools.web.guarded_post import GuardedPost
from dragoman.tools.web.host_policy import HostPolicy, WebSettings

PUSH_TIMEOUT = 10.0  # seconds


def build_push_post(config: Config) -> GuardedPost:
    """Return the client that posts notifications."""
    networks, ports = config.a2a.push_networks, config.a2a.push_ports
    policy = HostPolicy(WebSettings(allow_networks=networks, ports=ports))
    return GuardedPost(policy, timeout=PUSH_TIMEOUT)


def push_settings(config: Config, environ: Mapping[str, str]) -> PushSettings:
    """Return the settings of notifications. Raises ConfigError when the variable of the secret is not set."""
    name, secret = config.a2a.push_secret_env, None
    if name is not None:
        secret = environ.get(name)
        if not secret:
            raise ConfigError(f"the environment variable {name} is not set; it holds the secret of a2a.push")
    return PushSettings(secret=secret, per_owner=config.a2a.push_configs)
