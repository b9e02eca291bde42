"""Limits of a key or an owner: requests, tokens and money."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Limits of a key or an owner on model requests. None: no limit. Money is in US dollars, days are UTC."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    parallel: int | None = None
    usd_per_day: float | None = None
    usd_per_month: float | None = None
    usd_total: float | None = None


NO_LIMITS = Limits()
