"""The secrets that sign the webhooks of triggers, encrypted: each is bound to its trigger."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dragoman.errors import StoreError
from dragoman.store.connection import DatabaseConnection
from dragoman.store.encryption import EncryptedValue, MasterKey
from dragoman.store.teams.trigger_records import TriggerRecord
from dragoman.store.teams.trigger_statements import TriggerStatements


def reencrypt_triggers(
    connection: DatabaseConnection, sql: TriggerStatements, *, old: MasterKey, new: MasterKey
) -> None:
    """In a job: encrypt with a new master key the secrets that the old one has encrypted."""
    for id, stored in connection.fetch_all(sql.secrets, {}):
        encrypted = msgspec.json.decode(stored, type=EncryptedValue)
        if encrypted.key_id == old.fingerprint:
            secret = encrypt_secret(id, old.decrypt(secret_name(id), encrypted), key=new)
            connection.execute(sql.update(("secret",)), {"id": id, "new_secret": secret})


def encrypt_secret(id: str, secret: str, *, key: MasterKey) -> str:
    return msgspec.json.encode(key.encrypt(secret_name(id), secret)).decode()


def secret_name(id: str) -> str:
    """Return the name that the encryption of a trigger's secret is bound to."""
    return f"trigger {id}"


def decrypt_secret(trigger: TriggerRecord, keys: Iterable[MasterKey | None]) -> str:
    """Return the secret of a trigger, by the key that encrypted it. Raises StoreError."""
    encrypted = msgspec.json.decode(trigger.secret or "", type=EncryptedValue)
    for key in keys:
        if key is not None and key.fingerprint == encrypted.key_id:
            return key.decrypt(secret_name(trigger.id), encrypted)
    text = f"the secret of the trigger {trigger.name!r} was encrypted with another key; set it again"
    raise StoreError(text, hint="hosts with folders of their own need the same DRAGOMAN_MASTER_KEY")
