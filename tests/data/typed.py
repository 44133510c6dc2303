"""What a type checker knows of the package: `make check` reads this, and nothing runs it.

A slip is an error before it runs: mypy says where one of the comments below is not needed.
"""

from typing import assert_type

import hfmem_widget


def what_functions_return_can_be_named() -> None:
    assert_type(hfmem_widget.watch("a"), hfmem_widget.Watch)
    assert_type(hfmem_widget.span("a"), hfmem_widget.SpanScope)
    assert_type(hfmem_widget.fit("a"), hfmem_widget.Fit)
    assert_type(hfmem_widget.fit("a").forecast, hfmem_widget.Forecast)
    assert_type(hfmem_widget.compare("a"), hfmem_widget.Comparison)
    assert_type(hfmem_widget.holders(), hfmem_widget.Holders)
    assert_type(hfmem_widget.holders().since(hfmem_widget.holders()), hfmem_widget.Growth)
    assert_type(hfmem_widget.free(), hfmem_widget.Release)
    assert_type(hfmem_widget.memory_map(), hfmem_widget.MemoryMap)
    with hfmem_widget.watch("a", devices="cpu", budget="20GiB") as session:
        assert_type(session, hfmem_widget.Session)
    assert_type(session.anatomy(), hfmem_widget.Anatomy)
    assert_type(session.steps, hfmem_widget.Steps)
    assert_type(session.stacks, hfmem_widget.Stacks | None)


def slips_are_errors() -> None:
    hfmem_widget.wacth("a")  # type: ignore[attr-defined]
    hfmem_widget.watch("a", budgt=1)  # type: ignore[call-arg]
    hfmem_widget.watch(interval="1")  # type: ignore[arg-type]
