"""Requests to an object store. Only this module imports obstore, at the first request.

Credentials come from the environment, from the files of the store's own tools, or from the machine (a role). No
message contains them: the text of an error has the code and the message of the store's response, not the rest of it.
"""

from __future__ import annotations

import configparser
import errno
import glob
import os
import re
import time
from datetime import timedelta
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from logfs.errors import InvalidStore, RemoteStorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from typing_extensions import Buffer

    from logfs.log.disk.bucket_path import BucketPath

# A request fails if its answer is not complete after `_REQUEST_SECONDS`, or if the connection is not made after
# `_CONNECT_SECONDS`. At 2 Mbit/s, a chunk of 4 MiB takes 17 s.
_REQUEST_SECONDS = 20
_CONNECT_SECONDS = 5
# After an error of the network or of the server (500, SlowDown), a request is repeated for `_RETRY_SECONDS` at most.
# obstore repeats it up to `_MOST_RETRIES` times by itself.
_RETRY_SECONDS = 30
_MOST_RETRIES = 8
# The pause before this module repeats a request.
_PAUSE_SECONDS = 0.2
# With `looks_again`, an object counts as missing after this many requests that did not find it.
_MOST_LOOKS = 3

# The files of Amazon's own tools: the environment variable with the path, the default path, and what precedes the
# name of a profile in a section title.
_AWS_FILES = (
    ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials", ""),
    ("AWS_CONFIG_FILE", "~/.aws/config", "profile "),
)
# The settings in these files, each with the name of obstore's option.
_AWS_KEYS = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
    "region": "region",
    "endpoint_url": "endpoint",
}

# The text of an obstore error matches this if the server has responded with an error. By then, obstore has repeated
# the request a few times.
_REFUSED = re.compile(r"non-2xx status code|status: [345]\d\d|range was invalid")
# The text of an obstore error matches this if the store's error may be transient.
_MAY_PASS = re.compile(r"(status code|status): (5\d\d|429)")
# The text of an obstore error matches this if the store refuses the credentials, or if they do not permit the
# request: status 401 or 403, or 400 for an expired token.
_DENIED = re.compile(r"(status code|status): 40[13]|<Code>(ExpiredToken|InvalidToken)</Code>")
# The server of a request, and why there is no response, in the description that follows the first line.
_ENDPOINT = re.compile(r"https?://[^/\s]+")
_CAUSE = re.compile(r'(?:message|error): "([^"]+)"')
_TIMED_OUT = re.compile(r"\bTimedOut\b|kind: Timeout")
_CODE = re.compile(r"<Code>([^<]{1,80})</Code>")
_SENTENCE = re.compile(r"<Message>([^<]{1,200})</Message>")

# Large objects are sent in parts of this size, at most four parts of one object at a time.
_PART_BYTES = 16 << 20
_MOST_PARTS = 4


class AccessDenied(RemoteStorageError):
    """The store refuses the credentials, or they do not permit the request.

    S3 also gives this response for a missing object, if the credentials do not permit listing the bucket.
    """


class _BodyFailed(Exception):
    """Raised within `ObjectStore.put` if the caller's `body` has raised an error while its bytes were sent."""


class StoredObject(NamedTuple):
    """An object as a listing shows it: its key, its size in bytes, and when it was stored (ms since the epoch).

    `version` changes when the object is replaced. It is "" for an object that is known only from the metadata of its
    segment: such an object is never replaced.
    """

    key: str
    size: int
    modified_ms: int
    version: str = ""


