"""AANG and META-TARTAN: auxiliary objectives made of the task's own data, weighted for the end task."""

from steelyard.methods.aang.method import AANG, Tartan

__all__ = ["AANG", "Tartan"]
