"""Lines that a collector must survive."""

from __future__ import annotations

import random


def garbage(count: int, seed: int = 0) -> bytes:
    """Return lines that no rank would write: damaged, hostile, of other kinds, out of range."""
    chance = random.Random(seed)
    nasty: list[bytes] = [
        b"", b"null", b"[]", b"{}", b'"k"', b'{"k":1}', b'{"k":"rows"}', b'{"k":"head"}', b"\x00" * 40,
        b"[" * 5000, b'{"k":"rows","n":-1,"w":1e999,"t":[],"s":[],"v":[]}',
        b'{"k":"rows","n":99999999999999999999,"w":0,"t":[NaN],"s":[0],"v":[[1]]}',
        b'{"k":"fold","n":0,"t":[0,1152921504606846975],"samples":1,"low":[0],"high":[0],"last":[0]}',
        b'{"k":"head","format":"hfmem","version":1,"started":0,"rank":1152921504606846975}',
        b'{"k":"head","format":"hfmem","version":1,"started":-1,"rank":true,"world":-8}',
        b'{"k":"head","format":"hfmem","version":999,"started":0}',
        b'{"k":"series","first":0,"devices":[],"series":["cuda:0/allocated"],"labels":["x"]}',
        b'{"k":"steps","count":1,"devices":["cuda:0"],"rows":[[0,1,1]]}',
        b'{"k":"span","id":1,"parent":null,"kind":"bomb","label":"","start":0,"stop":null}',
        (b'{"k":"finding","i":0,"kind":"oom","severity":"critical","title":"\xe2\x80\xae<img onerror=1>",'
        b'"evidence":{"a":[[[[[[[[[[1]]]]]]]]]]},"advice":[],"span":null}'),
        b'{"k":"end","time":0,"stopped":1e300}',
    ]  # fmt: skip
    made = []
    for _ in range(count):
        line = bytearray(chance.choice(nasty))
        for _ in range(chance.randrange(3)):
            if line:
                line[chance.randrange(len(line))] = chance.randrange(256)
        made.append(bytes(line).replace(b"\n", b" "))
    return b"\n".join(made) + b"\n"
