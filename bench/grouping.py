"""What measuring short steps costs with all of their phases, and with as many as are affordable.

A small network trains on the CPU, on one thread, beside invented counters of a GPU: what we read and reset
at an edge is then what is read and reset on a GPU, but for the driver's own time. Blocks of steps take turns:
off, all phases, as many as are affordable. What a block takes is its CPU time, of all threads, so that other
jobs on the machine change little; the wall clock is beside it. What a block may take is
what the one before has left.
"""

import time
import warnings
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from common import measure
from common.gpu_stand_in import give_torch_a_gpu, restart_with_nvml_stub
from common.ways import OFF, Everything, Way, watched
from torch import nn

SECONDS = 0.5
"""Of a block: five ticks of the poller."""


@dataclass(frozen=True, slots=True)
class Took:
    """CPU seconds and seconds of a step, and the edges made in one."""

    cpu: float
    wall: float


class Training:
    """A network of some width, and steps that take about as long as they are to."""

    def __init__(self, milliseconds: float) -> None:
        self.model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)
        self.batch = torch.randn(64, 256)
        self.repeats, self.steps = 1, 50
        one = min(self.block(OFF).wall for _ in range(5))
        self.repeats = max(1, round(milliseconds / 1e3 / one))
        self.steps = max(10, round(SECONDS / (self.block(OFF).wall)))

    def block(self, way: Way) -> Took:
        """Train some steps, the first of them untimed."""
        with way.block():
            self._step(way)
            cpu, wall = time.process_time(), time.perf_counter()
            for _ in range(self.steps):
                self._step(way)
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        return Took(cpu / self.steps, wall / self.steps)

    def _step(self, way: Way) -> None:
        with way.step() as next_phase:
            loss = self.model(self.batch)
            for _ in range(self.repeats - 1):  # the same work, without another call of the model
                for layer in self.model:
                    loss = layer.forward(loss)
            loss = loss.mean()
            next_phase("backward")
            loss.backward()
            next_phase("optimizer")
            self.optimizer.step()
            self.optimizer.zero_grad()


def row_of(ways: dict[str, list[Took]], name: str, off: str) -> list[str]:
    """Return a way's row: what a step takes more than in the blocks that were off."""
    cpu, wall = (
        np.array([[getattr(one, what) for one in ways[each]] for each in (off, name)])
        for what in ("cpu", "wall")
    )
    more = cpu[1] - cpu[0]
    return [
        name,
        measure.trimmed(1e6 * more).text(),
        measure.trimmed(100 * more / cpu[0]).text(digits=2),
        measure.trimmed(100 * (wall[1] - wall[0]) / wall[0]).text(digits=2),
    ]


def main() -> None:
    """Measure and print."""
    parser = measure.cli(__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="blocks of each way, at most")
    parser.add_argument("--seconds", type=float, default=180.0, help="after which no round begins")
    parser.add_argument("--milliseconds", type=float, nargs="+", default=[10.0, 30.0, 100.0])
    arguments = parser.parse_args()
    torch.manual_seed(0)
    if not torch.cuda.is_available():
        restart_with_nvml_stub()
        give_torch_a_gpu(torch)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with watched():  # what is imported and opened once
        pass
    rows = []
    for milliseconds in arguments.milliseconds:
        training = Training(milliseconds)
        grouped, whole = Everything(training.model), Everything(training.model, "all")
        ways = {
            "off": OFF,
            "all phases": Way(whole.block, whole.step),
            "as many as are affordable": Way(grouped.block, grouped.step),
        }
        for way in ways.values():  # the allowance of the first steps is spent
            training.block(way)
        took = measure.interleave(
            {name: partial(training.block, way) for name, way in ways.items()},
            arguments.rounds,
            within=arguments.seconds / len(arguments.milliseconds),
        )
        length = 1e3 * float(np.median([one.wall for one in took["off"]]))
        sentence = grouped.limited
        for name in list(ways)[1:]:
            decided = sentence if name != "all phases" else ""
            rows.append([f"{length:.1f}", *row_of(took, name, "off"), decided])
    measure.report(
        "What measuring steps costs (mean of the middle 60 % and 95 % interval)",
        f"{measure.machine('torch')}; CPU, invented GPU counters; at most {arguments.rounds} blocks of each",
        ["ms a step", "phases", "µs of CPU a step more", "% more CPU time", "% longer", "says"],
        rows,
        json_to=arguments.json,
    )


if __name__ == "__main__":
    main()
