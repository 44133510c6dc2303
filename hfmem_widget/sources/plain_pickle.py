"""Reads pickles of plain containers alone, so that no pickle can call anything.

It is made for torch's snapshots, with millions of events: each becomes an `Event` as soon as it is read, and
equal lists of frames become one list. Time and memory are bounded by the size of the file.
"""

import io
import mmap
import pickle
import re
from collections import defaultdict
from struct import error as StructError  # noqa: N812  (it is a class)
from typing import Any

from hfmem_widget.errors import HFMemError
from hfmem_widget.session.segments import Event, event_of

DEEPEST = 64  # nested containers

RELEASED = 1 << 26  # bytes read after which the pages of the file are released

DAMAGED = "it is damaged or cut off"
MORE = "it has more than plain lists and figures, and that could run code"

_GET = rb"h.|j...."
_LIST = rb"\]\x94\((?:h.|j....)++e"  # of objects of the memo: the frames of a stack
_LIST_OF_GETS = re.compile(_LIST, re.DOTALL)
_GETS = re.compile(rb"h(.)|j(....)", re.DOTALL)
_NUMBER = rb"M..|J....|\x8a\x05.....|\x8a\x06......|\x8a\x07.......|\x8a\x08........|K."
_PAIR = rb"K.K.\x86\x94"
_TEXT = rb"\x8c(?:%s)\x94" % b"|".join(b"\\x%02x.{%d}" % (length, length) for length in range(16))
_VALUE = re.compile(b"(%s)|(%s)|(%s)|(%s)|(%s)" % (_GET, _LIST, _PAIR, _TEXT, _NUMBER), re.DOTALL)
_KINDS = (b"", _GET, _LIST, _PAIR, _TEXT, _NUMBER)
_FIELDS = {"action": _GET, **dict.fromkeys(("addr", "size", "time_us"), _NUMBER)}
_FIELDS["frames"] = b"%s|%s" % (_GET, _LIST)

_INSTRUCTIONS = frozenset(b"\x80\x95hjKMJ\x8aGN\x88\x89\x8cX\x8deasu)\x85\x86\x87t.")
"""The instructions of Python's unpickler that make plain containers; others make objects, or are unneeded."""

_PYTHONS: Any = pickle._Unpickler  # noqa: SLF001  (only its instructions can be chosen)

_FAULTS = (EOFError, AttributeError, LookupError, TypeError, ValueError, StructError)


class NotPlainError(HFMemError, ValueError):
    """The pickle is damaged, or has more than plain containers; the message says which."""


def load(data: bytes | mmap.mmap) -> Any:
    """Return the content of a pickle of protocol 2 to 5, events as `Event`; else raise `NotPlainError`."""
    reader = _Reader(data)
    try:
        loaded = reader.load()
    except NotPlainError:
        raise
    except (*_FAULTS, pickle.UnpicklingError):
        raise NotPlainError(DAMAGED) from None
    if reader.stack:
        raise NotPlainError(DAMAGED)
    return loaded


