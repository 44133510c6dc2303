"""The contrast of two colours."""


def contrast(first: str, second: str) -> float:
    """Return the WCAG contrast ratio of two ``#rrggbb`` colours, from 1 to 21."""
    bright, dark = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    red, green, blue = (
        level / 12.92 if level <= 0.04045 else float(((level + 0.055) / 1.055) ** 2.4)
        for level in (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
