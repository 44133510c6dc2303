"""What following Python's and NumPy's memory by line would cost: `tracemalloc` in a cell of a real ipykernel.

It keeps some of the innermost frames of each allocation. The more it keeps, the slower is code that makes
small objects; the fewer, the more often the user's own line is not among them. Both are measured here, and
how long it takes to read what it knows.
"""

import json
from statistics import median

from common import measure

from tests.kernel.drive import Kernel

KEPT = (1, 2, 5, 10, 20)
ROUNDS = 5

SETUP = """
import json, re, time, tracemalloc
import numpy as np, pandas as pd, torch
from pathlib import Path
from transformers import BertTokenizer
torch.set_num_threads(1)
LINES = [" ".join(f"word{one * at % 500}" for at in range(60)) for one in range(500)]
letters = list("abcdefghijklmnopqrstuvwxyz0123456789")
words = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", *(f"word{one}" for one in range(500)), *letters]
Path("vocab.txt").write_text("\\n".join(words))
tokenizer = BertTokenizer("vocab.txt")
np.save("array.npy", np.ones(3_000_000))
parts = [part for _ in range(8) for part in (torch.nn.Linear(64, 64), torch.nn.GELU())]
model = torch.nn.Sequential(*parts)
optimizer, inputs = torch.optim.AdamW(model.parameters()), torch.ones(8, 64)
small, large = np.ones(1000), np.ones((1000, 1000))
"""

TIMED = {
    "a tokenizing loop": """
numbers = {}
for line in LINES:
    found = [numbers.setdefault(word, len(numbers)) for word in re.findall(r"\\w+", line.lower())]
    rows.append({"input_ids": found, "attention_mask": [1] * len(found)})
""",
    "NumPy, 8 kB arrays": "for _ in range(20_000): rows[:] = [small + 1]",
    "NumPy, 8 MB arrays": "for _ in range(60): rows[:] = [large + 1]",
    "training, 64 wide": """
for _ in range(30):
    model(inputs).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
}

HELD = {
    "a list of lists": "[[3 * one for one in range(1000)] for _ in range(300)]",
    "np.ones": "np.ones(3_000_000)",
    "np.load": "np.load('array.npy')",
    "json.loads": "json.loads(json.dumps([{'a': one} for one in range(20_000)]))",
    "a tokenizer": "tokenizer(LINES)",
    "pandas": "pd.DataFrame({'a': np.arange(200_000)}).groupby('a').sum()",
}

TAKE = """
here = (lambda: 0).__code__.co_filename
most_kept, shares = {}, []
{}  # what comes once
tracemalloc.start(60)
kept = {}
traces = tracemalloc.take_snapshot().traces
tracemalloc.stop()
depths = []
for trace in traces:
    names = [frame.filename for frame in reversed(trace.traceback)]
    depths.append((names.index(here) if here in names else 99, trace.size))
total = sum(size for _, size in depths)
print(json.dumps([sum(size for depth, size in depths if depth < most) / total for most in most_kept]))
"""

READ = """
tracemalloc.start({})
kept = [bytes(100) for _ in range(100_000)]
began = time.perf_counter()
tracemalloc.take_snapshot()
print(time.perf_counter() - began)
tracemalloc.stop()
"""


def seconds(kernel: Kernel, cell: str, frames: int) -> float:
    """Return the CPU time of a cell in which `frames` of each allocation are kept; of 0, none is traced."""
    kernel.run(f"tracemalloc.start({frames})" if frames else "pass")
    kernel.run(
        f"began = time.process_time()\nrows = []\n{cell}\nspent = time.process_time() - began"
    )
    kernel.run("tracemalloc.stop()")
    return float(kernel.run("print(spent)").text())


def slower(kernel: Kernel, cell: str) -> list[str]:
    """Return how many times the CPU time it takes, by how much is kept."""
    ways = {str(most): lambda most=most: seconds(kernel, cell, most) for most in (0, *KEPT)}
    spent = measure.interleave(ways, ROUNDS)
    return [measure.ratio(spent[str(most)], spent["0"]).text() for most in KEPT]


def credited(kernel: Kernel, expression: str) -> list[str]:
    """Return the share of an expression's bytes whose kept frames have the user's own line, likewise."""
    result = kernel.run(TAKE.format(KEPT, expression, expression))
    return [f"{share:.0%}" for share in json.loads(result.text())]


def main() -> None:
    """Measure and print."""
    arguments = measure.cli(__doc__).parse_args()
    with Kernel(env={"OMP_NUM_THREADS": "1"}) as kernel:
        if kernel.run(SETUP).status != "ok":
            raise SystemExit("The kernel needs pandas, torch and transformers.")
        times = [[name, *slower(kernel, cell)] for name, cell in TIMED.items()]
        shares = [[name, *credited(kernel, expression)] for name, expression in HELD.items()]
        read = [
            median(float(kernel.run(READ.format(most)).text()) for _ in range(ROUNDS))
            for most in KEPT
        ]
    read_text = ", ".join(f"{1e3 * each:.0f}" for each in read)
    measure.report(
        "Times the CPU time of a cell, and the share of bytes whose own line is known, by frames kept",
        measure.machine("ipykernel", "numpy", "pandas", "transformers"),
        ["cell", *map(str, KEPT)],
        [*times, *shares],
        notes=[f"Reading 100,000 allocations took {read_text} ms."],
        json_to=arguments.json,
    )


if __name__ == "__main__":
    main()
