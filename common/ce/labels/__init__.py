"""Labels of objects: `LabelTable` (`label_table`), its data (`table`), and the readers of arrays and files."""

from ce.labels.label_table import LabelTable
from ce.labels.table import Categories, Column, Kind, Noise, equal_rows

__all__ = ["Categories", "Column", "Kind", "LabelTable", "Noise", "equal_rows"]