class ObjectStore:
    """The objects of one bucket, or the files below a local directory. Any thread may call any method.

    Every method waits for the network. If the store refuses the credentials, they are read again, because they may
    have been renewed. Any method raises `RemoteStorageError` if the store refuses the request or does not answer. The
    methods that read an object raise `FileNotFoundError` if no object has the key.
    """

    def __init__(self, place: BucketPath, *, looks_again: bool = False) -> None:
        """Prepare requests to the bucket of `place`. Nothing is imported, read or sent before the first request.

        The first request raises `InvalidStore` if obstore is not installed, or if the bucket or the credentials'
        files cannot be used. With `looks_again`, an object counts as missing only after the store has said so three
        times.
        """
        self._place = place
        # The URL of the bucket, without the keys below it.
        self.bucket_url = f"{place.scheme}://{place.bucket}"
        self._looks = _MOST_LOOKS if looks_again and place.scheme != "file" else 1

    @cached_property
    def _obstore(self) -> Any:
        try:
            import obstore
            import obstore.store
        except ImportError as error:
            raise InvalidStore(
                f"{self._place}: an object store needs obstore ({error}); install logfs[tiered]"
            ) from None
        return obstore

    @cached_property
    def _store(self) -> Any:
        if self._place.has_credentials:
            raise InvalidStore(
                f"{self._place}: credentials do not belong in a URL; give them in the environment"
            )
        module = self._obstore.store
        try:
            return _make(module, self._place)
        except Exception as error:
            raise InvalidStore(f"{self._place}: cannot be used: {_reason(error)}") from None

    def _check_directory(self) -> None:
        """Raise `RemoteStorageError` if the bucket is a missing local directory, as on a disk that is not mounted."""
        if self._place.scheme == "file" and not Path("/", self._place.key).is_dir():
            raise RemoteStorageError(
                f"{self._place}: the directory does not exist; mount it, or create it"
            )

    def get(self, key: str, position: int, size: int) -> memoryview:
        """Return the bytes [position, position + size) of an object, fewer only at its end."""
        return memoryview(
            self._ask(
                key,
                lambda: self._obstore.get_range(self._store, key, start=position, length=size),
                self._looks,
            )
        )

    def put(
        self, key: str, body: Callable[[], Iterable[Buffer]], *, if_absent: bool = False
    ) -> bool:
        """Store an object durably, and return True. A large object is sent in parts, several of them at a time.

        `body` returns the object's bytes, in pieces of any size. It is called again for each try; if it raises an
        error, `put` raises the same error. An existing object with this key is replaced. With `if_absent`, which is
        only for small objects, an existing object stays, and the result is False.
        """
        self._check_directory()
        raised: list[BaseException] = []

        def parts() -> Iterator[Buffer]:
            try:
                yield from body()
            except BaseException as error:
                raised.append(error)
                raise

        # obstore raises `AlreadyExistsError` for status 409. Without `if_absent`, 409 is a conflict in the store, and
        # handled like any other error.
        exists = self._obstore.exceptions.AlreadyExistsError if if_absent else ()

        def send() -> bool:
            left, first, size = parts(), [], 0
            try:
                for data in left:
                    first.append(data)
                    size += len(memoryview(data))
                    if size > _PART_BYTES:
                        break
                else:
                    # The object is small: send it in one request, because an upload in parts takes three requests.
                    mode = "create" if if_absent else "overwrite"
                    whole = b"".join(first)
                    self._obstore.put(self._store, key, whole, mode=mode, use_multipart=False)
                    return True
                self._obstore.put(
                    self._store,
                    key,
                    chain(first, left),
                    use_multipart=True,
                    chunk_size=_PART_BYTES,
                    max_concurrency=_MOST_PARTS,
                )
                return True
            except exists:
                return False
            except BaseException:
                if raised:
                    raise _BodyFailed from None
                raise

        try:
            is_stored: bool = self._ask(key, send)
        except _BodyFailed:
            raise raised[0] from None
        except FileNotFoundError:
            raise self._no_bucket(key) from None
        if is_stored and self._place.scheme == "file":
            _sync(Path("/", key))
        return is_stored

    def _no_bucket(self, key: str) -> RemoteStorageError:
        return RemoteStorageError(f"{self.url(key)}: the bucket does not exist; create it first")

    def size(self, key: str) -> int:
        """Return the size of an object in bytes."""
        return int(
            self._ask(key, lambda: self._obstore.head(self._store, key)["size"], self._looks)
        )

    def delete(self, key: str) -> None:
        """Delete an object; a missing one is no error."""
        self._check_directory()
        try:
            self._ask(key, lambda: self._obstore.delete(self._store, key))
        except FileNotFoundError:
            if self._place.scheme == "s3":
                # S3 reports no error for the deletion of a missing object, so the bucket is missing.
                raise self._no_bucket(key) from None
        if self._place.scheme == "file":
            # A killed upload leaves a file with the object's name, `#` and a number: delete such files, too.
            path = Path("/", key)
            for left in path.parent.glob(f"{glob.escape(path.name)}#*"):
                left.unlink(missing_ok=True)

    def objects(self, prefix: str) -> list[StoredObject]:
        """Return the objects below the directory `prefix`, in the order of their keys."""
        found = self._ask(
            prefix,
            lambda: [each for page in self._obstore.list(self._store, prefix) for each in page],
        )
        return sorted(map(_stored, found))

    def level(self, prefix: str) -> tuple[list[str], list[StoredObject]]:
        """Return (directories, objects) directly in the directory `prefix`. Directories have no slash at the end."""
        found = self._ask(
            prefix, lambda: self._obstore.list_with_delimiter(self._store, prefix or None)
        )
        return sorted(found["common_prefixes"]), sorted(map(_stored, found["objects"]))

    def _ask(self, key: str, request: Callable[[], Any], looks: int = 1) -> Any:
        """Return the result of `request`, which sends a request; call it again after a transient error.

        For a missing object, `request` is called up to `looks` times. Errors name the object `key`.
        """
        end = time.monotonic() + _RETRY_SECONDS
        was_denied = False
        while True:
            try:
                return request()
            except (_BodyFailed, InvalidStore):
                raise
            except FileNotFoundError:
                looks -= 1
                if not looks:
                    raise FileNotFoundError(
                        errno.ENOENT, "the object does not exist", self.url(key)
                    ) from None
                time.sleep(_PAUSE_SECONDS)
            except Exception as error:
                # Repeat the request here, because obstore does not repeat a request whose answer was cut off.
                text = str(error)
                is_denied = _DENIED.search(text)
                if is_denied and not was_denied:
                    was_denied = True
                    # The next use reads the credentials again.
                    self.__dict__.pop("_store", None)
                    continue
                is_final = _REFUSED.search(text) and not _MAY_PASS.search(text)
                if is_denied or is_final or time.monotonic() > end:
                    kind = AccessDenied if is_denied else RemoteStorageError
                    what = f"{self.url(key)}: the object store failed: {_reason(error)}"
                    raise kind(what) from None
                time.sleep(_PAUSE_SECONDS)

    def url(self, key: str) -> str:
        """Return the URL of an object, for messages."""
        return f"{self.bucket_url}/{key}"


