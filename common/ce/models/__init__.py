"""Estimators: BCE, BC3E, Mixture. Each is its four steps (`ce.steps`) run by the engine on one site."""

from ce.models.bc3e import BC3E
from ce.models.bce import BCE
from ce.models.mixture import Mixture

__all__ = ["BC3E", "BCE", "Mixture"]
