"""Reads pickles that have plain containers and nothing else: nothing in one can call anything.

It is made for torch's snapshots, with millions of events: each becomes an `Event` as soon as it is read, and
lists of the same frames are one. What a file can make the reader do is bounded by its size.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable, Mapping
from struct import Struct
from struct import error as StructError  # noqa: N812  (it is a class)
from typing import Any

from hfmem_widget.errors import HFMemError
from hfmem_widget.session.segments import Event, event_of

LONGEST_INT = 9  # bytes
DEEPEST = 64  # containers within containers

RELEASED = 1 << 26  # bytes after which the pages of what was read are given back

DAMAGED = "it is damaged or cut off"
MORE = "it has more than plain lists and figures, and that could run code"

_GET = rb"h.|j...."
_LIST = rb"\]\x94\((?:h.|j....)++e"  # of what the memo has: the frames of a stack
_LIST_OF_GETS = re.compile(_LIST, re.DOTALL)
_GETS = re.compile(rb"h(.)|j(....)", re.DOTALL)
_NUMBER = rb"M..|J....|\x8a\x05.....|\x8a\x06......|\x8a\x07.......|\x8a\x08........|K."
_PAIR = rb"K.K.\x86\x94"
_TEXT = rb"\x8c(?:%s)\x94" % b"|".join(b"\\x%02x.{%d}" % (length, length) for length in range(16))
_VALUE = re.compile(b"(%s)|(%s)|(%s)|(%s)|(%s)" % (_GET, _LIST, _PAIR, _TEXT, _NUMBER), re.DOTALL)
_KINDS = (b"", _GET, _LIST, _PAIR, _TEXT, _NUMBER)
_NEW = (_PAIR, _TEXT)  # what is put into the memo
_FIELDS = {"action": _GET, **dict.fromkeys(("addr", "size", "time_us"), _NUMBER)}
_FIELDS["frames"] = b"%s|%s" % (_GET, _LIST)

_UNSIGNED = {1: Struct("<B"), 2: Struct("<H"), 4: Struct("<I"), 8: Struct("<Q")}
_FLOAT = Struct(">d")


class NotPlainError(HFMemError, ValueError):
    """What was read is damaged, or no pickle of plain containers; the message says which."""


def load(data: bytes | mmap.mmap) -> Any:
    """Return what a pickle of protocol 2 to 5 holds, events as `Event`; else raise `NotPlainError`."""
    try:
        return _Machine(data).run()
    except NotPlainError:
        raise
    except (StructError, IndexError, KeyError, TypeError, ValueError):
        raise NotPlainError(DAMAGED) from None


class _Machine:
    """A pickle is a program; this has the few instructions that make plain containers."""

    def __init__(self, data: bytes | mmap.mmap) -> None:
        self.data = data
        self.at = self.released = 0
        self.stack: list[Any] = []
        self.marks: list[tuple[list[Any], int, int]] = []
        """Of each the stack below; after a dictionary that is empty so far where it begins, and its place in
        `memo`: the items are its own or, where it stays empty, those of what follows it."""
        self.memo: list[Any] = []
        self.lists: dict[bytes, list[Any]] = {}
        self.numbers: dict[int, int] = {}
        self.event: re.Pattern[bytes] | None = None
        self.before: list[None] = []
        self.after: list[None] = []
        self.order: list[int] = []

    def run(self) -> Any:
        data, doing = self.data, _DOING
        while (op := data[self.at]) != _STOP:
            self.at += 1
            if op not in doing:
                raise NotPlainError(MORE)
            doing[op](self)
        (result,) = self.stack
        return result

    def frame(self) -> None:
        """Go on; of a file, give back the memory of what was read every so often."""
        self.skip(8)
        if self.at >= self.released + RELEASED and isinstance(self.data, mmap.mmap):
            self.released = self.at
            if hasattr(mmap, "MADV_DONTNEED"):
                self.data.madvise(mmap.MADV_DONTNEED, 0, self.at)

    def skip(self, width: int) -> None:
        self.at += width

    def number(self, width: int) -> int:
        (value,) = _UNSIGNED[width].unpack_from(self.data, self.at)
        self.at += width
        return int(value)

    def taken(self, count: int) -> bytes:
        start, self.at = self.at, self.at + count
        if self.at > len(self.data):
            raise NotPlainError(DAMAGED)
        return self.data[start : self.at]

    def signed(self, width: int) -> None:
        if width > LONGEST_INT:
            raise NotPlainError(DAMAGED)
        self.stack.append(int.from_bytes(self.taken(width), "little", signed=True))

    def text(self, width: int) -> None:
        self.stack.append(str(self.taken(self.number(width)), "utf-8", "replace"))

    def memoize(self, width: int = 0) -> None:
        if width and self.number(width) != len(self.memo):  # a place far off would take all memory
            raise NotPlainError(DAMAGED)
        self.memo.append(self.stack[-1])

    def mark(self, start: int = -1, place: int = -1) -> None:
        if len(self.marks) >= DEEPEST:
            raise NotPlainError(DAMAGED)
        self.marks.append((self.stack, start, place))
        self.stack = []

    def since_mark(self) -> list[Any]:
        items = self.stack
        self.stack, _, place = self.marks.pop()
        if place >= 0:
            self.stack.append(self.memo[place])
        return items

    def pop(self, count: int) -> list[Any]:
        items = self.stack[len(self.stack) - count :] if count else []
        if len(items) != count:
            raise NotPlainError(DAMAGED)
        del self.stack[len(self.stack) - count :]
        return items

    def end_tuple(self) -> None:
        items = tuple(self.since_mark())
        self.stack.append(items)

    def extend(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise NotPlainError(DAMAGED)
        self.stack[-1] += items

    def fill(self, items: list[Any]) -> None:
        target, keys = self.stack[-1], items[::2]
        if type(target) is not dict or any(type(key) not in {str, int} for key in keys):
            raise NotPlainError(DAMAGED)
        target.update(zip(keys, items[1::2], strict=True))

    def begin_list(self) -> None:
        found = _LIST_OF_GETS.match(self.data, self.at - 1)
        self.stack.append([] if found is None else self.listed(found[0]))
        if found is not None:
            self.at = found.end()
            self.memo.append(self.stack[-1])

    def listed(self, raw: bytes) -> list[Any]:
        """Return a list of what the memo has; the same one for all that are alike."""
        items = self.lists.get(raw)
        if items is None:
            items = [self.memo[_index(get)] for get in _GETS.finditer(raw, 3)]
            self.lists[raw] = items
        return items

    def dictionary(self) -> None:
        """Begin a dictionary, or take many: most are events, and need not be kept."""
        start = self.at - 1
        if self.event is not None and self.take_events(self.event.match):
            return
        if self.data[self.at : self.at + 2] == b"\x94(":
            self.at += 2
            self.mark(start, len(self.memo))
            self.memo.append({})
        else:
            self.stack.append({})

    def end_dictionary(self) -> None:
        _, start, place = self.marks[-1]
        self.fill(self.since_mark())
        made = self.stack[-1]
        if start >= 0 and "action" in made:
            self.stack[-1] = event_of(made)
            self.memo[place] = None  # nobody refers to it, and it need not be kept
            self.event = self.pattern(self.data[start : self.at]) or self.event

    def pattern(self, raw: bytes) -> re.Pattern[bytes] | None:
        """Return what finds events made as one is, as nearly all are; None if it has not all fields."""
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
                new["frames" in seen] += kind in _NEW
            at = value.end()
        if len(seen) < len(_FIELDS):
            return None
        self.before, self.after = ([None] * count for count in new)
        self.order = [seen.index(name) + 1 for name in _FIELDS]
        return re.compile(b"".join((*parts, b"u")), re.DOTALL)

    def take_events(self, match: Callable[..., re.Match[bytes] | None]) -> bool:
        """Take the events that follow each other from here on, as `match` finds them; False if none does."""
        data, at, memo, lists, stack = self.data, self.at - 1, self.memo, self.lists, self.stack
        same, make, number, order = self.numbers.setdefault, Event._make, int.from_bytes, self.order
        while (found := match(data, at)) is not None:
            action, address, size, time, raw = found.group(*order)
            memo += self.before
            if raw[0] == _OPEN:
                frames = lists.get(raw) or self.listed(raw)
                memo.append(frames)
            else:
                frames = memo[number(raw[1:], "little")]
            memo += self.after
            place, asked, name = _decoded(address), _decoded(size), number(action[1:], "little")
            stack.append(
                make((memo[name], same(place, place), same(asked, asked), _decoded(time), frames))
            )
            at = found.end()
        is_any = at >= self.at
        self.at = max(self.at, at)
        return is_any


def _index(get: re.Match[bytes]) -> int:
    return int.from_bytes(get[1] or get[2], "little")


def _decoded(raw: bytes) -> int:
    kind = raw[0]
    if kind == 0x8A:
        return int.from_bytes(raw[2:], "little", signed=True)
    return int.from_bytes(raw[1:], "little", signed=kind == 0x4A)


_OPEN = ord("]")
_STOP = ord(".")
_DOING: Mapping[int, Callable[[_Machine], None]] = {
    0x80: lambda made: made.skip(1),  # protocol
    0x95: _Machine.frame,
    0x94: _Machine.memoize,
    ord("q"): lambda made: made.memoize(1),
    ord("r"): lambda made: made.memoize(4),
    ord("h"): lambda made: made.stack.append(made.memo[made.number(1)]),
    ord("j"): lambda made: made.stack.append(made.memo[made.number(4)]),
    ord("K"): lambda made: made.stack.append(made.number(1)),
    ord("M"): lambda made: made.stack.append(made.number(2)),
    ord("J"): lambda made: made.signed(4),
    0x8A: lambda made: made.signed(made.number(1)),
    ord("G"): lambda made: made.stack.append(_FLOAT.unpack(made.taken(8))[0]),
    ord("N"): lambda made: made.stack.append(None),
    0x88: lambda made: made.stack.append(True),
    0x89: lambda made: made.stack.append(False),
    0x8C: lambda made: made.text(1),
    ord("X"): lambda made: made.text(4),
    0x8D: lambda made: made.text(8),
    ord("("): _Machine.mark,
    ord("]"): _Machine.begin_list,
    ord("e"): lambda made: made.extend(made.since_mark()),
    ord("a"): lambda made: made.extend(made.pop(1)),
    ord("}"): _Machine.dictionary,
    ord("u"): _Machine.end_dictionary,
    ord("s"): lambda made: made.fill(made.pop(2)),
    ord(")"): lambda made: made.stack.append(()),
    0x85: lambda made: made.stack.append(tuple(made.pop(1))),
    0x86: lambda made: made.stack.append(tuple(made.pop(2))),
    0x87: lambda made: made.stack.append(tuple(made.pop(3))),
    ord("t"): _Machine.end_tuple,
}
"""What is done for each instruction. All others make objects of a program's own, or are of no use here."""
