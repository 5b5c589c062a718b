#!/usr/bin/env python3
"""Checks the topics of a fleet by docs/architecture.md alone: it shares no code with the program or its client library.

    check.py BROKERS PREFIX [--partition P] [--fleet NAME] [--server URL]... [--mirror DATA_DIR]...
             [--inbox-from OFFSET] [--inbox-actor NAME] [--events-deleted POSITION] [--at-rest]
    check.py --self-test

It reads PREFIX.journal, PREFIX.inbox and PREFIX.events from the first offset to the end that the broker names,
committed messages only, with checksums. It speaks Kafka's protocol itself, without TLS and logins: client libraries
fail at a header name that is not UTF-8 and at a batch whose bytes are damaged, and both must be checked here. Prints one
JSON object with the results. Exit status: 0 without faults, 1 with faults, 2 if something could not be read.

With --at-rest nothing may be in progress: every inbox message is answered and every event exported.
"""

import argparse
import ctypes
import ctypes.util
import hashlib
import http.client
import json
import re
import socket
import struct
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zlib
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

Json = dict[str, Any]

ROOT = Path(__file__).resolve().parents[3]
MIB = 1 << 20
ZEROS = "0" * 64
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
# Verdicts that record no key: the same key may be decided again.
NO_DECISION = {"idempotency_key_reused", "intent_expired", "timestamp_in_future"}
WEEK = 7 * 86_400_000_000
MOST_KEYS = 250_000
LARGEST_INBOX_MESSAGE = 256 * 1024
INTENT_ATTRIBUTES = {
    "specversion",
    "id",
    "source",
    "type",
    "time",
    "subject",
    "datacontenttype",
    "actor",
    "expectedversion",
    "traceparent",
}


class Unreadable(Exception):
    """Data that must be checked could not be read."""


class Faults:
    """Faults that were found: all are counted, and the first fifty are kept."""

    def __init__(self) -> None:
        self.total = 0
        self.first: list[str] = []

    def add(self, text: str) -> None:
        self.total += 1
        if len(self.first) < 50:
            self.first.append(text)


# CRC-32C, four bytes at a time.


def _tables() -> tuple[list[int], list[int], list[int]]:
    byte = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        byte.append(value)

    def two(value: int) -> int:
        value = (value >> 8) ^ byte[value & 255]
        return (value >> 8) ^ byte[value & 255]

    low = [two(value) for value in range(65536)]
    return byte, [two(value) for value in low], low


_BYTE, _LOW, _HIGH = _tables()


def crc32c(data: bytes | memoryview) -> int:
    view, crc, low, high = memoryview(data), 0xFFFFFFFF, _LOW, _HIGH
    whole = len(view) & ~3
    for word in struct.unpack(f"<{whole // 4}I", view[:whole]):
        crc ^= word
        crc = low[crc & 0xFFFF] ^ high[crc >> 16]
    for value in view[whole:]:
        crc = (crc >> 8) ^ _BYTE[(crc ^ value) & 255]
    return crc ^ 0xFFFFFFFF


# Kafka.


@dataclass
class Message:
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[bytes, bytes | None]] = field(default_factory=list)


@dataclass
class Log:
    """One partition: its committed messages, and the ranges of offsets whose bytes are damaged or of an unknown codec."""

    name: str
    start: int
    end: int
    messages: list[Message]
    damaged: list[tuple[int, int]] = field(default_factory=list)

    def at(self, offset: int) -> str:
        return f"{self.name} offset {offset}"


class Reader:
    """Takes big-endian fields from bytes."""

    def __init__(self, data: bytes | bytearray) -> None:
        self.data, self.place = bytes(data), 0

    def number(self, form: str) -> int:
        value = struct.unpack_from(">" + form, self.data, self.place)[0]
        self.place += struct.calcsize(">" + form)
        return int(value)

    def take(self, count: int) -> bytes:
        if count < 0 or self.place + count > len(self.data):
            raise Unreadable("a broker's answer ends too early")
        self.place += count
        return self.data[self.place - count : self.place]

    def text(self) -> str:
        count = self.number("h")
        return "" if count < 0 else self.take(count).decode()

    def each(self, read: Callable[[], Any]) -> list[Any]:
        return [read() for _ in range(max(0, self.number("i")))]

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.place]
            self.place += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return (value >> 1) ^ -(value & 1)

    def counted(self) -> bytes | None:
        count = self.varint()
        return None if count < 0 else self.take(count)


