"""The types of encoders' options: `build` checks what it is given against them."""

from typing import Annotated

from pydantic import Field

Size = Annotated[int, Field(ge=1)]
"""A number of channels, units, layers and the like."""

Sizes = Annotated[tuple[Size, ...], Field(min_length=1)]
"""One or more of them."""

Chance = Annotated[float, Field(ge=0, lt=1)]
"""The chance that dropout drops a value."""
