"""Labels: the table (`table`), and how it is read from arrays (`arrays`) and files (`files`)."""

from ce.labels.table import Categories, Column, Kind, LabelTable, Noise, equal_rows

__all__ = ["Categories", "Column", "Kind", "LabelTable", "Noise", "equal_rows"]
