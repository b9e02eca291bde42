"""Sealing: AES-256-GCM under a master key, for what is secret and must be kept all the same."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from pathlib import Path
from typing import Final

import msgspec

from dragoman.errors import ConfigError, StoreError

KEY_BYTES = 32
NONCE_BYTES = 12
MASTER_KEY_VARIABLE = "DRAGOMAN_MASTER_KEY"
MASTER_KEY_FILE_VARIABLE = "DRAGOMAN_MASTER_KEY_FILE"
GENERATE_HINT = "`dragoman secrets generate-key` makes one"
AAD_PREFIX = b"dragoman secret:"


class EncryptedValue(msgspec.Struct, frozen=True):
    """A value that only its master key opens; `key_id` is that key's fingerprint."""

    nonce: bytes
    ciphertext: bytes
    key_id: str


class MasterKey:
    """The key that seals all secrets: 32 random bytes, which no `repr` shows.

    A value is sealed under its name, so that one cannot be put in another's place. Nonces are random: one
    key seals four billion values before two nonces are likelier than 2**-32 to be the same (NIST SP
    800-38D, 8.3).
    """

    __slots__ = ("_raw", "fingerprint")

    def __init__(self, raw: bytes) -> None:
        if len(raw) != KEY_BYTES:
            raise ConfigError(
                f"a master key has {KEY_BYTES} bytes, this one has {len(raw)}", hint=GENERATE_HINT
            )
        self._raw: Final = raw
        self.fingerprint: Final = hashlib.sha256(b"dragoman master key:" + raw).hexdigest()[:16]

    @classmethod
    def generate(cls) -> MasterKey:
        """A new one."""
        return cls(os.urandom(KEY_BYTES))

    @classmethod
    def from_text(cls, text: str) -> MasterKey:
        """The key as base64, in either alphabet. ConfigError, which does not repeat it."""
        plain = text.strip().replace("-", "+").replace("_", "/").rstrip("=")
        try:
            raw = base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
        except (binascii.Error, ValueError):
            raise ConfigError("the master key is not base64", hint=GENERATE_HINT) from None
        return cls(raw)

    def to_text(self) -> str:
        """The key itself as base64: for its file or variable, for nothing else."""
        return base64.b64encode(self._raw).decode()

    def encrypt(self, name: str, value: str) -> EncryptedValue:
        """The value under lock."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # late: 40 ms, and few have secrets

        nonce = os.urandom(NONCE_BYTES)
        return EncryptedValue(
            nonce, AESGCM(self._raw).encrypt(nonce, value.encode(), associated_data(name)), self.fingerprint
        )

    def decrypt(self, name: str, encrypted: EncryptedValue) -> str:
        """The value. ConfigError when another key has sealed it, StoreError when it was changed since."""
        from cryptography.exceptions import InvalidTag  # late: as above
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # late: as above

        if encrypted.key_id != self.fingerprint:
            raise ConfigError(
                f"the secret {name!r} was sealed with the master key {encrypted.key_id},"
                f" and {self.fingerprint} was given",
                hint=f"give the former one in {MASTER_KEY_VARIABLE}, or set the secret again:"
                f" `dragoman secrets set {name}`",
            )
        try:
            return (
                AESGCM(self._raw)
                .decrypt(encrypted.nonce, encrypted.ciphertext, associated_data(name))
                .decode()
            )
        except InvalidTag:
            raise StoreError(
                f"what is kept as the secret {name!r} is damaged, or somebody has changed it",
                hint=f"set it again: `dragoman secrets set {name}`",
            ) from None

    def __repr__(self) -> str:
        return f"MasterKey({self.fingerprint})"


def read_key_file(path: Path) -> MasterKey:
    """The key in a file, as base64. ConfigError."""
    try:
        return MasterKey.from_text(path.read_text("ascii"))
    except UnicodeDecodeError:
        raise ConfigError(f"the master key in {str(path)!r} is not base64", hint=GENERATE_HINT) from None
    except OSError as error:
        raise ConfigError(f"the master key's file {str(path)!r} cannot be read: {error.strerror}") from None


def associated_data(name: str) -> bytes:
    return AAD_PREFIX + name.encode()
