"""What people keep on the host, each made by code of its own, with the bytes that its objects take.

`OBJECTS` is by construction, or what the library's own allocator says. Code runs with `np` and, where
`torch` is in it, `torch`; what it leaves as `kept` stays.
"""

from __future__ import annotations

KINDS = {
    "lists of ints": (
        "kept = np.random.randint(1000, 50000, (10_000, 128)).tolist()\n"
        "OBJECTS = sum(map(sys.getsizeof, kept)) + sum(sys.getsizeof(i) for r in kept for i in r)"
    ),
    "dicts": "kept = [{'id': i, 'score': i / 3} for i in range(200_000)]\nOBJECTS = 200_000 * 240",
    "tuples": "kept = [(float(i), i + .5) for i in range(350_000)]\nOBJECTS = 350_000 * 120",
    "texts": (
        "kept = [('text %d ' % i) * 20 for i in range(150_000)]\n"
        "OBJECTS = sum(map(sys.getsizeof, kept))"
    ),
    "small bytes": "kept = [os.urandom(300) for _ in range(150_000)]\nOBJECTS = 150_000 * 333",
    "big bytes": "kept = [os.urandom(1_000_000) for _ in range(100)]\nOBJECTS = 100_000_000",
    "a bytearray": (
        "kept = bytearray(150_000_000)\nkept[::4096] = b'x' * len(kept[::4096])\n"
        "OBJECTS = len(kept)"
    ),
    "an array": "kept = np.ones(20_000_000)\nOBJECTS = kept.nbytes",
    "many arrays": "kept = [np.ones(10_000) for _ in range(2000)]\nOBJECTS = 160_000_000",
    "many arrays, most of them freed": (
        "many = [np.ones(10_000) for _ in range(2000)]\nkept = many[::50]\ndel many\nOBJECTS = 3_200_000"
    ),
    "arrays of a thread, most of them freed": (
        "import threading\nkept = []\n"
        "def work():\n    kept.extend([np.ones(10_000) for _ in range(2000)][::50])\n"
        "thread = threading.Thread(target=work)\nthread.start()\nthread.join()\nOBJECTS = 3_200_000"
    ),
    "lists of ints, most of them freed": (
        "many = np.arange(1000, 1_281_000).reshape(10_000, 128).tolist()\n"
        "kept = many[::100]\ndel many\nOBJECTS = 100 * 128 * 32"
    ),
    "an array that nobody wrote": "kept = np.empty(50_000_000)\nOBJECTS = 0",
    "what malloc has given back": (
        "many = [np.ones(10_000) for _ in range(2000)]\nkept = np.ones(10_000)\ndel many\n"
        "ctypes.CDLL(None).malloc_trim(0)\nOBJECTS = 80_000"
    ),
    "a block of shared memory": (
        "from multiprocessing.shared_memory import SharedMemory\n"
        "kept = SharedMemory(create=True, size=100_000_000)\n"
        "kept.buf[:] = b'x' * len(kept.buf)\nOBJECTS = 100_000_000"
    ),
    "Arrow tables": (
        "import pyarrow as pa\n"
        "rows = pa.array(np.arange(2_000_000))\n"
        "kept = [pa.table({'c': np.ones(2_000_000)}).take(rows) for _ in range(6)]\n"
        "OBJECTS = pa.total_allocated_bytes()"
    ),
    "a polars frame": (
        "import polars as pl\n"
        "kept = pl.select(pl.int_range(0, 8_000_000, dtype=pl.Int64).alias('n') * 2)\n"
        "OBJECTS = kept.estimated_size()"
    ),
    "a column of texts": (
        "import pandas as pd\n"
        "kept = pd.DataFrame({'text': ['a comment of some words ' * 6 + str(i) for i in range(200_000)]})\n"
        "OBJECTS = kept.memory_usage(deep=True).sum()"
    ),
    "tensors": "kept = [torch.ones(5_000_000) for _ in range(6)]\nOBJECTS = 120_000_000",
    "shared tensors": (
        "kept = [torch.ones(5_000_000).share_memory_() for _ in range(6)]\nOBJECTS = 120_000_000"
    ),
    "a model": (
        "kept = torch.nn.Sequential(*[torch.nn.Linear(1500, 1500) for _ in range(12)])\n"
        "OBJECTS = sum(p.nbytes for p in kept.parameters())"
    ),
}
