"""The URL of a bucket of an object store as a `Path`, so that a bucket can take the place of a log directory."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path, PosixPath

from logfs.errors import InvalidStore

# URLs of Amazon S3 and compatible stores, Google Cloud Storage, Azure Blob Storage, and a local directory. The name
# of a bucket must not begin with `*`, so that a URL whose rest is hidden, such as `s3://***`, does not match.
_URL = re.compile(r"(s3|gs|az):/{1,2}[^/*]|file:(/|///)[^/]")
_ANY_URL = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]+):/")

# In a URL, these characters come before or after a user, a password or a query. The name of an object may have them,
# too, so a match means only that the URL may have credentials.
_CREDENTIALS = re.compile(r"[@?#;:%\\].*", re.DOTALL)


class BucketPath(PosixPath):
    """The path of objects in a bucket: its text is a URL such as `s3://bucket/prefix/orders-0`.

    It is always absolute, and no system call can use it. If `has_credentials` is true, the text shows only the
    scheme.
    """

    def __str__(self) -> str:
        scheme, *rest = self.parts
        root = "/" if scheme == "file:" else ""
        return f"{scheme}//***" if self.has_credentials else f"{scheme}//{root}{'/'.join(rest)}"

    @property
    def has_credentials(self) -> bool:
        """Whether the URL could have credentials: it has one of `@?#;:%` or a backslash. False for a `file:` URL."""
        return self.scheme != "file" and bool(_CREDENTIALS.search("/".join(self.parts[1:])))

    def is_absolute(self) -> bool:
        return True

    @property
    def scheme(self) -> str:
        """The first part of the URL, such as `s3`."""
        return self.parts[0].removesuffix(":")

    @property
    def bucket(self) -> str:
        """The name of the bucket; "" for a `file:` URL, in which the key is the path from the root directory."""
        return "" if self.scheme == "file" else self.parts[1]

    @property
    def key(self) -> str:
        """The part of the URL after the bucket, such as `prefix/orders-0`, without a slash at either end."""
        return "/".join(self.parts[1 if self.scheme == "file" else 2 :])


def as_path(word: str | os.PathLike[str]) -> Path:
    """Return a `BucketPath` for the URL of a bucket, and a plain path for a text that is not a URL.

    Raises `InvalidStore` for any other URL. The message shows only the scheme, because the rest of the URL may have a
    password.
    """
    if isinstance(word, BucketPath):
        return word
    if isinstance(word, str):
        return _of_text(word)
    _refuse_other_url(os.fspath(word))
    return Path(word)


# Cached, because `NamedFile.path` asks for the same directory at each use: a lookup costs less than a new object.
@functools.lru_cache(maxsize=1 << 12)
def _of_text(text: str) -> Path:
    if _URL.match(text):
        return BucketPath(text)
    _refuse_other_url(text)
    return Path(text)


def _refuse_other_url(text: str) -> None:
    other = _ANY_URL.match(text)
    if other is not None:
        raise InvalidStore(
            f"{other[1]}:/…: is not the URL of a bucket; give s3://BUCKET/PREFIX, gs://…, az://… or "
            "file:///DIRECTORY, and credentials in the environment"
        )
