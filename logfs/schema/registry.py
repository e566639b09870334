"""Reads schemas from a schema registry over HTTP, by the REST interface of Confluent's registry.

The library `requests` takes credentials from the file `~/.netrc`, the path of the CA certificates from the
environment variable `REQUESTS_CA_BUNDLE`, and proxies from `HTTP_PROXY` and `HTTPS_PROXY`.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlsplit

import orjson
import requests
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

from logfs.deadline import within
from logfs.errors import SchemasUnavailable
from logfs.schema.schemas import AVRO, MOST_BYTES, Schema, parse_references

# The timeouts for connecting, and for each read from the connection.
_TIMEOUT_SECONDS = (5, 20)
# The timeout for the whole response.
_MOST_SECONDS = 30
_RETRIES = Retry(
    total=3, backoff_factor=0.2, status_forcelist=(429, 500, 502, 503, 504), raise_on_status=False
)
_ACCEPT = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}


class Registry:
    """A schema registry as a source of schemas: `find` returns the schema with an id. Not thread-safe."""

    def __init__(self, url: str) -> None:
        """Prepare to use the registry at `url`. No request is sent yet.

        Raises `SchemasUnavailable` if the URL has a user, a query or a fragment, or has no host.
        """
        parts = urlsplit(url)
        if parts.username is not None or parts.query or parts.fragment or not parts.hostname:
            raise SchemasUnavailable(
                f"{parts.scheme}://{parts.hostname or ''}: give a registry as http://HOST:PORT/PATH, without "
                "a user, a password or a query: credentials belong in ~/.netrc"
            )
        self._url = url.rstrip("/")
        # A cache of the schemas that other schemas refer to, by subject and version.
        self._versions: dict[tuple[str, int], dict[str, Any]] = {}
        self._session = requests.Session()
        self._session.headers.update(_ACCEPT)
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(max_retries=_RETRIES))

    def __str__(self) -> str:
        return self._url

    def find(self, number: int) -> Schema | None:
        found = self._get(f"schemas/ids/{number}")
        if found is None:
            return None
        references: dict[str, str] = {}
        self._add_references(found, references)
        return Schema(found.get("schemaType") or AVRO, self._text(found), references)

    def close(self) -> None:
        self._session.close()

    def _add_references(self, found: dict[str, Any], texts: dict[str, str]) -> None:
        """Add to `texts`, by name, the text of each schema that a schema refers to, directly or indirectly.

        `found` is the registry's JSON object for the schema. Raises `SchemasUnavailable` if a reference is malformed,
        or if the registry lacks a schema that is referred to.
        """
        try:
            references = parse_references(found)
        except (TypeError, KeyError, ValueError):
            raise SchemasUnavailable(
                f"{self._url}: a reference of a schema has no valid name, subject and version; is this a registry?"
            ) from None
        for name, subject, version in references:
            if name in texts:
                continue
            referred = self._versions.get((subject, version))
            if referred is None:
                path = f"subjects/{quote(subject, safe='')}/versions/{version}"
                referred = self._get(path, "?deleted=true")
                if referred is None:
                    raise SchemasUnavailable(
                        f"{self._url}: has no version {version} of {subject}, although a schema refers to it"
                    )
                self._versions[subject, version] = referred
            texts[name] = self._text(referred)
            self._add_references(referred, texts)

    def _text(self, found: dict[str, Any]) -> str:
        text = found.get("schema")
        if not isinstance(text, str):
            raise SchemasUnavailable(f"{self._url}: an answer has no schema; is this a registry?")
        return text

    def _get(self, path: str, query: str = "") -> dict[str, Any] | None:
        """Return the JSON object at a path of the registry, or None for status 404.

        Raises `SchemasUnavailable` for any other response, or if there is no response.
        """
        where = f"{self._url}/{path}"
        status, data = self._ask(where, query)
        if status == requests.codes.not_found:
            return None
        if status != requests.codes.ok:
            raise SchemasUnavailable(f"{where}: the registry answers with HTTP status {status}")
        try:
            found = orjson.loads(data)
        except orjson.JSONDecodeError:
            found = None
        if not isinstance(found, dict):
            raise SchemasUnavailable(
                f"{where}: the answer is not a JSON object; is this a schema registry?"
            )
        return found

    def _ask(self, where: str, query: str) -> tuple[int, bytes]:
        """Return the HTTP status and the body at the URL `where` + `query`.

        Raises `SchemasUnavailable` if the request fails or takes too long, or if the response is too large.
        """

        def ask() -> tuple[int, bytes]:
            with self._session.get(where + query, timeout=_TIMEOUT_SECONDS, stream=True) as answer:
                return answer.status_code, answer.raw.read(MOST_BYTES + 1, decode_content=True)

        # `requests` limits only the time of each read, so a slow server could take hours for the whole response.
        try:
            found = within(_MOST_SECONDS, ask)
        except TimeoutError:
            raise SchemasUnavailable(f"{where}: no answer in {_MOST_SECONDS} seconds") from None
        except Exception as error:
            raise SchemasUnavailable(f"{where}: the request failed: {_reason(error)}") from None
        if len(found[1]) > MOST_BYTES:
            raise SchemasUnavailable(f"{where}: the answer has more than {MOST_BYTES >> 20} MiB")
        return found


def _reason(error: BaseException) -> str:
    """Return the message of the innermost cause of an error.

    If the cause has no `strerror`, only the text after the last colon of its message is returned: the text before the
    colon often names a Python object, which tells the user nothing.
    """
    reason: BaseException = error
    while isinstance(inner := getattr(reason, "reason", None) or _argument(reason), BaseException):
        reason = inner
    return getattr(reason, "strerror", None) or str(reason).rpartition(": ")[2]


def _argument(error: BaseException) -> BaseException | None:
    first = error.args[0] if error.args else None
    return first if isinstance(first, BaseException) else error.__cause__
