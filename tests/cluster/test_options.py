"""Options of the connection to a cluster: names, types, and that no value is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from logfs.cluster.options import read_options
from logfs.errors import InvalidSetting

if TYPE_CHECKING:
    from pathlib import Path


def test_options_are_those_of_kafka_python(tmp_path: Path) -> None:
    """Names have dots or underscores, values their types; user and password may come from Java's option."""
    path = tmp_path / "client.properties"
    path.write_text(
        "# a comment\nsecurity.protocol=SASL_SSL\nssl_check_hostname=False\nrequest.timeout.ms = 5000\n"
        "client.dns.lookup=use_all_dns_ips\n"
        "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="me" password="a b\\\\"c";\n'
    )
    assert read_options(path) == {
        "security_protocol": "SASL_SSL",
        "ssl_check_hostname": False,
        "request_timeout_ms": 5000,
        "client_dns_lookup": "use_all_dns_ips",
        "sasl_plain_username": "me",
        "sasl_plain_password": 'a b"c',
    }
    assert read_options(None) == {}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "sasl.plain.pasword=secret",
            r"no option sasl\.plain\.pasword; did you mean 'sasl_plain_password'\?",
        ),
        ("request.timeout.ms=secret", r"the value of request\.timeout\.ms is refused"),
        ("ssl.check.hostname=secret", r"the value of ssl\.check\.hostname is refused"),
        ("something.else=secret", "the name of an option is unknown"),
        ("secret2", "the name of an option is unknown"),
        ("security.protocol=sasl_ssl secret", r"the value of security\.protocol is refused"),
        ("security.protocol=", r"the value of security\.protocol is refused"),
        ("sasl.jaas.config=secret", "needs username=.*password="),
        ("request.timeout.ms=-5", r"the value of request\.timeout\.ms is refused"),
        ("client.dns.lookup=secret", r"the value of client\.dns\.lookup is refused"),
        ("secret\\u12", "is not a properties file"),
    ],
)
def test_wrong_options_are_named_and_not_shown(tmp_path: Path, line: str, message: str) -> None:
    """An error has the file, the option and the nearest right one, and never a value."""
    path = tmp_path / "client.properties"
    path.write_text(line + "\n")
    with pytest.raises(InvalidSetting, match=message) as caught:
        read_options(path)
    assert str(path) in str(caught.value)
    assert "secret" not in str(caught.value)