def string(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


class Kafka:
    """Metadata, offsets and fetches, in versions of the protocol that every broker since 0.11 has."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = [(host, int(port)) for host, _, port in (one.rpartition(":") for one in bootstrap.split(","))]
        self.sockets: dict[tuple[str, int], socket.socket] = {}
        self.cluster = ""

    def ask(self, broker: tuple[str, int], api: int, version: int, body: bytes) -> Reader:
        if broker not in self.sockets:
            self.sockets[broker] = socket.create_connection(broker, timeout=30)
        connection = self.sockets[broker]
        request = struct.pack(">hhi", api, version, 1) + string("check") + body
        try:
            connection.sendall(struct.pack(">i", len(request)) + request)
            answer = Reader(self._exactly(connection, struct.unpack(">i", self._exactly(connection, 4))[0]))
        except OSError:
            self.sockets.pop(broker).close()
            raise
        answer.number("i")
        return answer

    @staticmethod
    def _exactly(connection: socket.socket, count: int) -> bytearray:
        taken = bytearray(count)
        view, place = memoryview(taken), 0
        while place < count:
            got = connection.recv_into(view[place:])
            if got == 0:
                raise ConnectionError("a broker closed the connection")
            place += got
        return taken

    def leader(self, topic: str, partition: int) -> tuple[str, int]:
        last: Exception = Unreadable(f"{topic}-{partition}: no broker")
        for broker in self.bootstrap:
            try:
                answer = self.ask(broker, 3, 4, struct.pack(">i", 1) + string(topic) + b"\0")
                return self._leader(answer, topic, partition)
            except OSError as error:
                last = error
        raise last

    def _leader(self, answer: Reader, topic: str, partition: int) -> tuple[str, int]:
        def broker() -> tuple[int, tuple[str, int]]:
            number, host, port, _ = answer.number("i"), answer.text(), answer.number("i"), answer.text()
            return number, (host, port)

        def one() -> tuple[int, int]:
            _, number, leader = answer.number("h"), answer.number("i"), answer.number("i")
            for _ in ("replicas", "in sync"):
                answer.each(lambda: answer.number("i"))
            return number, leader

        answer.number("i")
        brokers: dict[int, tuple[str, int]] = dict(answer.each(broker))
        self.cluster = answer.text()
        answer.number("i")
        topics = answer.each(lambda: (answer.number("h"), answer.text(), answer.number("b"), answer.each(one)))
        if topics[0][0] == 3:
            raise Unreadable(f"there is no topic {topic}")
        leader = dict(topics[0][3]).get(partition)
        if leader not in brokers:
            raise ConnectionError(f"{topic}-{partition} has no leader")
        return brokers[leader]

    def offset(self, topic: str, partition: int, which: int) -> int:
        """Returns the first offset (-2), or the end of the committed messages (-1)."""
        body = struct.pack(">ibi", -1, 1, 1) + string(topic) + struct.pack(">iiq", 1, partition, which)
        answer = self.ask(self.leader(topic, partition), 2, 2, body)
        answer.take(8)
        answer.text()
        answer.take(8)
        error = answer.number("h")
        if error:
            raise ConnectionError(f"{topic}-{partition}: error {error} for its offsets")
        answer.take(8)
        return answer.number("q")

    def read(self, topic: str, partition: int) -> Log:
        """Reads the whole partition. Requests without an answer are repeated for a minute."""
        patience = time.monotonic() + 60
        log: Log | None = None
        offset, trouble = 0, "nothing comes"
        while True:
            try:
                if log is None:
                    start, end = self.offset(topic, partition, -2), self.offset(topic, partition, -1)
                    log, offset = Log(f"{topic}-{partition}", start, end, []), start
                if offset >= log.end:
                    return log
                before, offset = offset, self._fetch(topic, partition, offset, log)
                if offset > before:
                    patience = time.monotonic() + 60
            except OSError as error:
                trouble = str(error)
                time.sleep(0.5)
            if time.monotonic() > patience:
                raise Unreadable(f"{topic}-{partition} from offset {offset} on: {trouble}")

    def _fetch(self, topic: str, partition: int, offset: int, log: Log) -> int:
        body = (
            struct.pack(">iiiibi", -1, 500, 1, 64 * MIB, 1, 1)
            + string(topic)
            + struct.pack(">iiqi", 1, partition, offset, 16 * MIB)
        )
        answer = self.ask(self.leader(topic, partition), 1, 4, body)
        answer.take(8)
        answer.text()
        answer.take(8)
        error = answer.number("h")
        if error:
            raise ConnectionError(f"{topic}-{partition}: error {error} for a fetch at {offset}")
        answer.take(16)
        aborted = sorted(answer.each(lambda: (answer.number("q"), answer.number("q"))), key=lambda one: one[1])
        size = answer.number("i")
        return unpack(answer.take(max(0, size)), aborted, offset, log)


def unpack(data: bytes, aborted: list[tuple[int, int]], offset: int, log: Log) -> int:
    """Adds the committed messages of whole batches from the offset on; returns the next offset."""
    place, open_aborts = 0, set()
    while place + 61 <= len(data):
        base, length, _, magic, crc, attributes, delta = struct.unpack_from(">qiibIhi", data, place)
        batch, place = data[place : place + 12 + length], place + 12 + length
        if len(batch) < 12 + length:
            break
        if magic != 2:
            raise Unreadable(f"{log.at(base)}: a batch of format {magic}")
        if crc32c(memoryview(batch)[21:]) != crc:
            last = (
                struct.unpack_from(">q", data, place)[0] - 1
                if place + 8 <= len(data)
                else base + max(0, min(delta, MIB))
            )
            if base < log.end:
                log.damaged.append((base, last))
            offset = max(offset, last + 1)
            continue
        last, producer = base + delta, struct.unpack_from(">q", batch, 43)[0]
        while aborted and aborted[0][1] <= last:
            open_aborts.add(aborted.pop(0)[0])
        try:
            records = Reader(unpacked(batch[61:], attributes & 7, log.at(base)))
        except UnknownCodec:
            if base < log.end:
                log.damaged.append((base, last))
            offset = max(offset, last + 1)
            continue
        count = struct.unpack_from(">i", batch, 57)[0]
        dropped = attributes & 16 and producer in open_aborts
        for _ in range(count if attributes & 32 or not dropped else 0):
            records.varint()
            records.take(1)
            records.varint()
            one = Message(base + records.varint(), records.counted(), records.counted())
            one.headers = [(records.counted() or b"", records.counted()) for _ in range(records.varint())]
            if attributes & 32:
                if one.key is not None and struct.unpack_from(">h", one.key, 2)[0] == 0:
                    open_aborts.discard(producer)
            elif offset <= one.offset < log.end:
                log.messages.append(one)
        offset = max(offset, last + 1)
    return offset


class UnknownCodec(Exception):
    """A batch whose codec no client knows."""


def unpacked(data: bytes, codec: int, where: str) -> bytes:
    try:
        if codec == 1:
            return zlib.decompress(data, 31)
        if codec == 2:
            return snappy(data)
        if codec == 3:
            return lz4(data)
        if codec == 4:
            return zstd(data)
    except (zlib.error, IndexError, struct.error, ValueError) as error:
        raise Unreadable(f"{where}: {error!r}") from error
    if codec:
        raise UnknownCodec(f"{where}: compressed by codec {codec}")
    return data


def snappy(data: bytes) -> bytes:
    """Raw Snappy, or the framing of it that Java clients write."""
    if not data.startswith(b"\x82SNAPPY\0"):
        return snappy_block(data)
    out, place = b"", 16
    while place < len(data):
        size = struct.unpack_from(">i", data, place)[0]
        out += snappy_block(data[place + 4 : place + 4 + size])
        place += 4 + size
    return out


def snappy_block(block: bytes) -> bytes:
    size = place = shift = 0
    while True:
        byte, place = block[place], place + 1
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    out = bytearray()
    while place < len(block):
        tag, place = block[place], place + 1
        if tag & 3 == 0:
            count = tag >> 2
            if count >= 60:
                more = count - 59
                count, place = int.from_bytes(block[place : place + more], "little"), place + more
            out += block[place : place + count + 1]
            place += count + 1
            continue
        if tag & 3 == 1:
            count, back, place = (tag >> 2 & 7) + 4, tag >> 5 << 8 | block[place], place + 1
        else:
            wide = 2 if tag & 3 == 2 else 4
            count, back, place = (tag >> 2) + 1, int.from_bytes(block[place : place + wide], "little"), place + wide
        if not 0 < back <= len(out):
            raise ValueError("a copy from before the start")
        chunk = out[len(out) - back :]
        out += (chunk * (count // back + 1))[:count]
    if len(out) != size:
        raise ValueError(f"{len(out)} bytes, expected {size}")
    return bytes(out)


class ZstdBuffer(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_size_t), ("place", ctypes.c_size_t)]


def zstd(data: bytes) -> bytes:
    """Zstandard, by the system's library: Python has it since 3.14 only."""
    name = ctypes.util.find_library("zstd") or "libzstd.so.1"
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        raise Unreadable(f"no library for Zstandard (on Debian: apt-get install libzstd1): {error}") from error
    library.ZSTD_createDStream.restype = ctypes.c_void_p
    library.ZSTD_decompressStream.argtypes = [ctypes.c_void_p, *[ctypes.POINTER(ZstdBuffer)] * 2]
    library.ZSTD_decompressStream.restype = ctypes.c_size_t
    library.ZSTD_freeDStream.argtypes = [ctypes.c_void_p]
    stream, out = library.ZSTD_createDStream(), b""
    source, piece = ctypes.create_string_buffer(data, len(data)), ctypes.create_string_buffer(MIB)
    taken = ZstdBuffer(ctypes.addressof(source), len(data), 0)
    try:
        while True:
            given = ZstdBuffer(ctypes.addressof(piece), MIB, 0)
            left = library.ZSTD_decompressStream(stream, ctypes.byref(given), ctypes.byref(taken))
            if library.ZSTD_isError(ctypes.c_size_t(left)):
                raise ValueError("no frame of Zstandard")
            out += piece.raw[: given.place]
            if taken.place == taken.size and given.place < given.size:
                if left:
                    raise ValueError("a frame of Zstandard ends too early")
                return out
    finally:
        library.ZSTD_freeDStream(stream)


def lz4(data: bytes) -> bytes:
    """Decodes a frame of LZ4 without checking its own checksums: the batch has one."""
    magic, flags = struct.unpack_from("<IB", data, 0)
    if magic != 0x184D2204:
        raise ValueError("no frame of LZ4")
    out = bytearray()
    place = 7 + (8 if flags & 8 else 0) + (4 if flags & 1 else 0)
    while size := struct.unpack_from("<I", data, place)[0]:
        block = data[place + 4 : place + 4 + (size & 0x7FFFFFFF)]
        if size >> 31:
            out += block
        else:
            lz4_block(block, out)
        place += 4 + len(block) + (4 if flags & 16 else 0)
    return bytes(out)


def lz4_block(block: bytes, out: bytearray) -> None:
    place = 0

    def length(value: int) -> int:
        nonlocal place
        more = 255 if value == 15 else 0
        while more == 255:
            more = block[place]
            value, place = value + more, place + 1
        return value

    while place < len(block):
        token, place = block[place], place + 1
        literals = length(token >> 4)
        out += block[place : place + literals]
        place += literals
        if place < len(block):
            back = block[place] | block[place + 1] << 8
            place += 2
            count = length(token & 15) + 4
            if not 0 < back <= len(out):
                raise ValueError("a copy from before the start")
            chunk = out[len(out) - back :]
            out += (chunk * (count // back + 1))[:count]


# The journal.


@dataclass
class Record:
    offset: int
    header: Json
    data: bytes
    hash: str

    @property
    def first(self) -> int:
        return int(self.header["first"])

    @property
    def last(self) -> int:
        return int(self.header["first"] + self.header["count"] - 1)

    def events(self) -> list[Json]:
        return [json.loads(line) for line in self.data.split(b"\n")[1:-1]]


HEADER = {
    "chancery": int,
    "fleet": str,
    "lineage": str,
    "first": int,
    "count": int,
    "term": int,
    "writer": str,
    "time": int,
    "prev": str,
}
EVENT = {
    "fact": ({"k", "t", "c", "d"}, set()),
    "observation": ({"k", "t", "by", "d"}, set()),
    "intent": ({"k", "t", "id", "src", "by", "d"}, {"claim", "at", "expect", "tp"}),
}


def header_of(value: bytes | None) -> Json | None:
    """Returns the header of a record, or None if there is none."""
    try:
        header = json.loads((value or b"")[: (value or b"").index(b"\n")].decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(header, dict) or any(type(header.get(key)) is not kind for key, kind in HEADER.items()):
        return None
    return header


class Journal:
    """The valid records of a partition, by the validity rule, and the contents of their bodies."""

    def __init__(self, log: Log, faults: Faults, fleet: str | None = None) -> None:
        self.log, self.faults, self.fleet = log, faults, fleet
        self.records: list[Record] = []
        self.skipped: Counter[str] = Counter()
        self.ends: dict[str, int] = {}
        self.abandoned: set[str] = set()
        self.intents: dict[int, tuple[Json, Record]] = {}
        self.asked: dict[tuple[str, str], list[int]] = defaultdict(list)
        self.refused: dict[int, list[tuple[int, Json, Record]]] = defaultdict(list)
        self.skips: dict[int, list[tuple[int, Record]]] = defaultdict(list)
        self.watermarks: list[tuple[int, Record]] = []
        self.inbox: str | None = None
        self._hashes: set[str] = set()
        self._firsts: list[int] = []
        self._keys: dict[str, tuple[str, str, str]] = {}
        self._names: dict[tuple[str, str, str], str] = {}
        self._halves: dict[tuple[str, ...], str] = {}
        self._decided: dict[str, tuple[int, int, int, str]] = {}
        self._decisions = 0
        if log.start > 0:
            faults.add(f"{log.name}: it starts at offset {log.start}, expected 0")
        for first, last in log.damaged:
            faults.add(f"{log.at(first)}: the bytes up to offset {last} are damaged")
        for message in log.messages:
            stop = self._judge(message)
            if stop:
                faults.add(f"{log.at(message.offset)} position {self.head + 1}: {stop}; this stops every reader")
                break

    @property
    def head(self) -> int:
        return self.records[-1].last if self.records else 0

    def holder(self, position: int) -> Record | None:
        """Returns the record that contains a position."""
        at = bisect_right(self._firsts, position) - 1
        return self.records[at] if 0 <= at and position <= self.head else None

    def _judge(self, message: Message) -> str | None:
        header, last = header_of(message.value), self.records[-1].header if self.records else None
        if header is None:
            self.skipped["no record"] += 1
            return None
        value = message.value or b""
        digest, begins, term = hashlib.sha256(value).hexdigest(), header.get("starts"), header["term"]
        if last is None:
            fits = header["first"] == 1 and header["prev"] == ZEROS and begins == "term" and term == 1
            if not fits or self.fleet not in (None, header["fleet"]):
                self.skipped["before the first record"] += 1
                return None
        else:
            same = header["lineage"] == last["lineage"]
            if header["fleet"] != last["fleet"]:
                reason = "another fleet"
            elif digest in self._hashes:
                reason = "duplicate"
            elif header["first"] != self.head + 1 or header["prev"] != self.records[-1].hash:
                behind = term < last["term"] or (term == last["term"] and header["writer"] != last["writer"])
                reason = "fenced writer" if behind else "does not continue the chain"
            elif begins != "lineage" and same and term == last["term"] and header["writer"] == last["writer"]:
                if begins is not None:
                    return f"term {term} starts, and term {last['term']} has started"
                reason = ""
            elif begins is None:
                reason = "another lineage, term or writer"
            elif begins == "term":
                reason = "" if same and term == last["term"] + 1 else "a term that does not follow"
            else:
                follows = header.get("previous") == last["lineage"] and not same and term == last["term"] + 1
                reason = "" if begins == "lineage" and follows else "a lineage that does not follow"
            if reason:
                self.skipped[reason] += 1
                return None
            if header["time"] < last["time"]:
                return f"time {header['time']} is before {last['time']}"
        record = Record(message.offset, header, value, digest)
        wrong = self._body(record)
        if wrong:
            return f"cannot read body: {wrong}"
        self._take(record, last)
        return None

    @staticmethod
    def _body(record: Record) -> str | None:
        count, lines = record.header["count"], record.data.split(b"\n")
        if record.header["chancery"] != 2:
            return f"format {record.header['chancery']}, expected 2"
        if lines[-1] != b"" or len(lines) != count + 2:
            return f"{len(lines) - 2} lines, expected {count}"
        if not 1 <= count <= 1000 or len(record.data) > MIB:
            return f"{count} events and {len(record.data)} bytes, expected at most 1000 and {MIB}"
        try:
            events = [json.loads(line.decode()) for line in lines[1:-1]]
        except (ValueError, RecursionError) as error:
            return str(error)
        for place, event in enumerate(events):
            needed, other = EVENT.get(str(event.get("k")) if isinstance(event, dict) else "", (set(), set()))
            if not needed or not needed <= event.keys() <= needed | other:
                return f"event {record.first + place} does not have the keys of its kind"
            if "c" in needed and type(event["c"]) is not int:
                return f"event {record.first + place} has no position as its cause"
        return None

    def _take(self, record: Record, last: Json | None) -> None:
        header = record.header
        if last and header["lineage"] != last["lineage"]:
            self.ends[last["lineage"]] = self.head
        self.fleet = header["fleet"]
        self.records.append(record)
        self._firsts.append(record.first)
        self._hashes.add(record.hash)
        self._watermark(record)
        verdicts: Counter[int] = Counter()
        intents: list[int] = []
        for position, event in enumerate(record.events(), record.first):
            self._event(record, position, event)
            if event["k"] == "intent":
                intents.append(position)
            if event["t"] in ("intent.accepted.v1", "intent.refused.v1"):
                verdicts[event["c"]] += 1
                self._verdict(record, position, event)
        for position in intents:
            if verdicts[position] != 1:
                self.fault(position, f"{verdicts[position]} verdicts of the intent in its record, expected 1")

    def fault(self, position: int, text: str) -> None:
        record = self.holder(position)
        self.faults.add(f"{self.log.at(record.offset if record else -1)} position {position}: {text}")

    def _watermark(self, record: Record) -> None:
        mark = record.header.get("watermark")
        if mark is None:
            return
        if mark["topic"] != self.inbox:
            self.inbox, self.watermarks = mark["topic"], []
            self.refused.clear()
            self.skips.clear()
        if self.watermarks and mark["next"] < self.watermarks[-1][0]:
            self.fault(record.first, f"watermark {mark['next']}, expected at least {self.watermarks[-1][0]}")
        elif not self.watermarks or mark["next"] > self.watermarks[-1][0]:
            self.watermarks.append((mark["next"], record))

    def _event(self, record: Record, position: int, event: Json) -> None:
        kind, data, begins = event["t"], event["d"], record.header.get("starts")
        if event["k"] == "fact" and not 1 <= event["c"] <= position:
            self.fault(position, f"its cause is {event['c']}, expected an event at or before it")
        begun = {"term.started.v1": "term", "lineage.started.v1": "lineage"}.get(kind)
        if (begins if position == record.first else None) != begun:
            self.fault(position, f"{kind} in a record that starts {begins or 'nothing'}")
        if kind == "lineage.started.v1":
            self.abandoned.update(data.get("abandoned", []))
            if (data["previous"], data["at"]) != (record.header.get("previous"), position - 1):
                self.fault(
                    position,
                    f"the lineage follows {data['previous']} at {data['at']}, expected its header's, at {position - 1}",
                )
        elif kind == "inbox.message_refused.v1":
            if data["topic"] != self.inbox:
                self.fault(position, f"inbox.message_refused of the topic {data['topic']}, expected {self.inbox}")
            self.refused[data["offset"]].append((position, data, record))
        elif kind == "inbox.skipped.v1":
            self.skips[data["offset"]].append((position, record))
        elif event["k"] == "intent":
            self.intents[position] = (event, record)
            self.asked[(event["src"], event["id"])].append(position)

    def _verdict(self, record: Record, position: int, event: Json) -> None:
        cause, data, now = event["c"], event["d"], record.header["time"]
        if cause not in self.intents or cause < record.first:
            self.fault(position, f"a verdict of {cause}, expected an intent in its record")
            return
        intent, key = self.intents[cause][0], data["key"]
        name = intent["by"], intent["src"], intent["id"]
        halves = ((name[:1], key[:6]), (name[:2], key[:12]))
        agrees = self._keys.setdefault(key, name) == name and self._names.setdefault(name, key) == key
        if not agrees or any(self._halves.setdefault(whose, half) != half for whose, half in halves):
            self.fault(position, f"key {key} of {name} does not agree with the keys before it")
        before, code = self._decided.get(key), data.get("code")
        if code == "idempotency_key_reused" and (before is None or before[3] == data["digest"]):
            self.fault(position, "idempotency_key_reused, expected an earlier verdict of the same key with another digest")
        if code in NO_DECISION:
            return
        if before and now - before[1] < WEEK and self._decisions - before[2] < MOST_KEYS:
            self.fault(position, f"a second verdict of {name}, expected only that at {before[0]}")
        self._decisions += 1
        self._decided[key] = position, now, self._decisions, data["digest"]


# Required outcomes of inbox messages.


@dataclass
class Wanted:
    """`must` is intent, refused or either: either where the page does not define it."""

    must: str
    why: str
    id: str | None = None
    source: str | None = None
    fields: Json = field(default_factory=dict)


class Schemas:
    """Schemas of the intents that a client may request, as far as they define what is invalid."""

    def __init__(self) -> None:
        described = json.loads((ROOT / "schemas/openapi.json").read_text())
        shape = described["paths"]["/v1/fleets/{fleet}/intents"]
        event = shape["post"]["requestBody"]["content"]["application/cloudevents+json"]["schema"]
        event = described["components"]["schemas"][event["$ref"].rsplit("/", 1)[1]]
        kinds = [kind.removeprefix("dev.chancery.") for kind in event["properties"]["type"]["enum"]]
        self.of: dict[str, Json] = {
            kind: json.loads((ROOT / f"schemas/events/{kind}.json").read_text()) for kind in kinds
        }

    def valid(self, kind: str, data: Any) -> bool:
        return self._valid(self.of[kind], self.of[kind], data)

    def _valid(self, root: Json, schema: Any, data: Any) -> bool:
        if isinstance(schema, bool):
            return schema

        def inner(one: Any, value: Any = data) -> bool:
            return self._valid(root, one, value)

        if "$ref" in schema and not inner(root["$defs"][schema["$ref"].removeprefix("#/$defs/")]):
            return False
        kinds = schema.get("type", [])
        if kinds and self._kind(data) not in ([kinds] if isinstance(kinds, str) else kinds):
            if not (self._kind(data) == "integer" and "number" in kinds):
                return False
        if "const" in schema and data != schema["const"]:
            return False
        if (
            "oneOf" in schema
            and sum(map(inner, schema["oneOf"])) != 1
            or "anyOf" in schema
            and not any(map(inner, schema["anyOf"]))
        ):
            return False
        if isinstance(data, str):
            pattern = re.sub(r"\$$", r"\\Z", schema.get("pattern", ""))
            return schema.get("minLength", 0) <= len(data) <= schema.get("maxLength", len(data)) and bool(
                re.search(pattern, data)
            )
        if self._kind(data) in ("integer", "number"):
            whole = re.fullmatch(r"(u?)int(\d+)", schema.get("format", ""))
            low, high = schema.get("minimum", data), schema.get("maximum", data)
            return bool(low <= data <= high and not (whole and data >= 1 << int(whole[2]) - (not whole[1])))
        if isinstance(data, list):
            return all(inner(schema.get("items", True), value) for value in data)
        if isinstance(data, dict):
            if not set(schema.get("required", [])) <= data.keys():
                return False
            return all(all(inner(one, value) for one in self._members(schema, name)) for name, value in data.items())
        return True

    @staticmethod
    def _kind(data: Any) -> str:
        return {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}.get(
            type(data), "null"
        )

    @staticmethod
    def _members(schema: Json, name: str) -> list[Any]:
        fit = [one for pattern, one in schema.get("patternProperties", {}).items() if re.search(pattern, name)]
        fit += [schema["properties"][name]] if name in schema.get("properties", {}) else []
        return fit or [schema.get("additionalProperties", True)]


def micros(text: str) -> int | None:
    """Returns a time of RFC 3339 in microseconds, or None."""
    found = re.fullmatch(
        r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:[Zz]|([+-]\d\d:\d\d))", text, re.ASCII
    )
    try:
        whole = datetime.fromisoformat(f"{found[1]}T{found[2]}{found[4] or '+00:00'}") if found else None
    except ValueError:
        return None
    return (
        None
        if whole is None or found is None
        else (whole - EPOCH) // timedelta(microseconds=1) + int((found[3] or "0").ljust(9, "0")[:6])
    )


def _pairs(pairs: list[tuple[str, Any]]) -> Json:
    if len({name for name, _ in pairs}) < len(pairs):
        raise KeyError("a name occurs twice")
    return dict(pairs)


def _constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def wanted(message: Message, schemas: Schemas) -> Wanted:
    """Returns the outcome of an inbox message by the page: CloudEvents of the Kafka binding, structured or binary."""
    if message.value is None:
        return Wanted("refused", "it has no value")
    size = len(message.value) + sum(len(name) + len(value or b"") for name, value in message.headers)
    if size > LARGEST_INBOX_MESSAGE:
        return Wanted("refused", "it is too large")
    doubts = ["the key makes it too large"] if size + len(message.key or b"") > LARGEST_INBOX_MESSAGE else []
    headers: dict[str, bytes | None] = {}
    for raw, value in message.headers:
        try:
            name = raw.decode()
        except UnicodeDecodeError:
            return Wanted("refused", "a header's name is not UTF-8")
        if name.lower().startswith("ce_") or name.lower() == "content-type":
            if name != name.lower():
                doubts.append(f"the header {name} is not in lower case")
            if name.lower() in headers:
                return Wanted("refused", f"the header {name} occurs twice")
            headers[name.lower()] = value
    try:
        texts = {name: (value or b"").decode() for name, value in headers.items()}
    except UnicodeDecodeError:
        return Wanted("refused", "an attribute is not UTF-8")
    media = re.split(r"[;\s]", texts.pop("content-type", ""))[0].lower()
    structured = media.startswith("application/cloudevents") or not texts
    if not media:
        doubts.append("it has no content-type")
    try:
        value = json.loads(message.value.decode(), object_pairs_hook=_pairs, parse_constant=_constant)
    except KeyError:
        return Wanted("either", "a name occurs twice in an object")
    except RecursionError:
        return Wanted("either", "it is nested very deeply")
    except ValueError:
        return Wanted("refused", "its value is no JSON")
    if structured:
        if media not in ("application/cloudevents+json", "") or not isinstance(value, dict):
            return Wanted("refused", "it is no CloudEvent, structured or binary")
        if "data_base64" in value:
            return Wanted("either", "its data is base64")
        if "data" not in value:
            return Wanted("refused", "it has no data")
        attributes = {name: one for name, one in value.items() if name != "data"}
        value = value["data"]
    else:
        if media not in ("application/json", ""):
            return Wanted("refused", "its data is not JSON")
        attributes = {name.removeprefix("ce_"): text for name, text in texts.items()}
    return _attributes(attributes, value, doubts, schemas)


def _attributes(attributes: Json, data: Any, doubts: list[str], schemas: Schemas) -> Wanted:
    if any(not isinstance(one, str) for name, one in attributes.items() if name not in ("expectedversion", "data")):
        return Wanted("refused" if INTENT_ATTRIBUTES >= attributes.keys() else "either", "an attribute is no text")
    identity, source = attributes.get("id"), attributes.get("source")
    if attributes.get("specversion") != "1.0" or not identity or not source or not attributes.get("type"):
        return Wanted("refused", "it does not have the attributes of a CloudEvent")
    kind, expect, when = attributes["type"].removeprefix("dev.chancery."), attributes.get("expectedversion"), attributes.get("time")
    if not attributes["type"].startswith("dev.chancery.") or kind not in schemas.of:
        return Wanted("refused", f"{attributes['type'][:60]} is no type of an intent")
    if attributes.get("datacontenttype", "application/json") != "application/json":
        return Wanted("either", "its datacontenttype differs")
    if when is not None and micros(when) is None:
        return Wanted("refused", "its time is invalid")
    if expect is not None and not re.fullmatch(r"\d{1,18}", str(expect), re.ASCII):
        return Wanted("refused", "its expected version is invalid")
    if not schemas.valid(kind, data):
        return Wanted("refused", f"its data is not that of {kind}")
    trace = attributes.get("traceparent")
    if trace is not None and not re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", trace):
        doubts.append("its traceparent differs")
    doubts += [f"the attribute {name[:60]}" for name in attributes.keys() - INTENT_ATTRIBUTES]
    doubts += ["it has a subject"] if "subject" in attributes else []
    doubts += [
        f"its {name} is unusual"
        for name in ("id", "source", "actor")
        if not re.fullmatch(r"[!-~]{1,256}", attributes.get(name, "x"))
    ]
    fields = {"t": kind, "at": when and micros(when), "expect": None if expect is None else int(expect)}
    fields |= {"tp": trace, "claim": attributes.get("actor"), "d": data}
    return Wanted("either" if doubts else "intent", "; ".join(doubts), identity, source, fields)


def without_defaults(data: Any) -> Any:
    """Returns data without values that may be left out: null, zero and empty ones."""
    if isinstance(data, dict):
        return {name: one for name, one in ((name, without_defaults(value)) for name, value in data.items()) if one}
    return [without_defaults(value) for value in data] if isinstance(data, list) else data


def matches(intent: Json, fields: Json, repeat: bool = False) -> bool:
    """Whether an intent in the journal is the one that the message requests; of a repeat, by the fields of its digest."""
    same_type = intent["t"] == fields["t"] and intent.get("expect") == fields["expect"]
    kept = all(intent.get(name) == fields[name] for name in ("tp", "claim")) and fields["at"] in (
        None,
        intent.get("at"),
    )
    return same_type and (repeat or kept) and within(without_defaults(fields["d"]), without_defaults(intent["d"]))


def within(asked: Any, ours: Any) -> bool:
    """Whether `ours` has the contents of `asked`. A single value may be missing, as a default that was left out."""
    if isinstance(asked, dict) and isinstance(ours, dict):
        return all(
            within(one, ours[name]) if name in ours else not isinstance(one, (dict, list))
            for name, one in asked.items()
        )
    if isinstance(asked, list) and isinstance(ours, list):
        return len(asked) == len(ours) and all(map(within, asked, ours))
    return bool(asked == ours)


class Inbox:
    """Checks that each message below the watermark has one outcome, in the record whose watermark passes it."""

    def __init__(
        self, journal: Journal, log: Log, since: int, actor: str | None, at_rest: bool, cluster: str | None = None
    ) -> None:
        self.journal, self.log, self.actor, self.faults = journal, log, actor, journal.faults
        self.outcomes: Counter[str] = Counter()
        self.actors: set[str] = {actor} if actor else set()
        self._marks = [mark for mark, _ in journal.watermarks]
        self._claimed: set[int] = set()
        self._spare: list[tuple[int, Record, Wanted]] = []
        self._last_answer = 0
        self.watermark = self._marks[-1] if self._marks else 0
        schemas = Schemas()
        if cluster and journal.inbox and set(journal.inbox.split("/")) != {cluster, *log.name.rsplit("-", 1)}:
            self.faults.add(
                f"{log.name}: the watermark's topic is {journal.inbox}, expected {log.name} of the cluster {cluster}"
            )
        if self.watermark > log.end:
            self.faults.add(
                f"{log.name}: it ends at offset {log.end}, expected at least the watermark {self.watermark}"
            )
        begin = max(log.start, since)
        held = {message.offset for message in log.messages}
        for message in log.messages:
            if begin <= message.offset:
                self._message(message, wanted(message, schemas))
        for first, last in log.damaged:
            for offset in range(max(first, begin), last + 1):
                held.add(offset)
                self._damaged(offset)
        self._strangers(held, begin)
        if at_rest and self.outcomes["unanswered"]:
            self.faults.add(
                f"{log.name}: {self.outcomes['unanswered']} messages at or above watermark {self.watermark}, expected 0"
            )

    def _record(self, offset: int) -> Record:
        """Returns the record whose watermark is the first after the offset."""
        return self.journal.watermarks[bisect_right(self._marks, offset)][1]

    def _answers(self, offset: int) -> tuple[list[tuple[int, Json, Record]], list[tuple[int, Record]]]:
        return self.journal.refused.get(offset, []), self.journal.skips.get(offset, [])

    def _fault(self, offset: int, text: str) -> None:
        self.faults.add(f"{self.log.at(offset)}: {text}")

    def _message(self, message: Message, want: Wanted) -> None:
        offset, (refusals, skips) = message.offset, self._answers(message.offset)
        if offset >= self.watermark:
            self.outcomes["unanswered"] += 1
            return
        record = self._record(offset)
        if len(refusals) + len(skips) > 1:
            self._fault(
                offset,
                f"{len(refusals)} inbox.message_refused and {len(skips)} inbox.skipped in the journal, expected one outcome",
            )
        if refusals:
            self._refusal(message, want, *refusals[0], record)
        elif skips:
            self._in_order(offset, skips[0][0], skips[0][1], record)
            self.outcomes["skipped"] += 1
        elif want.must == "refused":
            self._fault(
                offset, f"no outcome, expected inbox.message_refused in position {record.first} to {record.last}: {want.why}"
            )
        elif want.id is None or want.source is None:
            self._fault(offset, f"no outcome, expected inbox.message_refused or an intent: {want.why}")
        else:
            self._intent(offset, want, record)
        if refusals or skips:
            self._spare.append((offset, record, want))

    def _in_order(self, offset: int, position: int, holder: Record, record: Record) -> None:
        if holder is not record:
            self._fault(
                offset,
                f"answered at position {position}, expected {record.first} to {record.last}, whose watermark passes it",
            )
        elif position <= self._last_answer:
            self._fault(
                offset,
                f"answered at position {position}, expected one after {self._last_answer}, the previous answer",
            )
        self._last_answer = max(self._last_answer, position)

    def _refusal(
        self, message: Message, want: Wanted, position: int, data: Json, holder: Record, record: Record
    ) -> None:
        offset, value = message.offset, message.value
        digest = None if value is None else hashlib.sha256(value).hexdigest()
        if data.get("digest") != digest:
            self._fault(
                offset, f"inbox.message_refused at position {position} names the digest {data.get('digest')}, expected {digest}"
            )
        self._in_order(offset, position, holder, record)
        if data["code"] == "internal":
            self._fault(offset, f"inbox.message_refused at position {position} (internal: {data['detail']}), expected none")
        elif want.must != "intent":
            self.outcomes["refused" if want.must == "refused" else "refused, not on the page"] += 1
        elif data["code"] == "too_large":
            self.outcomes["too large"] += 1
        else:
            self._fault(
                offset, f"inbox.message_refused at position {position} ({data['code']}: {data['detail']}), expected an intent"
            )

    def _intent(self, offset: int, want: Wanted, record: Record) -> None:
        key = (want.source or "", want.id or "")
        said = [at for at in self.journal.asked.get(key, []) if self.actor in (None, self.journal.intents[at][0]["by"])]
        here = [at for at in said if record.first <= at <= record.last and at not in self._claimed]
        for position in here:
            intent = self.journal.intents[position][0]
            if matches(intent, want.fields):
                self._claimed.add(position)
                self.actors.add(intent["by"])
                self._in_order(offset, position, record, record)
                self.outcomes["intent" if want.must == "intent" else "intent, not on the page"] += 1
                return
        for position in said:
            intent = self.journal.intents[position][0]
            if position <= record.last and intent["by"] in self.actors and matches(intent, want.fields, repeat=True):
                self.outcomes["repeat"] += 1
                return
        found = f"; the intents {here} of that id request something else" if here else ""
        self._fault(
            offset,
            f"no outcome, expected intent {want.id} of {want.source} in {record.first} to {record.last}{found}",
        )

    def _damaged(self, offset: int) -> None:
        refusals, skips = self._answers(offset)
        if offset >= self.watermark:
            self.outcomes["unanswered"] += 1
        elif len(skips) != 1 or refusals:
            self._fault(offset, f"its bytes are damaged, and there are {len(skips)} inbox.skipped, expected 1")
        else:
            self.outcomes["skipped"] += 1

    def _strangers(self, held: set[int], begin: int) -> None:
        """Checks outcomes without a message, and intents in addition to another outcome."""
        for offset in sorted(self.journal.refused.keys() | self.journal.skips.keys()):
            if offset < begin:
                self.outcomes["no longer there"] += 1
            elif offset not in held:
                self._fault(offset, "the journal answers it, and there is no committed message")
            elif offset >= self.watermark:
                self._fault(offset, f"the journal answers it, and the watermark is {self.watermark}")
        for offset, record, want in self._spare:
            for position in self.journal.asked.get((want.source or "", want.id or ""), []):
                known = self.journal.intents[position][0]["by"] in self.actors and matches(
                    self.journal.intents[position][0], want.fields
                )
                if known and record.first <= position <= record.last and position not in self._claimed:
                    self._fault(
                        offset, f"the intent at position {position} in addition to another outcome, expected one outcome"
                    )


# The events topic, servers and mirrors.


def rendered(journal: Journal, position: int) -> tuple[Json, Json]:
    """Returns the required attributes of a position's CloudEvent, and its data."""
    record = journal.holder(position)
    assert record is not None
    event = json.loads(record.data.split(b"\n")[position - record.first + 1])
    header = record.header
    says_so = {
        "specversion": "1.0",
        "id": str(position),
        "source": f"/lineages/{header['lineage']}/fleets/{header['fleet']}",
        "type": f"dev.chancery.{event['t']}",
    }
    says_so |= {"lineage": header["lineage"], "kind": event["k"], "time": header["time"], "recordhash": record.hash}
    if event["k"] == "fact":
        says_so["causationid"] = str(event["c"])
    else:
        says_so["actor"] = event["by"]
    if event["k"] == "intent":
        says_so |= {"intentid": event["id"], "intentsource": event["src"]}
        says_so |= {"claimedactor": event["claim"]} if "claim" in event else {}
    if event["t"] in ("intent.accepted.v1", "intent.refused.v1") and event["d"].get("subject"):
        says_so["subject"] = event["d"]["subject"]
    return says_so, event["d"]


def differences(
    journal: Journal, position: int, attributes: Json, data: Any, but: tuple[str, ...] = ()
) -> Iterator[str]:
    expected, content = rendered(journal, position)
    for name, value in expected.items():
        said = attributes.get(name)
        if name not in but and (micros(said or "") if name == "time" else said) != value:
            yield f"{name} {said}, expected {value}"
    if data != content:
        yield f"data {json.dumps(data)[:80]}, expected {json.dumps(content)[:80]}"


@dataclass
class Exported:
    offset: int
    position: int
    lineage: str
    attributes: Json
    data: Any


class Events:
    """Checks the events topic as a consumer reads it: without repeats, with corrections, it equals the journal."""

    def __init__(self, journal: Journal, log: Log, at_rest: bool, deleted: int | None = None) -> None:
        """`deleted`: the last position whose event was deleted from the topic, if that is known."""
        self.journal, self.log, self.faults = journal, log, journal.faults
        # Without deletions the first event of the topic is that of the first position.
        self.latest_first = 1 if log.start == 0 else None if deleted is None else deleted + 1
        self.repeats = self.corrections = self.lost = self.foreign = 0
        self.subjects: dict[int, str | None] = {}
        kept: list[Exported] = []
        repeated: list[Exported] = []
        last: dict[str, int] = {}
        for first, end in log.damaged:
            self._fault(first, f"the bytes up to offset {end} are damaged")
        source = re.compile(rf"/lineages/[^/]+/fleets/{re.escape(journal.fleet)}".encode())
        for message in log.messages:
            # Messages of other producers are not the fleet's; an event without the source is reported as missing below.
            if not any(name == b"ce_source" and source.fullmatch(value or b"") for name, value in message.headers):
                self.foreign += 1
                continue
            one = self._read(message)
            if one is None:
                continue
            if one.attributes["type"] == "dev.chancery.events.corrected.v1":
                self.corrections += 1
                of, after, through = (one.data[name] for name in ("lineage", "continues_after", "lost_through"))
                kept, repeated = (
                    [event for event in events if event.lineage != of or not after < event.position <= through]
                    for events in (kept, repeated)
                )
                last[of] = min(last.get(of, after), after)
            elif one.position <= last.get(one.lineage, 0):
                self.repeats += 1
                repeated.append(one)
            else:
                last[one.lineage] = one.position
                kept.append(one)
        self.last = self._compare(kept)
        for one in repeated:
            self._compare_one(one)
        if at_rest and self.last != journal.head:
            self.faults.add(f"{log.name}: the last event is {self.last}, expected {journal.head}, the journal's last")

    def _fault(self, offset: int, text: str) -> None:
        self.faults.add(f"{self.log.at(offset)}: {text}")

    def _read(self, message: Message) -> Exported | None:
        try:
            headers = [(name.decode(), (value or b"").decode()) for name, value in message.headers]
            attributes = {name.removeprefix("ce_"): text for name, text in headers if name.startswith("ce_")}
            others = dict(headers)
            data = json.loads((message.value or b"").decode())
            correction = attributes["type"] == "dev.chancery.events.corrected.v1"
            position = 0 if correction else int(attributes["id"])
            if correction and not {"lineage", "continues_after", "lost_through"} <= data.keys():
                raise ValueError("a correction without its target")
            one = Exported(message.offset, position, "" if correction else attributes["lineage"], attributes, data)
        except (ValueError, KeyError, RecursionError, AttributeError) as error:
            self._fault(message.offset, f"no CloudEvent in binary form: {error!r}")
            return None
        if others.get("content-type") != "application/json":
            self._fault(message.offset, f"content-type {others.get('content-type')}, expected application/json")
        subject = attributes.get("subject")
        if not correction and message.key != (None if subject is None else subject.encode()):
            self._fault(message.offset, f"key {message.key!r}, expected the subject {subject}")
        return one

    def _compare(self, kept: list[Exported]) -> int:
        last = 0
        for one in kept:
            if not self._compare_one(one):
                continue
            if last == 0 and self.latest_first is not None and one.position > self.latest_first:
                self._fault(one.offset, f"position {one.position}, expected at most {self.latest_first} as the first")
            elif last and one.position != last + 1:
                self._fault(one.offset, f"position {one.position}, expected {last + 1}")
            last = one.position
            self.subjects[one.position] = one.attributes.get("subject")
        return last

    def _compare_one(self, one: Exported) -> bool:
        """Compares an event with the journal; returns whether the journal has its position."""
        record = self.journal.holder(one.position)
        if record is None or record.header["lineage"] != one.lineage:
            end = self.journal.ends.get(one.lineage)
            if one.lineage in self.journal.abandoned or end is not None and one.position > end:
                self.lost += 1
            else:
                self._fault(one.offset, f"position {one.position} of lineage {one.lineage} is not in the journal")
            return False
        for wrong in differences(self.journal, one.position, one.attributes, one.data):
            self._fault(one.offset, f"position {one.position}: {wrong}")
        return True


def check_server(url: str, journal: Journal, subjects: dict[int, str | None], faults: Faults) -> int:
    """Compares the stream of a server with the journal, event by event; returns the last received position."""
    position, patience = 0, time.monotonic() + 60
    while position < journal.head and time.monotonic() < patience:
        query = urllib.parse.urlencode({"from": position + 1, "follow": "false", "limit": journal.head - position})
        where = f"{url.rstrip('/')}/v1/fleets/{journal.fleet}/events?{query}"
        try:
            with urllib.request.urlopen(
                urllib.request.Request(where, headers={"Accept": "application/x-ndjson"}), timeout=60
            ) as lines:
                for line in filter(bytes.strip, lines):
                    event, position, patience = json.loads(line), position + 1, time.monotonic() + 60
                    if event.get("id") != str(position):
                        faults.add(f"{url} position {event.get('id')}: expected position {position}")
                        return position
                    for wrong in differences(journal, position, event, event.get("data"), ("recordhash",)):
                        faults.add(f"{url} position {position}: {wrong}")
                    if subjects.get(position, event.get("subject")) != event.get("subject"):
                        faults.add(
                            f"{url} position {position}: subject {event.get('subject')}, expected {subjects[position]}"
                        )
        except (OSError, ValueError, http.client.HTTPException) as error:
            if time.monotonic() > patience or isinstance(error, urllib.error.HTTPError) and error.code != 503:
                raise Unreadable(f"{url}: {error}") from error
        time.sleep(0.5 if position < journal.head else 0)
    if position < journal.head:
        faults.add(f"{url}: its stream ends at position {position}, expected {journal.head}")
    return position


MAGIC = b"\xff\x43\x68\xfe"


@dataclass
class Frame:
    kind: int
    synced: int
    payload: bytes
    end: int


def frame_at(data: bytes, place: int) -> Frame | str:
    """Returns the frame at this place, or its fault."""
    if len(data) < place + 24 or data[place : place + 4] != MAGIC:
        return "no frame"
    crc, size, kind, zero, synced = struct.unpack_from("<IIB3sQ", data, place + 4)
    end = place + 24 + size
    if end > len(data) or crc32c(memoryview(data)[place + 8 : end]) != crc:
        return "its checksum is not that of its bytes"
    if kind not in (1, 2) or zero != b"\0\0\0" or kind == 2 and size:
        return f"a frame of kind {kind} with {size} bytes"
    return Frame(kind, synced, data[place + 24 : end], end)


def read_mirror(directory: Path, faults: Faults) -> list[bytes]:
    """Reads the records of segment files up to the first damage."""
    files = sorted(file for file in directory.glob("*.seg") if re.fullmatch(r"\d{20}", file.stem))
    if not files:
        raise Unreadable(f"{directory}: no segments")
    records: list[bytes] = []
    reached = known = 0
    for file in files:
        data, place = file.read_bytes(), 0
        known = max(known, int(file.stem) - 1)
        if int(file.stem) != reached + 1:
            faults.add(f"{file}: it starts with position {int(file.stem)}, expected {reached + 1}")
        used = len(data.rstrip(b"\0"))
        while place < used:
            frame = frame_at(data, place)
            if isinstance(frame, str):
                behind = [
                    frame_at(data, found.start()) for found in re.compile(re.escape(MAGIC)).finditer(data, place + 1)
                ]
                known = max([known, *(one.synced for one in behind if isinstance(one, Frame))])
                if file is not files[-1] or reached < known:
                    faults.add(
                        f"{file} byte {place}, position {reached + 1}: {frame}, expected whole frames up to {known}"
                    )
                    return records
                break
            if frame.synced > reached:
                faults.add(f"{file} byte {place}: synced {frame.synced}, expected at most {reached}")
            known = max(known, frame.synced)
            if frame.kind == 1:
                header = header_of(frame.payload)
                if header is None or header["first"] != reached + 1:
                    faults.add(f"{file} byte {place}: a record of {header and header['first']}, expected {reached + 1}")
                    return records
                reached += header["count"]
                records.append(frame.payload)
            place = frame.end
    return records


def check_mirror(name: str, mirror: list[bytes], journal: Journal, least: int) -> int:
    """Compares records of a mirror with those of the topic; returns the last position that agrees.

    The mirror must reach the position `least`.
    """
    reached = 0
    for number, data in enumerate(mirror):
        if number >= len(journal.records):
            journal.faults.add(
                f"{name} record {number + 1}: after position {reached}, expected no more than the topic has"
            )
            break
        record = journal.records[number]
        if data != record.data:
            journal.faults.add(
                f"{name} record {number + 1} position {record.first}: not the bytes of {journal.log.at(record.offset)}"
            )
            break
        reached = record.last
    else:
        if reached < least:
            journal.faults.add(f"{name}: it ends at position {reached}, expected {least}, the journal's last before it")
    return reached


def run(options: argparse.Namespace) -> Json:
    """Reads everything in an order in which growth meanwhile is no fault: first data derived from the journal."""
    began, faults, kafka = time.monotonic(), Faults(), Kafka(options.brokers)
    # The topic's end before any mirror is read: mirrors at rest have every record below it.
    end = kafka.offset(f"{options.prefix}.journal", options.partition, -1) if options.at_rest else 0
    mirrors = {directory: sorted(Path(directory).glob("fleets/*/journal")) for directory in options.mirror}
    found = {name: {path: read_mirror(path, faults) for path in paths} for name, paths in mirrors.items()}
    events = kafka.read(f"{options.prefix}.events", options.partition)
    journal = Journal(kafka.read(f"{options.prefix}.journal", options.partition), faults, options.fleet)
    inbox = kafka.read(f"{options.prefix}.inbox", options.partition)
    answers = Inbox(journal, inbox, options.inbox_from, options.inbox_actor, options.at_rest, kafka.cluster)
    exported = Events(journal, events, options.at_rest, options.events_deleted)
    reached = {url: check_server(url, journal, exported.subjects, faults) for url in options.server}
    agreed = {}
    least = max((record.last for record in journal.records if record.offset < end), default=0)
    for name, paths in found.items():
        own = [records for path, records in paths.items() if path.parent.name == journal.fleet]
        if not own:
            raise Unreadable(f"{name}: no journal of the fleet {journal.fleet}")
        agreed[name] = check_mirror(name, own[0], journal, least)
    return {
        **report(journal, answers, exported),
        "servers": reached,
        "mirrors": agreed,
        "seconds": round(time.monotonic() - began, 1),
        "faults": faults.first,
        "faults_total": faults.total,
    }


def report(journal: Journal, inbox: Inbox, events: Events) -> Json:
    headers = [record.header for record in journal.records]
    return {
        "fleet": journal.fleet,
        "messages": len(journal.log.messages),
        "records": len(journal.records),
        "events": journal.head,
        "skipped": dict(journal.skipped),
        "terms": len({header["term"] for header in headers}),
        "lineages": len({header["lineage"] for header in headers}),
        "intents": len(journal.intents),
        "inbox": {
            "messages": len(inbox.log.messages),
            "watermark": inbox.watermark,
            "actors": sorted(inbox.actors),
            **inbox.outcomes,
        },
        "exported": events.last,
        "repeats": events.repeats,
        "corrections": events.corrections,
        "foreign": events.foreign,
        "lost": events.lost,
    }


# Self-test of this program: the journal of the page, and a generated one, intact and then damaged.

TOPIC = "cluster/test.inbox/0"
BODY: Json = {"name": "a", "spec": {"type": "T", "score": 1}}


def line(value: Json) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def fact(kind: str, cause: int, **data: Any) -> Json:
    return {"k": "fact", "t": kind, "c": cause, "d": data}


def intent(position: int, identity: str, key: str) -> list[Json]:
    """Returns an intent at a position, its verdict, and the resulting facts."""
    asked = {"k": "intent", "t": "capability.apply.v1", "id": identity, "src": "me", "by": "mail", "d": BODY}
    verdict = fact(
        "intent.accepted.v1",
        position,
        key=key,
        digest="0" * 32,
        at=1,
        outcome="changed",
        subject="capability/a",
        version=1,
    )
    return [asked, verdict, fact("capability.applied.v1", position, **BODY)]


def refusal(position: int, offset: int, value: bytes | None) -> Json:
    digest = {} if value is None else {"digest": hashlib.sha256(value).hexdigest()}
    return fact("inbox.message_refused.v1", position, topic=TOPIC, offset=offset, **digest, code="invalid", detail="it is none")


def binary(offset: int, value: bytes | None, **attributes: str) -> Message:
    texts = {"specversion": "1.0", "source": "me", "type": "dev.chancery.capability.apply.v1"} | attributes
    headers: list[tuple[bytes, bytes | None]] = [(f"ce_{name}".encode(), text.encode()) for name, text in texts.items()]
    return Message(offset, None, value, [*headers, (b"content-type", b"application/json")])


class Sample:
    """Valid topics: two terms and a lineage, each kind of inbox message, a late record, a repeat."""

    def __init__(self) -> None:
        good, keys = json.dumps(BODY).encode(), [f"{'ab' * 6}{number:020x}" for number in range(3)]
        cloud = {"specversion": "1.0", "id": "2", "source": "me", "type": "dev.chancery.capability.apply.v1", "data": BODY}
        structured = Message(
            1, None, json.dumps(cloud).encode(), [(b"content-type", b"application/cloudevents+json; charset=utf-8")]
        )
        self.inbox = [
            binary(0, good, id="1"),
            structured,
            binary(2, good, id="1"),
            binary(4, b"x", id="4"),
            Message(5, None, None),
        ]
        self.damaged, self.events_begin, self.events_deleted = [(6, 6)], 0, None
        old, new = {"term": 1, "writer": "c4"}, {"term": 2, "writer": "d5"}
        self.steps: list[tuple[list[Json], int, Json]] = [
            ([fact("term.started.v1", 1)], 0, old | {"starts": "term"}),
            (intent(2, "1", keys[0]), 1, dict(old)),
            (intent(5, "2", keys[1]), 2, dict(old)),
            ([fact("term.started.v1", 8)], 2, new | {"starts": "term"}),
            ([refusal(9, 4, b"x"), refusal(10, 5, None)], 6, dict(new)),
            ([*intent(11, "9", keys[2]), fact("inbox.skipped.v1", 11, offset=6)], 7, dict(new)),
            ([fact("lineage.started.v1", 15, previous="2f6d1c0a94be7735", at=14, missing_through=16)], 7, self.begun()),
        ]

    @staticmethod
    def begun() -> Json:
        return {"term": 3, "writer": "e6", "lineage": "3f", "starts": "lineage", "previous": "2f6d1c0a94be7735"}

    def seal(self) -> None:
        self.records: list[bytes] = []
        self.events: list[Message] = []
        self.frames = bytearray()
        first, prev = 1, ZEROS
        for events, mark, more in self.steps:
            header = {
                "chancery": 2,
                "fleet": "default",
                "lineage": "2f6d1c0a94be7735",
                "first": first,
                "count": len(events),
                **more,
            }
            header = {"time": 1795251600000000 + first, "build": "0.1.0"} | header
            data = b"".join(map(line, [header | {"watermark": {"topic": TOPIC, "next": mark}, "prev": prev}, *events]))
            prev = hashlib.sha256(data).hexdigest()
            for position, event in enumerate(events, first):
                self.events.append(self._export(position, event, header, prev))
            self.frames += self._frame(1, first - 1, data)
            self.records.append(data)
            first += len(events)
        self.frames += self._frame(2, first - 1, b"")
        late = self.records[3].replace(b'"term":2', b'"term":1').replace(b'"starts":"term",', b"").replace(b"d5", b"c4")
        self.messages = [*self.records[:4], late, b"noise", self.records[1], *self.records[4:]]
        self.events.insert(3, self.events[1])
        # Two events that are lost after an accepted end, and one that a correction revokes.
        old, wrong = {"time": 1, "lineage": "2f6d1c0a94be7735"}, fact("time.recorded.v1", 1)
        self.events[-1:-1] = [self._export(position, wrong, old, "") for position in (15, 16)]
        correction = {"lineage": old["lineage"], "continues_after": 7, "recordhash": "", "lost_through": 8}
        corrected = binary(0, json.dumps(correction).encode(), id="c", source=f"/lineages/{old['lineage']}/fleets/default", type="dev.chancery.events.corrected.v1")
        self.events[8:8] = [self._export(8, wrong, old, ""), corrected]

    @staticmethod
    def _export(position: int, event: Json, header: Json, digest: str) -> Message:
        at = (EPOCH + timedelta(microseconds=header["time"])).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        subject = event["d"].get("subject", "fleet")
        texts = {
            "specversion": "1.0",
            "id": str(position),
            "source": f"/lineages/{header['lineage']}/fleets/default",
            "type": f"dev.chancery.{event['t']}",
            "subject": subject,
        }
        texts |= {"time": at, "lineage": header["lineage"], "recordhash": digest, "kind": event["k"]}
        texts |= (
            {"causationid": str(event["c"])}
            if "c" in event
            else {"actor": event["by"], "intentid": event["id"], "intentsource": "me"}
        )
        message = binary(0, json.dumps(event["d"]).encode(), **texts)
        message.key = subject.encode()
        return message

    @staticmethod
    def _frame(kind: int, synced: int, data: bytes) -> bytes:
        rest = struct.pack("<IIQ", len(data), kind, synced) + data
        return MAGIC + struct.pack("<I", crc32c(rest)) + rest

    def replace_mirror(self, data: bytes) -> None:
        self.frames[:] = self._frame(1, 0, data)

    def judge(self, directory: Path) -> tuple[Journal, Inbox, Events]:
        faults = Faults()
        for number, event in enumerate(self.events):
            event.offset = number
        segment = directory / "00000000000000000001.seg"
        segment.write_bytes(bytes(self.frames) + bytes(1000))
        mirror = read_mirror(directory, faults)
        values = [Message(number, None, value) for number, value in enumerate(self.messages)]
        journal = Journal(Log("test.journal-0", 0, len(values), values), faults)
        inbox = Inbox(journal, Log("test.inbox-0", 0, 7, self.inbox, self.damaged), 0, None, True, "cluster")
        log = Log("test.events-0", self.events_begin, len(self.events), self.events)
        events = Events(journal, log, True, self.events_deleted)
        check_mirror("mirror", mirror, journal, journal.head)
        return journal, inbox, events


def change(data: bytearray, place: int) -> None:
    data[place] ^= 1


def harms() -> Iterator[tuple[str, bool, Callable[[Sample], Any], str]]:
    """Returns damages: name, whether before the records are sealed, change, and a part of the fault that must be found."""
    yield (
        "an altered byte in a record",
        False,
        lambda s: s.messages.__setitem__(1, s.messages[1].replace(b'"a"', b'"b"', 1)),
        "mirror record 2",
    )
    yield "a missing record", False, lambda s: s.messages.pop(2), "is not in the journal"
    yield (
        "a body that cannot be read",
        True,
        lambda s: s.steps[4][0].__setitem__(0, {"k": "fact", "t": "x.v1", "c": 9, "d": {}, "more": 1}),
        "cannot read body",
    )
    yield "a time before the last one", True, lambda s: s.steps[2][2].update(time=5), "is before"
    yield "a term that has started", True, lambda s: s.steps[3][2].update(term=1, writer="c4"), "and term 1 has started"
    yield (
        "a term that starts without its fact",
        True,
        lambda s: s.steps[3][0].__setitem__(0, refusal(8, 4, b"x")),
        "in a record that starts term",
    )
    yield "a later cause", True, lambda s: s.steps[1][0][2].update(c=5), "its cause is 5"
    yield (
        "a second verdict of a key",
        True,
        lambda s: s.steps.__setitem__(2, (intent(5, "1", "ab" * 6 + "0" * 20), 2, s.steps[2][2])),
        "a second verdict",
    )
    yield (
        "an intent without verdict",
        True,
        lambda s: s.steps[2][0].__setitem__(1, fact("inbox.advanced.v1", 5)),
        "0 verdicts",
    )
    yield "a key of another actor's half", True, lambda s: s.steps[2][0][1]["d"].update(key="cd" * 16), "does not agree"
    yield (
        "a watermark that decreases",
        True,
        lambda s: s.steps.__setitem__(3, (s.steps[3][0], 1, s.steps[3][2])),
        "expected at least 2",
    )
    yield "a message with two outcomes", True, lambda s: s.steps[1][0].append(refusal(5, 0, b"")), "expected an intent"
    yield "two refusals", True, lambda s: s.steps[4][0].append(refusal(11, 4, b"x")), "expected one outcome"
    yield (
        "a message without outcome",
        False,
        lambda s: s.inbox.insert(3, binary(3, json.dumps(BODY).encode(), id="3")),
        "offset 3: no outcome",
    )
    yield (
        "a malformed message without outcome",
        False,
        lambda s: s.inbox.insert(3, Message(3, None, None)),
        "expected inbox.message_refused",
    )
    yield (
        "an intent that requests something else",
        True,
        lambda s: s.steps[1][0][0].update(d=BODY | {"name": "z"}),
        "request something else",
    )
    yield (
        "a refusal with a wrong digest",
        True,
        lambda s: s.steps[4][0].__setitem__(0, refusal(9, 4, b"y")),
        "names the digest",
    )
    yield (
        "a refusal without a message",
        True,
        lambda s: s.steps[4][0].append(refusal(11, 3, b"x")),
        "there is no committed message",
    )
    yield "answers in another order", True, lambda s: s.steps[4][0].reverse(), "the previous answer"
    yield (
        "an answer in an earlier record",
        True,
        lambda s: s.steps.__setitem__(3, ([s.steps[3][0][0], refusal(8, 4, b"x")], 2, s.steps[3][2])),
        "whose watermark passes it",
    )
    yield (
        "a message that is not answered",
        True,
        lambda s: s.steps.__delitem__(slice(5, None)),
        "messages at or above watermark",
    )
    yield "damaged bytes that were not skipped", True, lambda s: s.steps[5][0].pop(), "its bytes are damaged"
    yield "an event missing from the topic", False, lambda s: s.events.pop(6), "position 7, expected 6"
    yield (
        "events missing after the deleted ones",
        False,
        lambda s: (s.__dict__.update(events_begin=3, events_deleted=2), s.events.__delitem__(slice(0, 4))),
        "expected at most 3 as the first",
    )
    yield "the first event missing", False, lambda s: s.events.pop(0), "expected at most 1 as the first"
    yield (
        "an event of another hash",
        False,
        lambda s: s.events[5].headers.__setitem__(7, (b"ce_recordhash", b"00")),
        "recordhash 00",
    )
    yield "an event with other data", False, lambda s: setattr(s.events[5], "value", b"{}"), "data {}"
    yield (
        "an event that is not in the journal",
        False,
        lambda s: s.events.append(Sample._export(99, fact("time.recorded.v1", 99), {"time": 1, "lineage": "3f"}, "")),
        "is not in the journal",
    )
    yield "a wrong event that nothing corrects", False, lambda s: s.events.pop(9), "recordhash , expected"
    yield (
        "a lineage of another end",
        True,
        lambda s: s.steps[6][0][0]["d"].update(at=12),
        "expected its header's, at 14",
    )
    yield "an event with another key", False, lambda s: setattr(s.events[5], "key", b"other"), "expected the subject"
    yield "a mirror that differs", False, lambda s: change(s.frames, 500), "its checksum is not that of its bytes"
    yield (
        "a mirror with another record",
        False,
        lambda s: s.replace_mirror(s.records[0].replace(b'"d":{}', b'"d":[]')),
        "mirror record 1",
    )
    yield (
        "a repeat with other data",
        False,
        lambda s: s.events.insert(4, Message(0, s.events[2].key, b"{}", s.events[2].headers)),
        "data {}",
    )
    yield (
        "a refusal for an internal error of the program",
        True,
        lambda s: s.steps[4][0][0]["d"].update(code="internal"),
        "), expected none",
    )
    yield "a mirror that stays behind", False, lambda s: s.replace_mirror(s.records[0]), "the journal's last"
    yield "a mirror that is ahead", False, lambda s: s.messages.pop(), "expected no more than the topic has"


def self_test() -> Json:
    block = b"\x0d\x0cabcd\x15\x04"  # four bytes, and nine from four before
    assert snappy(block) == snappy(b"\x82SNAPPY\0" + bytes(8) + struct.pack(">i", 8) + block) == b"abcdabcdabcda"
    frame = bytes.fromhex("28b52ffd 20 05 290000") + b"hello"
    assert zstd(frame) == zstd(frame[:4] + b"\x00\x50" + frame[6:]) == b"hello"
    page = (ROOT / "docs/architecture.md").read_text()
    example, hashes = page.split('```text\n{"chancery"')[1].split("```")[0], re.findall(r"`([0-9a-f]{64})`", page)
    values = [part.encode() + b"\n" for part in ('{"chancery"' + example).strip().split("\n\n")]
    faults = Faults()
    journal = Journal(
        Log("page-0", 0, 2, [Message(number, None, value) for number, value in enumerate(values)]), faults
    )
    assert faults.total == 0 and len(journal.records) == 2 and journal.head == 4, faults.first
    assert journal.records[1].hash == hashes[0], (
        f"the hash of the second record is {journal.records[1].hash}, on the page {hashes[0]}"
    )
    frames = [bytes.fromhex(found) for found in re.findall(r"^(ff 43 68 fe[0-9a-f ]{0,80}?)   \S", page, re.MULTILINE)]
    for head, data in zip(frames, [*values, b""], strict=True):
        frame = frame_at(head + data, 0)
        assert isinstance(frame, Frame) and frame.payload == data, frame
    with tempfile.TemporaryDirectory() as name:
        sample = Sample()
        sample.seal()
        whole = report(*sample.judge(Path(name)))
        sound = sample.judge(Path(name))[0].faults
        assert sound.total == 0, sound.first
        assert whole["skipped"] == {"fenced writer": 1, "no record": 1, "duplicate": 1}, whole
        assert (whole["repeats"], whole["terms"], whole["lineages"], whole["corrections"], whole["lost"]) == (
            1,
            3,
            2,
            1,
            2,
        ), whole
        found = []
        for what, early, harm, expected in harms():
            sample = Sample()
            if early:
                harm(sample)
            sample.seal()
            if not early:
                harm(sample)
            faults = sample.judge(Path(name))[0].faults
            assert any(expected in fault for fault in faults.first), f"{what}: no fault contains '{expected}' in {faults.first}"
            found.append(what)
    return {"whole": whole, "found": found, "faults": [], "faults_total": 0}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("brokers", nargs="?")
    parser.add_argument("prefix", nargs="?")
    parser.add_argument("--partition", type=int, default=0, help="the fleet's partition")
    parser.add_argument("--fleet", help="fleet of the journal (default: that of the first record)")
    parser.add_argument(
        "--server", action="append", default=[], metavar="URL", help="server whose stream of events is compared"
    )
    parser.add_argument(
        "--mirror",
        action="append",
        default=[],
        metavar="DATA_DIR",
        help="data directory of a server whose mirror is compared",
    )
    parser.add_argument("--inbox-from", type=int, default=0, metavar="OFFSET", help="first checked inbox message (default: 0)")
    parser.add_argument("--inbox-actor", metavar="NAME", help="actor of inbox messages (default: any)")
    parser.add_argument(
        "--events-deleted", type=int, metavar="POSITION", help="last position whose event was deleted from the topic"
    )
    parser.add_argument("--at-rest", action="store_true", help="require that everything is answered and exported")
    parser.add_argument(
        "--self-test", action="store_true", help="check that each kind of fault is found; needs no Kafka"
    )
    options = parser.parse_args()
    if not options.self_test and options.prefix is None:
        parser.error("BROKERS and PREFIX are needed")
    try:
        result = self_test() if options.self_test else run(options)
    except (Unreadable, OSError) as error:
        result = {"unreadable": str(error)}
    print(json.dumps(result, indent=2))
    return 2 if "unreadable" in result else int(result["faults_total"] > 0)


if __name__ == "__main__":
    sys.exit(main())
