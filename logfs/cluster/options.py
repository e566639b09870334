"""Options of the connection to a cluster, from a properties file: TLS, SASL, timeouts.

The names are those of kafka-python's clients, with dots or with underscores: `security.protocol`, `ssl.cafile`,
`sasl.mechanism`, `sasl.plain.username`. The user name and the password are also accepted in the form of Kafka's own
clients, `sasl.jaas.config`. Messages never contain the value of an option, because any value may be a password.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from logfs.errors import Corrupt, InvalidSetting, did_you_mean
from logfs.format.files.checkpoint import parse_properties
from logfs.setting import parse_boolean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


def _positive(text: str) -> int:
    if int(text) <= 0:
        raise ValueError(text)
    return int(text)


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        return words[words.index(text)]

    return parse


# The options that may be set, each with the function that parses its text. The function raises `ValueError` for
# a wrong text.
_OPTIONS: Mapping[str, Callable[[str], Any]] = {
    "bootstrap_timeout_ms": _positive,
    "client_dns_lookup": _one_of("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
    "connections_max_idle_ms": _positive,
    "metadata_max_age_ms": _positive,
    "receive_message_max_bytes": _positive,
    "reconnect_backoff_ms": _positive,
    "reconnect_backoff_max_ms": _positive,
    "request_timeout_ms": _positive,
    "retry_backoff_ms": _positive,
    "sasl_kerberos_domain_name": str,
    "sasl_kerberos_service_name": str,
    "sasl_mechanism": str,
    "sasl_plain_password": str,
    "sasl_plain_username": str,
    "security_protocol": _one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    "ssl_cafile": str,
    "ssl_certfile": str,
    "ssl_check_hostname": parse_boolean,
    "ssl_crlfile": str,
    "ssl_keyfile": str,
    "ssl_password": str,
}
_FILES = frozenset({"ssl_cafile", "ssl_certfile", "ssl_crlfile", "ssl_keyfile"})
_JAAS = "sasl_jaas_config"
_JAAS_VALUE = re.compile(r'\b(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')


def read_options(path: Path | None) -> dict[str, Any]:
    """Return the options in a properties file, each under its name in kafka-python; {} if `path` is None.

    Raises `InvalidSetting` for a malformed file, an unknown option or an invalid value, and `OSError` if the file
    cannot be read.
    """
    if path is None:
        return {}
    try:
        told = parse_properties(path.read_bytes())
    except Corrupt as error:
        # Do not show the message of `error`: it may quote a part of the malformed line, which may be a password.
        raise InvalidSetting(
            f"{path}: is not a properties file; each line must be NAME=VALUE"
        ) from error
    found: dict[str, Any] = {}
    for given, text in told.items():
        name = given.replace(".", "_").replace("-", "_")
        if name == _JAAS:
            values = _JAAS_VALUE.findall(text)
            if {key for key, _ in values} != {"username", "password"}:
                raise InvalidSetting(f'{path}: {given} needs username="…" and password="…"')
            for key, value in values:
                found[f"sasl_plain_{key}"] = re.sub(r"\\(.)", r"\1", value)
            continue
        if name not in _OPTIONS:
            near = did_you_mean(name, [*_OPTIONS, _JAAS])
            # If the name resembles no option, it may be a part of a password, so do not show it.
            what = (
                f"there is no option {given}{near}"
                if near
                else "the name of an option is unknown (not shown: it may be a part of a password); check the names"
            )
            raise InvalidSetting(f"{path}: {what}")
        try:
            found[name] = _OPTIONS[name](text.strip())
        except ValueError:
            raise InvalidSetting(
                f"{path}: the value of {given} is refused (not shown: it may be a password); check its form"
            ) from None
        if name in _FILES and not os.access(found[name], os.R_OK):
            raise InvalidSetting(
                f"{path}: {given} names a file that cannot be read; check its path and permissions"
            )
    return found
