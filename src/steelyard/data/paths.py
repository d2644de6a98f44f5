"""Where the paths lie that a configuration names."""

from __future__ import annotations

from pathlib import Path

from steelyard.errors import SteelyardError


def place(reference: str, base: Path | str) -> Path:
    """The file or folder of this name, which need not exist.

    Args:
        reference: As the user wrote it, relative to ``base`` or whole; ``~`` is the user's own folder.
        base: The folder that a relative path starts from.

    Raises:
        SteelyardError: If no file can have this name.
    """
    try:
        found = Path(base) / Path(reference).expanduser()
        found.resolve().exists()
    except (OSError, ValueError, RuntimeError) as error:
        told = getattr(error, "strerror", None) or error
        raise SteelyardError(
            f"{reference[:80]!r} cannot be the name of a file or folder ({told}); correct it"
        ) from None
    return found