def _sync(path: Path) -> None:
    """Make a file durable, together with its name and the names of the two directories above it."""
    for each in (path, *path.parents[:3]):
        fd = os.open(each, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _make(module: Any, place: BucketPath) -> Any:
    if place.scheme == "file":
        return module.LocalStore("/")
    options: dict[str, Any] = {
        "timeout": timedelta(seconds=_REQUEST_SECONDS),
        "connect_timeout": timedelta(seconds=_CONNECT_SECONDS),
    }
    config: dict[str, str] = {}
    if place.scheme == "s3":
        config = _aws_config()
        # An endpoint that is configured with http:// is used without TLS.
        options["allow_http"] = config.get("endpoint", "").startswith("http://")
    kind = {"s3": module.S3Store, "gs": module.GCSStore, "az": module.AzureStore}[place.scheme]
    return kind(
        place.bucket,
        config=config,
        client_options=options,
        retry_config={
            "max_retries": _MOST_RETRIES,
            "retry_timeout": timedelta(seconds=_RETRY_SECONDS),
        },
    )


def _environment(*variables: str) -> str:
    return next((os.environ[name] for name in variables if os.environ.get(name)), "")


def _aws_config() -> dict[str, str]:
    """Return obstore's options for S3 from Amazon's files (the profile `AWS_PROFILE`) and the environment.

    The region and the endpoint in the environment override those in the files. If the environment has access keys,
    the keys in the files are left out.
    """
    profile = _environment("AWS_PROFILE", "AWS_DEFAULT_PROFILE") or "default"
    config: dict[str, str] = {}
    for variable, usual, before in _AWS_FILES:
        path = Path(_environment(variable) or usual).expanduser()
        parser = configparser.RawConfigParser()
        try:
            parser.read(path)
        except (configparser.Error, UnicodeDecodeError):
            raise ValueError(
                f"{path} is not a file of AWS profiles: its syntax or its encoding is wrong; correct the file"
            ) from None
        section = (
            profile if profile == "default" and parser.has_section(profile) else before + profile
        )
        if parser.has_section(section):
            config |= {
                option: parser.get(section, name)
                for name, option in _AWS_KEYS.items()
                if parser.has_option(section, name)
            }
    if _environment("AWS_ACCESS_KEY_ID"):
        # The key id from the environment must not be combined with a secret from the file.
        for option in ("access_key_id", "secret_access_key", "session_token"):
            config.pop(option, None)
    for option, found in (
        ("region", _environment("AWS_REGION", "AWS_DEFAULT_REGION")),
        ("endpoint", _environment("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")),
    ):
        if found:
            config[option] = found
    return config


def _stored(found: Any) -> StoredObject:
    modified_ms = int(found["last_modified"].timestamp() * 1000)
    version = found.get("e_tag") or str(modified_ms)
    return StoredObject(found["path"], found["size"], modified_ms, version)


def _reason(error: Exception) -> str:
    """Return one line for an error of obstore: the code and the message of the store's response, if it has them.

    Without a response, the line has the server and why there is none.
    """
    text = str(error)
    code, sentence = _CODE.search(text), _SENTENCE.search(text)
    if code:
        return f"{code[1]}: {sentence[1]}" if sentence else code[1]
    first = text.split("\n", 1)[0]
    endpoint, cause = _ENDPOINT.search(first), _CAUSE.search(text)
    if endpoint and cause:
        return f"{endpoint[0]}: {cause[1]}"
    if endpoint and _TIMED_OUT.search(text):
        return f"{endpoint[0]}: no answer in time"
    # Leave out the text before the last dash, which has the kind of store, the method and the URL.
    return first.rsplit(" - ", 1)[-1][:300].strip()
