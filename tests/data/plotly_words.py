"""The texts of a Plotly figure without the colours that a notebook gives them."""

import json
from typing import Any

INKED = '<span style="color:var(--vscode-descriptionForeground,var(--jp-ui-font-color2))">'


def plain_words(figure: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a figure whose texts have no markup."""
    text = json.dumps(figure).replace(json.dumps(INKED)[1:-1], "").replace("</span>", "")
    found: dict[str, Any] = json.loads(text)
    return found
