"""Encrypted segments, as Aiven's plugin makes them: each segment has an AES key, which is encrypted with an RSA key.

Each chunk, and each index, is encrypted separately with AES-256-GCM: a nonce of 12 bytes, the ciphertext, and a tag
of 16 bytes. The manifest has the segment's AES key, encrypted with RSA-OAEP and SHA3-512, and the additional data
(AAD) that is authenticated with each chunk.

The RSA keys are files ID.pem, each a private key in PKCS #8, in the directory `$LOGFS_KEYS`, by default
`$XDG_CONFIG_HOME/logfs/keys` (`~/.config/logfs/keys`). No log directory and no message contains these keys.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from logfs.errors import Corrupt, InvalidStore, Unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Buffer

_NONCE_BYTES = 12
_TAG_BYTES = 16
_KEY_BYTES = 32

OVERHEAD_BYTES = _NONCE_BYTES + _TAG_BYTES
"""How many bytes an encrypted chunk is longer than its content."""

_KEY_ID = re.compile(r"[A-Za-z0-9._-]{1,200}")


class DataKey(NamedTuple):
    """The AES key of a segment. `aad` is authenticated with each chunk; `wrapped` is the key encrypted with RSA."""

    key: bytes
    aad: bytes
    wrapped: str

    def fields(self) -> dict[str, str]:
        """Return the content of the field `encryption` of the segment's manifest."""
        return {"dataKey": self.wrapped, "aad": base64.b64encode(self.aad).decode()}

    def encrypt(self, chunk: Buffer) -> bytes:
        """Return `chunk` encrypted with this key: a nonce, the ciphertext, and a tag."""
        nonce = os.urandom(_NONCE_BYTES)
        parts: tuple[bytes, bytes] = self._cipher(nonce).encrypt_and_digest(bytes(chunk))
        return b"".join((nonce, *parts))

    def decrypt(self, stored: Buffer) -> bytes:
        """Return the content of an encrypted chunk. Raises `Corrupt` if the chunk cannot be authenticated."""
        data = memoryview(stored)
        if len(data) < OVERHEAD_BYTES:
            raise Corrupt(f"{len(data)} bytes are too few for an encrypted chunk")
        nonce, sealed, tag = data[:_NONCE_BYTES], data[_NONCE_BYTES:-_TAG_BYTES], data[-_TAG_BYTES:]
        try:
            opened: bytes = self._cipher(bytes(nonce)).decrypt_and_verify(bytes(sealed), bytes(tag))
        except ValueError:
            raise Corrupt(
                "AES-GCM cannot authenticate the encrypted bytes: they were changed, or the data key is wrong"
            ) from None
        return opened

    def _cipher(self, nonce: bytes) -> Any:
        from Cryptodome.Cipher import AES

        cipher = AES.new(self.key, AES.MODE_GCM, nonce=nonce, mac_len=_TAG_BYTES)
        cipher.update(self.aad)
        return cipher


def new_data_key(key_id: str) -> DataKey:
    """Return a new AES key for a segment, also encrypted with the RSA key `key_id`.

    Raises `InvalidStore` if the RSA key cannot be read, and `Corrupt` if `key_id` is malformed.
    """
    key = os.urandom(_KEY_BYTES)
    wrapped = _oaep(key_id).encrypt(key)
    text = f"{key_id}:{base64.b64encode(wrapped).decode()}"
    return DataKey(key, os.urandom(_KEY_BYTES), text)


def unwrap(fields: Mapping[str, Any]) -> DataKey:
    """Return the AES key of a segment from the field `encryption` of the segment's manifest.

    Raises `InvalidStore` if the RSA key cannot be read, `Corrupt` if a field is malformed or the RSA key cannot
    decrypt the segment's key, and `Unsupported` if the segment's key is no AES-256 key.
    """
    try:
        wrapped = fields["dataKey"]
        key_id, colon, data = wrapped.partition(":")
        aad = base64.b64decode(fields["aad"], validate=True)
        secret = base64.b64decode(data, validate=True)
    except (KeyError, TypeError, AttributeError, binascii.Error) as error:
        raise Corrupt(f"encryption: {type(error).__name__}: {error}") from None
    if not colon:
        raise Corrupt("encryption: dataKey must begin with the id of an RSA key and a colon")
    try:
        key = _oaep(key_id).decrypt(secret)
    except ValueError:
        raise Corrupt(
            f"encryption: the RSA key {_path(key_id)} cannot decrypt the data key of the segment; put the key there "
            "that the segment was encrypted with"
        ) from None
    if len(key) != _KEY_BYTES:
        raise Unsupported(f"encryption: the data key has {len(key)} bytes, but AES-256 needs 32")
    return DataKey(key, aad, wrapped)


def _path(key_id: str) -> Path:
    if not _KEY_ID.fullmatch(key_id):
        raise Corrupt(
            f"encryption: {key_id[:40]!r} is no key id: use 1 to 200 of A-Z a-z 0-9 . _ -"
        )
    home = os.environ.get("LOGFS_KEYS")
    config = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return (Path(home) if home else Path(config).expanduser() / "logfs/keys") / f"{key_id}.pem"


@lru_cache(maxsize=16)
def _oaep(key_id: str) -> Any:
    """Return the RSA-OAEP cipher with the RSA key `key_id`.

    Raises `InvalidStore` if the key cannot be read or pycryptodomex is missing, and `Corrupt` for a malformed id.
    """
    path = _path(key_id)
    try:
        from Cryptodome.Cipher import PKCS1_OAEP
        from Cryptodome.Hash import SHA3_512
        from Cryptodome.PublicKey import RSA
    except ImportError as error:
        raise InvalidStore(
            f"encrypted segments need pycryptodomex ({error}); install logfs[tiered]"
        ) from None
    try:
        key = RSA.import_key(path.read_bytes())
    except (OSError, ValueError, IndexError, TypeError) as error:
        # Do not repeat the library's message, because it may quote the key file.
        reason = error.strerror if isinstance(error, OSError) else "it is no RSA key in PEM"
        raise InvalidStore(
            f"the key {path} of encrypted segments cannot be read: {reason}; set LOGFS_KEYS to its directory"
        ) from None
    if not key.has_private():
        raise InvalidStore(
            f"the key {path} of encrypted segments is a public key; put the private key there"
        )
    return PKCS1_OAEP.new(key, hashAlgo=SHA3_512)  # type: ignore[arg-type]