class _Reader(_PYTHONS):  # type: ignore[misc]  # typeshed has no more than its name
    """Python's unpickler with few of its instructions, which reads events by a regular expression."""

    def __init__(self, data: bytes | mmap.mmap) -> None:
        self.data = data if isinstance(data, mmap.mmap) else io.BytesIO(data)
        super().__init__(self.data)
        self.memo: list[Any] = []
        self.released = 0
        # By depth, of the newest dictionary: its frame, its beginning in the frame, and its place in `memo`.
        self.begun: dict[int, tuple[io.BytesIO | None, int, int]] = {}
        self.lists: dict[bytes, list[Any]] = {}
        self.numbers: dict[int, int] = {}
        self.event: re.Pattern[bytes] | None = None
        self.before: list[None] = []
        self.after: list[None] = []
        self.order: list[int] = []

    def load_frame(self) -> None:
        super().load_frame()
        if isinstance(self.data, mmap.mmap) and self.data.tell() >= self.released + RELEASED:
            self.released = self.data.tell()
            if hasattr(mmap, "MADV_DONTNEED"):  # else a large file would fill the memory
                self.data.madvise(mmap.MADV_DONTNEED, 0, self.released)

    def load_put(self, width: int = 0) -> None:
        if width and int.from_bytes(self.read(width), "little") != len(self.memo):
            raise NotPlainError(DAMAGED)  # a distant place would take all memory
        self.memo.append(self.stack[-1])

    def load_mark(self) -> None:
        if len(self.metastack) >= DEEPEST:
            raise NotPlainError(DAMAGED)
        super().load_mark()

    def load_empty_list(self) -> None:
        frame = self._unframer.current_frame
        match = frame and _LIST_OF_GETS.match(frame.getvalue(), frame.tell() - 1)
        self.append(self.listed(match[0]) if match else [])
        if match:
            frame.seek(match.end())
            self.memo.append(self.stack[-1])

    def listed(self, raw: bytes) -> list[Any]:
        """Return a list of objects of the memo; the same list for equal bytes."""
        items = self.lists.get(raw)
        if items is None:
            items = [self.memo[_index(get)] for get in _GETS.finditer(raw, 3)]
            self.lists[raw] = items
        return items

    def load_empty_dictionary(self) -> None:
        """Begin a dictionary, or read many at once: most are events, which the memo need not keep."""
        frame = self._unframer.current_frame
        if not (frame and self.event and self.take_events(frame, self.event)):
            start = frame.tell() - 1 if frame else 0
            self.begun[len(self.metastack)] = frame, start, len(self.memo)
            super().load_empty_dictionary()

    def load_setitem(self) -> None:
        self.need_names(self.stack[-2:-1])
        super().load_setitem()

    @staticmethod
    def need_names(keys: list[Any]) -> None:
        """Refuse keys that are neither texts nor integers: hashing a nested one may end the process."""
        if any(type(key) not in {str, int} for key in keys):
            raise NotPlainError(DAMAGED)

    def load_setitems(self) -> None:
        self.need_names(self.stack[::2])
        super().load_setitems()
        listed, begun = self.stack[-1], self.begun.get(len(self.metastack))
        if begun and "action" in listed:
            frame, start, place = begun
            self.stack[-1] = event_of(listed)
            self.memo[place] = None  # nothing refers to it
            if frame and frame is self._unframer.current_frame:
                self.event = self.pattern(frame.getvalue()[start : frame.tell()]) or self.event

    def pattern(self, raw: bytes) -> re.Pattern[bytes] | None:
        """Return the expression of events written as this one, as nearly all are; None if it lacks fields."""
        at, parts, new = 3, [rb"\}\x94\("], [1, 0]
        seen: list[str] = []
        while raw[at : at + 1] != b"u":
            get = _GETS.match(raw, at)
            value = _VALUE.match(raw, get.end()) if get else None
            if get is None or value is None:
                return None
            name = self.memo[_index(get)]
            kind = _KINDS[value.lastindex or 0]
            if name in _FIELDS:
                seen.append(name)
                parts += [re.escape(get[0]), b"(%s)" % _FIELDS[name]]
            else:
                parts += [re.escape(get[0]), b"(?:%s)" % kind]
                new["frames" in seen] += kind in {_PAIR, _TEXT}  # which go into the memo
            at = value.end()
        if len(seen) < len(_FIELDS):
            return None
        self.before, self.after = ([None] * count for count in new)
        self.order = [seen.index(name) + 1 for name in _FIELDS]
        return re.compile(b"".join((*parts, b"u")), re.DOTALL)

    def take_events(self, frame: io.BytesIO, event: re.Pattern[bytes]) -> bool:
        """Append the events that follow each other from here on; return False if there is none."""
        data, start, memo, lists = frame.getvalue(), frame.tell() - 1, self.memo, self.lists
        same, make, number, order = self.numbers.setdefault, Event._make, int.from_bytes, self.order
        at = start
        while (match := event.match(data, at)) is not None:
            action, address, size, time, raw = match.group(*order)
            memo += self.before
            if raw[0] == _OPEN:
                frames = lists.get(raw) or self.listed(raw)
                memo.append(frames)
            else:
                frames = memo[number(raw[1:], "little")]
            memo += self.after
            place, asked, name = _decoded(address), _decoded(size), number(action[1:], "little")
            self.append(
                make((memo[name], same(place, place), same(asked, asked), _decoded(time), frames))
            )
            at = match.end()
        if at > start:
            frame.seek(at)
        return at > start


def _index(get: re.Match[bytes]) -> int:
    return int.from_bytes(get[1] or get[2], "little")


def _decoded(raw: bytes) -> int:
    kind = raw[0]
    if kind == 0x8A:
        return int.from_bytes(raw[2:], "little", signed=True)
    return int.from_bytes(raw[1:], "little", signed=kind == 0x4A)


def _refuse(_reader: _Reader) -> None:
    raise NotPlainError(MORE)


_OPEN = ord("]")
_Reader.dispatch = defaultdict(lambda: _refuse)
_Reader.dispatch |= {code: _PYTHONS.dispatch[code] for code in _INSTRUCTIONS}
_Reader.dispatch |= {
    0x95: _Reader.load_frame,
    0x94: _Reader.load_put,
    ord("q"): lambda reader: reader.load_put(1),
    ord("r"): lambda reader: reader.load_put(4),
    ord("("): _Reader.load_mark,
    ord("]"): _Reader.load_empty_list,
    ord("}"): _Reader.load_empty_dictionary,
    ord("s"): _Reader.load_setitem,
    ord("u"): _Reader.load_setitems,
}
