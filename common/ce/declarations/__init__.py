"""What each model declares of itself, once: `ModelDeclaration`, the built-in models, and those of installed packages.

Nothing here imports a numerical library: every command reads declarations, and few commands compute.
"""

from ce.declarations.capacity_facts import Arrays, CapacityFacts
from ce.declarations.declaration import ModelDeclaration

__all__ = ["Arrays", "CapacityFacts", "ModelDeclaration"]
