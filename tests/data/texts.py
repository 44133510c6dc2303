"""The product's sentences, in files beside this one, where they can be read, and changes be seen.

``HFMEM_UPDATE_TEXTS=1 pytest`` writes the files anew; the difference is then read before it is committed.
"""

import os
import re
from html import unescape

from tests.data import DATA

TEXTS = DATA / "texts"


def assert_reads(name: str, text: str) -> None:
    """Assert that a text equals the file of this name, or write the file if that is requested."""
    file = TEXTS / f"{name}.txt"
    if os.environ.get("HFMEM_UPDATE_TEXTS"):
        TEXTS.mkdir(exist_ok=True)
        file.write_text(f"{text}\n", encoding="utf-8")
    assert f"{text}\n" == file.read_text(encoding="utf-8"), "HFMEM_UPDATE_TEXTS=1 writes it anew"


def seen(html: str) -> str:
    """Return what is left of HTML when a front end drops all markup."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())
