"""Encryption of stored secrets: AES-256-GCM under a master key."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from dragoman.errors import ConfigError, StoreError
from dragoman.store.sqlite import publish_file

KEY_BYTES = 32
NONCE_BYTES = 12
MASTER_KEY_VARIABLE = "DRAGOMAN_MASTER_KEY"
MASTER_KEY_FILE_VARIABLE = "DRAGOMAN_MASTER_KEY_FILE"
GENERATE_HINT = "`dragoman secrets generate-key` makes one"
AAD_PREFIX = b"dragoman secret:"


class EncryptedValue(msgspec.Struct, frozen=True):
    """An encrypted value; `key_id` is the fingerprint of its master key."""

    nonce: bytes
    ciphertext: bytes
    key_id: str


class MasterKey:
    """The key that encrypts all secrets: 32 random bytes, which `repr` does not show.

    A value is bound to its name as associated data, so a row cannot be swapped for another. Nonces are
    random: one key encrypts four billion values before the probability of a repeated nonce exceeds 2**-32
    (NIST SP 800-38D, 8.3).
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
        """Generate a random key."""
        return cls(os.urandom(KEY_BYTES))

    @classmethod
    def from_text(cls, text: str) -> MasterKey:
        """Parse a key in base64, standard or URL-safe. Raises ConfigError, which does not show the text."""
        plain = text.strip().replace("-", "+").replace("_", "/").rstrip("=")
        try:
            raw = base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
        except (binascii.Error, ValueError):
            raise ConfigError("the master key is not base64", hint=GENERATE_HINT) from None
        return cls(raw)

    def to_text(self) -> str:
        """Return the key in base64. Write it only to its file or variable."""
        return base64.b64encode(self._raw).decode()

    def encrypt(self, name: str, value: str) -> EncryptedValue:
        """Encrypt a value for the secret `name`."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # late: 40 ms, and few have secrets

        nonce = os.urandom(NONCE_BYTES)
        return EncryptedValue(
            nonce, AESGCM(self._raw).encrypt(nonce, value.encode(), associated_data(name)), self.fingerprint
        )

    def decrypt(self, name: str, encrypted: EncryptedValue) -> str:
        """Decrypt a value. Raises ConfigError for another master key, StoreError for a damaged value."""
        from cryptography.exceptions import InvalidTag  # late: as above
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # late: as above

        if encrypted.key_id != self.fingerprint:
            raise ConfigError(
                f"the secret {name!r} was encrypted with the master key {encrypted.key_id},"
                f" not with the current one ({self.fingerprint})",
                hint=f"set {MASTER_KEY_VARIABLE} to the former key, or set the secret again:"
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
                f"the stored value of the secret {name!r} is damaged",
                hint=f"set the secret again: `dragoman secrets set {name}`",
            ) from None

    def __repr__(self) -> str:
        return f"MasterKey({self.fingerprint})"


class FolderKey:
    """The key of a data folder, in a file there that only its user can read. It is made when first needed.

    It encrypts what is stored without a master key. A copy of the database does not reveal that; a copy
    of the whole folder does.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._key: MasterKey | None = None

    def read(self) -> MasterKey:
        """Return the key. Raises ConfigError when there is none."""
        if self._key is None:
            self._key = read_key_file(self._path)
        return self._key

    def read_or_create(self) -> MasterKey:
        """Return the key, after making one if there is none. Raises ConfigError."""
        if self._key is None and not self._path.exists():
            self._create()
        return self.read()

    def _create(self) -> None:
        file, name = tempfile.mkstemp(prefix=f"{self._path.name}.", dir=self._path.parent)  # of mode 0600
        draft = Path(name)
        try:
            with os.fdopen(file, "w", encoding="ascii") as opened:
                opened.write(MasterKey.generate().to_text() + "\n")
                opened.flush()
                os.fsync(opened.fileno())
            publish_file(draft, self._path)
        finally:
            draft.unlink(missing_ok=True)


def read_key_file(path: Path) -> MasterKey:
    """Read a base64 key from a file. Raises ConfigError."""
    try:
        return MasterKey.from_text(path.read_text("ascii"))
    except UnicodeDecodeError:
        raise ConfigError(f"the master key in {str(path)!r} is not base64", hint=GENERATE_HINT) from None
    except OSError as error:
        raise ConfigError(f"cannot read the master key file {str(path)!r}: {error.strerror}") from None


def associated_data(name: str) -> bytes:
    return AAD_PREFIX + name.encode()
