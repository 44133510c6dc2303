"""A program of JupyterLab without what takes most of its start, and the tests have no use for.

Two thirds of that are grammars of internationalized addresses, which jsonschema compiles where it finds a
package for them; and Node is started to be asked for a registry of packages, from which nothing is built.
"""

import importlib
import sys
from typing import Any


def no_config(_: Any) -> dict[str, dict[str, Any]]:
    """Return what JupyterLab finds without Node."""
    return {"yarn config": {}, "npm config": {}}


if __name__ == "__main__":
    sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]  # its import fails
    commands = importlib.import_module("jupyterlab.commands")

    vars(commands)["_yarn_config"] = no_config
    program = sys.argv.pop(1)
    if program == "trust":  # which signs notebooks: nbformat's own
        sys.exit(importlib.import_module("nbformat.sign").TrustNotebookApp.launch_instance())
    sys.exit(importlib.import_module(f"jupyterlab.{program}").main())
