"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs: the settings of topics and of the broker level."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from logfs import config, setting
from logfs.errors import InvalidName
from logfs.format.base import names
from logfs.server.error_codes import ErrorCode, Refused, answered
from logfs.setting import Type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from logfs.server.broker import Broker, Request

# The kinds of resources that have settings.
_TOPIC, _BROKER = 2, 4
# Where a value comes from: the topic, the broker level, or the default (Kafka's ConfigSource).
_OF_TOPIC, _OF_BROKER, _DEFAULT = 1, 2, 5
# The types of values by their numbers (Kafka's ConfigType).
_TYPES = {
    Type.BOOLEAN: 1,
    Type.STRING: 2,
    Type.INT: 3,
    Type.LONG: 5,
    Type.DOUBLE: 6,
    Type.LIST: 7,
}


class _Operation(enum.IntEnum):
    """What an IncrementalAlterConfigs request does with a setting (Kafka's AlterConfigOp)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


def describe_configs(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Return the settings of topics or of the broker level: all, or those that are named."""

    def describe(asked: Mapping[str, Any]) -> Mapping[str, Any]:
        overrides = _overrides(broker, asked)
        wanted = asked["configurationKeys"]
        known = setting.BROKER_SETTINGS if overrides is None else setting.TOPIC_SETTINGS
        chosen = [each for each in known.values() if wanted is None or each.name in wanted]
        of_broker = broker.store.settings.broker_overrides
        found = [_described(each, overrides, of_broker) for each in chosen]
        if not request.fields["includeSynonyms"]:
            found = [{**each, "synonyms": []} for each in found]
        if not request.fields["includeDocumentation"]:
            found = [{**each, "documentation": None} for each in found]
        return {"configs": found}

    broker.refresh()
    asked = request.fields["resources"]
    return {"results": [{**_resource(each), **answered(describe, each)} for each in asked]}


def settings_of(broker: Broker, topic: str) -> list[dict[str, Any]]:
    """Return what a client is told of the settings of a topic."""
    settings = broker.store.settings
    overrides = settings.topic_overrides(topic)
    known = setting.TOPIC_SETTINGS.values()
    return [_described(each, overrides, settings.broker_overrides) for each in known]


