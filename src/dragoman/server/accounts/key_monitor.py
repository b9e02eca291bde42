"""Ends the work of keys that are no longer valid, also when another process revoked them.

A key is checked when a request begins; this is the check for everything that lasts: runs, streams, operation
calls, MCP sessions, spokes. `dragoman keys` writes to the database from its own process, so the hub queries
the database, and only for keys that have work in progress.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence

from dragoman.errors import KeyEnded, StoreError, Unavailable
from dragoman.revocable_work import ActiveWork, KeyUse
from dragoman.store.accounts.keys import KeyRejection
from dragoman.store.store import Store

log = logging.getLogger(__name__)

POLL_INTERVAL = 2.0
"""Seconds between two checks: with the 5 seconds of `auth.RECHECK_INTERVAL` well below the promised 10."""
REASONS: Mapping[KeyRejection, tuple[str, str]] = {
    "unknown": ("key deleted", "the key of this work does not exist any more"),
    "revoked": ("key revoked", "the key of this work was revoked"),
    "expired": ("key expired", "the key of this work has expired"),
    "rotated": ("key rotated", "the secret of this work was replaced, and its grace period is over"),
}


class KeyMonitor:
    """Checks the keys of all work in progress, and ends the work of those that are no longer valid."""

    def __init__(
        self,
        store: Store,
        work: Sequence[ActiveWork],
        *,
        interval: float = POLL_INTERVAL,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._keys = store.keys
        self._tokens = store.session_tokens
        self._work = work
        self._interval = interval
        self._now = now
        self._expiry: dict[KeyUse, float] = {}

    async def run(self) -> None:
        """Check every `interval` seconds until cancelled."""
        while True:
            await asyncio.sleep(self._interval)
            try:
                await self.check()
            except Exception:
                log.exception("the keys of the work in progress could not be checked")

    async def check(self) -> None:
        """Check once. While the database is down, only keys whose expiry is known can end."""
        in_use = list({key for work in self._work for key in work.keys_in_use()})
        if not in_use:
            self._expiry.clear()
            return
        in_use = [key for key in in_use if not self._end_expired_token(key)]
        try:
            await self._end_revoked_tokens(in_use)
            found = await self._keys.check_uses([(key.key_id, key.secret_id) for key in in_use])
        except (StoreError, Unavailable) as error:
            log.debug("the database does not answer (%s); keys are not checked for revocation", error)
            self._end_expired()
            return
        self._expiry = {}
        for key, result in zip(in_use, found, strict=True):
            if isinstance(result, str):
                self._end(key, result)
            elif result is not None:
                self._expiry[key] = result

    async def _end_revoked_tokens(self, in_use: Sequence[KeyUse]) -> None:
        """End the work of session tokens that were revoked."""
        ids = [key.token_id for key in in_use if key.token_id is not None]
        revoked = await self._tokens.find_revoked(ids) if ids else frozenset()
        for key in in_use:
            if key.token_id in revoked:
                self._end(key, "revoked")

    def _end_expired_token(self, key: KeyUse) -> bool:
        """End the work of a session token that has expired. Return whether it has."""
        if key.expires_at is None or key.expires_at > self._now():
            return False
        self._end(key, "expired")
        return True

    def _end_expired(self) -> None:
        for key, expires_at in list(self._expiry.items()):
            if expires_at <= self._now():
                del self._expiry[key]
                self._end(key, "expired")

    def _end(self, key: KeyUse, reason: KeyRejection) -> None:
        title, detail = REASONS[reason]
        error = KeyEnded(f"{title}: {detail}", reason=title)
        ended = sum(work.stop(key, error) for work in self._work)
        if ended:
            what = "requests, runs and connections"
            log.warning("%s: %d %s of key %s were ended", title, ended, what, key.key_id)
