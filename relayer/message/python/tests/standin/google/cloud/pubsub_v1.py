"""The part of google-cloud-pubsub that the example uses, over gRPC, for machines without PyPI (needs grpcio).

It speaks the real protocol to PUBSUB_EMULATOR_HOST: StreamingPull, Acknowledge and ModifyAckDeadline, in one
thread per subscription.
"""

import os
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from types import SimpleNamespace

import grpc


def _varint(n: int) -> bytes:
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def _text(field: int, value: str) -> bytes:
    data = value.encode()
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _fields(data: bytes):
    """The fields of a protobuf message: number and value."""
    at = 0

    def varint() -> int:
        nonlocal at
        n = shift = 0
        while True:
            byte = data[at]
            at += 1
            n |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return n

    while at < len(data):
        key = varint()
        size = varint()
        if key & 7 == 2:
            yield key >> 3, data[at:at + size]
            at += size
        else:
            assert key & 7 == 0, "a wire type that no answer has"
            yield key >> 3, size


class Message:
    def __init__(self, client: "SubscriberClient", subscription: str, received: bytes) -> None:
        self._client, self._subscription = client, subscription
        self.data, self.attributes, self._ack_id = b"", {}, ""
        for number, value in _fields(received):
            if number == 1:
                self._ack_id = value.decode()
            elif number == 2:
                self._read(value)

    def _read(self, message: bytes) -> None:
        for number, value in _fields(message):
            if number == 1:
                self.data = value
            elif number == 2:
                entry = dict(_fields(value))
                self.attributes[entry[1].decode()] = entry.get(2, b"").decode()

    def ack(self) -> None:
        self._client._call("Acknowledge", _text(1, self._subscription) + _text(2, self._ack_id))

    def nack(self) -> None:
        self._client._call("ModifyAckDeadline", _text(1, self._subscription) + _text(4, self._ack_id) + _number(3, 0))


class SubscriberClient:
    def __init__(self) -> None:
        self._channel = grpc.insecure_channel(os.environ["PUBSUB_EMULATOR_HOST"])
        self._threads = ThreadPoolExecutor()

    def _call(self, method: str, request: bytes) -> bytes:
        return self._channel.unary_unary(f"/google.pubsub.v1.Subscriber/{method}")(request, timeout=60)

    def subscription_path(self, project: str, subscription: str) -> str:
        return f"projects/{project}/subscriptions/{subscription}"

    def subscribe(self, subscription: str, callback) -> "Future[None]":
        return self._threads.submit(self._pull, subscription, callback)

    def _pull(self, subscription: str, callback) -> None:
        # the first request: a deadline of 600 s, since nothing extends it here, and 100 messages at a time
        first = _text(1, subscription) + _number(5, 600) + _number(7, 100)
        open_end = Event()

        def requests():
            yield first
            open_end.wait()  # the stream lives as long as the process

        for response in self._channel.stream_stream("/google.pubsub.v1.Subscriber/StreamingPull")(requests()):
            for number, value in _fields(response):
                if number == 1:
                    callback(Message(self, subscription, value))


subscriber = SimpleNamespace(message=SimpleNamespace(Message=Message))