def incremental_alter_configs(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Change settings of topics or of the broker level; the others stay as they are."""

    def changed(asked: Mapping[str, Any]) -> Mapping[str, str | None]:
        overrides = _overrides(broker, asked)
        found: dict[str, str | None] = {}
        for each in asked["configs"]:
            if each["name"] in found:
                raise Refused(ErrorCode.INVALID_REQUEST, f"{each['name']} is changed twice")
            found[each["name"]] = _changed(broker, overrides, each)
        return found

    return _alter(broker, request, changed)


def alter_configs(broker: Broker, request: Request) -> Mapping[str, Any]:
    """Give topics or the broker level these settings, and no others."""

    def changed(asked: Mapping[str, Any]) -> Mapping[str, str | None]:
        overrides = _overrides(broker, asked)
        before = broker.store.settings.broker_overrides if overrides is None else overrides
        return {
            **dict.fromkeys(before),
            **{each["name"]: each["value"] for each in asked["configs"]},
        }

    return _alter(broker, request, changed)


def _alter(
    broker: Broker,
    request: Request,
    changed: Callable[[Mapping[str, Any]], Mapping[str, str | None]],
) -> Mapping[str, Any]:
    """Make the changes that `changed` gives for each resource; with `validateOnly`, only check them."""
    settings = broker.store.settings
    validate = request.fields["validateOnly"]

    def alter(asked: Mapping[str, Any]) -> Mapping[str, Any]:
        changes = changed(asked)
        if asked["resourceType"] == _BROKER:
            if validate:
                settings.check_broker(changes)
            else:
                settings.change_broker(changes)
        elif validate:
            settings.check_topic(asked["resourceName"], changes)
        else:
            settings.change_topic(asked["resourceName"], changes)
        return {}

    asked = request.fields["resources"]
    return {"responses": [{**_resource(each), **answered(alter, each)} for each in asked]}


def _resource(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: asked[name] for name in ("resourceType", "resourceName")}


def _overrides(broker: Broker, asked: Mapping[str, Any]) -> Mapping[str, str] | None:
    """Return the overrides of the topic that a resource names, or None if it names the broker level."""
    name = asked["resourceName"]
    if asked["resourceType"] == _BROKER:
        if name not in ("", str(broker.node_id)):
            raise Refused(
                ErrorCode.INVALID_REQUEST, f"there is no broker {name!r}, only {broker.node_id}"
            )
        return None
    if asked["resourceType"] != _TOPIC:
        raise Refused(ErrorCode.INVALID_REQUEST, "only topics and brokers have settings here")
    try:
        names.check_topic(name)
    except InvalidName as error:
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, str(error)) from None
    if not broker.partitions_of(name):
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic '{name}'")
    return broker.store.settings.topic_overrides(name)


def _described(
    found: setting.Setting, topic: Mapping[str, str] | None, broker: Mapping[str, str]
) -> dict[str, Any]:
    """Return what a client is told of a setting. `topic` are the overrides of a topic, None for the broker level."""
    if topic is None:
        value = config.broker_value_in_force(found.name, broker)
        source = _OF_BROKER if found.name in broker else _DEFAULT
    else:
        value = config.value_in_force(found.name, topic, broker)
        told = config.describe_source(found.name, topic, broker)
        source = {"topic": _OF_TOPIC, "broker": _OF_BROKER}.get(told.split()[0], _DEFAULT)
    return {
        "name": found.name,
        "value": None if found.is_secret else value,
        "configSource": source,
        "isSensitive": found.is_secret,
        "synonyms": [] if found.is_secret else list(_synonyms(found, topic, broker)),
        "configType": _TYPES[found.type],
        "documentation": found.doc,
    }


def _synonyms(
    found: setting.Setting, topic: Mapping[str, str] | None, broker: Mapping[str, str]
) -> Iterator[Mapping[str, Any]]:
    """Yield the settings that give a setting its value, the one in force first."""
    if topic is not None and found.name in topic:
        yield {"name": found.name, "value": topic[found.name], "source": _OF_TOPIC}
    others = (found.name,) if topic is None else found.synonyms
    for name in others:
        if name in broker:
            yield {"name": name, "value": broker[name], "source": _OF_BROKER}
    default = setting.BROKER_SETTINGS[others[0]].default if others else None
    if default is not None:
        yield {"name": others[0], "value": default, "source": _DEFAULT}


def _changed(
    broker: Broker, overrides: Mapping[str, str] | None, change: Mapping[str, Any]
) -> str | None:
    """Return the text that a change of one setting gives it; None if the setting is to have its default."""
    name, value = change["name"], change["value"]
    try:
        operation = _Operation(change["configOperation"])
    except ValueError:
        raise Refused(
            ErrorCode.INVALID_REQUEST, f"{name}: there is no operation {change['configOperation']}"
        ) from None
    if operation is _Operation.DELETE:
        return None
    if value is None:
        raise Refused(ErrorCode.INVALID_REQUEST, f"{name}: the change has no value")
    text = str(value)
    if operation is _Operation.SET:
        return text
    of_broker = broker.store.settings.broker_overrides
    if overrides is None:
        known, now = setting.broker_setting(name), config.broker_value_in_force(name, of_broker)
    else:
        known, now = setting.topic_setting(name), config.value_in_force(name, overrides, of_broker)
    if known.type is not Type.LIST:
        raise Refused(ErrorCode.INVALID_CONFIG, f"{name} is not a list, so nothing can be added")
    items, named = now.split(",") if now else [], text.split(",")
    if operation is _Operation.APPEND:
        return ",".join([*items, *(each for each in named if each not in items)])
    return ",".join(each for each in items if each not in named)
