"""A schema registry with Confluent's interface, by HTTP.

Credentials come from the file `~/.netrc`, certificates of authorities from `REQUESTS_CA_BUNDLE`, and proxies from the
usual variables: the library `requests` uses them.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

from logfs.errors import SchemasUnavailable
from logfs.schema.schemas import AVRO, Schema

# For the connection, and for each part of the answer.
_TIMEOUT_SECONDS = (5, 20)
_RETRIES = Retry(
    total=3, backoff_factor=0.2, status_forcelist=(429, 500, 502, 503, 504), raise_on_status=False
)
_ACCEPT = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}


class Registry:
    """The schemas of a registry."""

    def __init__(self, url: str) -> None:
        """Use the registry at `url`; nothing is asked yet. Raises `SchemasUnavailable` for a URL with credentials."""
        parts = urlsplit(url)
        if parts.username is not None or parts.query or parts.fragment or not parts.hostname:
            raise SchemasUnavailable(
                f"{parts.scheme}://{parts.hostname or ''}: give a registry as http://HOST:PORT/PATH; a user and a "
                "password belong in ~/.netrc"
            )
        self._url = url.rstrip("/")
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
        return Schema(found.get("schemaType") or AVRO, _text(found), references)

    def close(self) -> None:
        self._session.close()

    def _add_references(self, found: dict[str, Any], texts: dict[str, str]) -> None:
        """Add the texts of what a schema refers to, and of what these refer to."""
        try:
            references = [
                (str(each["name"]), str(each["subject"]), int(each["version"]))
                for each in found.get("references") or ()
            ]
        except (TypeError, KeyError, ValueError):
            raise SchemasUnavailable(
                f"{self._url}: a schema has references of another form than a registry's"
            ) from None
        for name, subject, version in references:
            if name in texts:
                continue
            path = f"subjects/{quote(subject, safe='')}/versions/{version}?deleted=true"
            referred = self._get(path)
            if referred is None:
                raise SchemasUnavailable(
                    f"{self._url}/{path}: is missing, but a schema refers to it"
                )
            texts[name] = _text(referred)
            self._add_references(referred, texts)

    def _get(self, path: str) -> dict[str, Any] | None:
        """Return the object at a path; None if there is none. Raises `SchemasUnavailable`."""
        where = f"{self._url}/{path}"
        try:
            answer = self._session.get(where, timeout=_TIMEOUT_SECONDS)
            if answer.status_code == requests.codes.not_found:
                return None
            if not answer.ok:
                raise SchemasUnavailable(f"{where}: {answer.status_code} {answer.reason}")
            found = answer.json()
        except requests.exceptions.JSONDecodeError:
            raise SchemasUnavailable(
                f"{where}: the answer is not that of a schema registry"
            ) from None
        except requests.RequestException as error:
            raise SchemasUnavailable(f"{where}: cannot be asked: {_reason(error)}") from None
        if not isinstance(found, dict):
            raise SchemasUnavailable(f"{where}: the answer is not that of a schema registry")
        return found


def _text(found: dict[str, Any]) -> str:
    text = found.get("schema")
    if not isinstance(text, str):
        raise SchemasUnavailable("the answer of the schema registry has no schema")
    return text


def _reason(error: BaseException) -> str:
    """Return the innermost reason of an error, without the objects that the library shows."""
    reason: BaseException = error
    while isinstance(inner := getattr(reason, "reason", None) or _argument(reason), BaseException):
        reason = inner
    return getattr(reason, "strerror", None) or str(reason).rpartition(": ")[2]


def _argument(error: BaseException) -> BaseException | None:
    first = error.args[0] if error.args else None
    return first if isinstance(first, BaseException) else error.__cause__
