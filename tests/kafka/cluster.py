"""A real cluster: brokers that are also its controllers, reached over a network that can be broken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.kafka.broker import BOOTSTRAP, Broker
from tests.support.proxy import Proxy

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

    from tests.kafka.distribution import Distribution

_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xmx256m")


class BrokerCluster:
    """Some brokers; topics have a replica on each, and two must be in sync if there are so many.

    `servers` are the brokers' own addresses. `remote_servers` lead through `proxies`, one for each broker, as do the
    addresses that brokers tell to who comes that way. A context manager, which ends all of it.
    """

    def __init__(
        self, kafka: Distribution, directory: Path, count: int, **settings: object
    ) -> None:
        """Prepare `count` brokers, without starting them. Settings are those of `Broker`."""
        self.proxies = [Proxy() for _ in range(count)]
        self.brokers = [
            Broker(kafka, directory / f"broker-{number}", _JVM, node_id=number, **settings)
            for number in range(1, count + 1)
        ]
        self.remote_servers = ",".join(proxy.address for proxy in self.proxies)
        self.servers = ",".join(broker.servers for broker in self.brokers)
        voters = [f"{each.settings['node.id']}@{each.controller}" for each in self.brokers]
        for broker, proxy in zip(self.brokers, self.proxies, strict=True):
            broker.cluster_id = self.brokers[0].cluster_id
            proxy.target = f"127.0.0.1:{broker.reserve_port()}"
            broker.settings |= {
                "controller.quorum.voters": ",".join(voters),
                "default.replication.factor": count,
                "min.insync.replicas": min(count, 2),
                "offsets.topic.replication.factor": count,
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,FAR:PLAINTEXT",
                "inter.broker.listener.name": "PLAINTEXT",
                "listeners": f"{broker.settings['listeners']},FAR://{proxy.target}",
                "advertised.listeners": f"PLAINTEXT://{broker.servers},FAR://{proxy.address}",
            }
            del broker.settings[BOOTSTRAP]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for broker in self.brokers:
            broker.close()
        for proxy in self.proxies:
            proxy.close()

    def start(self) -> Self:
        """Start the brokers that do not run."""
        stopped = [broker for broker in self.brokers if broker.process is None]
        for broker in stopped:
            broker.launch()
        for broker in stopped:
            broker.await_start()
        return self
