"""Task weights in a loop that is not ours: Lightning's, or the Hugging Face Trainer's.

Both need rows of every task in each step (`Together`, `collated`) and someone who weighs (`TargetFirst`,
`QueryFirst`). The rooms of the two libraries are imported by name: `steelyard.integrations.lightning`,
`steelyard.integrations.transformers`.
"""

from steelyard.integrations.rows import Together, collated
from steelyard.integrations.weighers import QueryFirst, TargetFirst, Uniform, Weigher

__all__ = ["QueryFirst", "TargetFirst", "Together", "Uniform", "Weigher", "collated"]
