"""Forecasts of types of models in transformers with their default configurations, or why there is none.

All of it is dry runs: nothing is built, and no device is touched. ``--types`` names some, and ``--all`` takes
all of them; by default those that the tests know are taken.
"""

import time
import warnings
from collections import Counter

import transformers
from common import measure

from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit.predict import predict
from hfmem_widget.features.fit.setting import Setting
from tests.data.fit_types import FORECAST, REFUSED, length_of

HEAD = ("type", "model", "forecast MiB", "how", "seconds")


def row(name: str) -> tuple[str, ...]:
    """Return the line of a type."""
    begun = time.monotonic()
    try:
        forecast = predict(
            transformers.CONFIG_MAPPING[name](), Setting(length=length_of(name), precision="bf16")
        )
    except (OptionError, ValueError, ImportError) as error:
        return name, "", "", f"refused: {str(error).splitlines()[0][:110]}", ""
    how = f"without {', '.join(forecast.left_out)}" if forecast.left_out else "whole"
    took = time.monotonic() - begun
    return name, forecast.model, f"{forecast.total / 2**20:,.0f}", how, f"{took:.1f}"


def main() -> None:
    """Forecast every type, and print the table."""
    parser = measure.cli(__doc__)
    parser.add_argument("--types", nargs="*", default=[*FORECAST, *REFUSED])
    parser.add_argument("--all", action="store_true", help="every type that transformers has")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    names = sorted(transformers.CONFIG_MAPPING) if arguments.all else arguments.types
    rows = [row(name) for name in names]
    ends = Counter(one[3].partition(":")[0].partition(" ")[0] for one in rows)
    counts = ", ".join(f"{count} {end}" for end, count in ends.most_common())
    measure.report(
        "Training steps of default configurations, forecast",
        measure.machine("torch", "transformers"),
        HEAD,
        rows,
        notes=[f"{len(rows)} types: {counts}."],
        json_to=arguments.json,
    )


if __name__ == "__main__":
    main()
