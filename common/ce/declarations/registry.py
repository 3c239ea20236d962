"""Which models there are: the built-in ones, and those that installed packages offer (entry points, `ce.models`).

A built-in model is found without a look at what is installed, and no package can replace or break it: a package whose
model has the name of another, or cannot be loaded, is an error of that package alone, raised when its model is asked
for (`find_model`) and listed by `package_problems`.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ce.declarations import bc3e, bce, mixture, pairs
from ce.declarations.declaration import ModelDeclaration
from ce.errors import BrokenModel, UnknownModel

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "ce.models"
BUILT_IN = (bce.DECLARATION, bc3e.DECLARATION, mixture.DECLARATION, pairs.DECLARATION)
#: The model of a job that names none.
DEFAULT = BUILT_IN[0].name

_BUILT_IN = {declaration.name: declaration for declaration in BUILT_IN}


def sealed_name() -> str:
    """The model of this release that runs in sealed jobs, for sentences that propose one."""
    return next(declaration.name for declaration in BUILT_IN if declaration.sealed)


def built_in_names() -> tuple[str, ...]:
    """The models of this release."""
    return tuple(_BUILT_IN)


def model_names() -> tuple[str, ...]:
    """All models: the built-in ones, then those of installed packages by name. Loads none of these."""
    return (*_BUILT_IN, *sorted(set(_entry_points()) - set(_BUILT_IN)))


def find_model(name: object) -> ModelDeclaration:
    """The declaration of a model. Raises UnknownModel, or BrokenModel if its package cannot be used."""
    if isinstance(name, str) and name in _BUILT_IN:
        return _BUILT_IN[name]
    if isinstance(name, str) and name in _entry_points():
        return _load(name)
    known = f"model is one of {', '.join(model_names())}"
    # A name may come from another organisation: only one that could be a model's is repeated.
    if isinstance(name, str) and name.isidentifier() and name.isascii() and len(name) <= 40:
        raise UnknownModel(f"{known}; model {name} is not installed here")
    raise UnknownModel(known)


def package_problems() -> tuple[BrokenModel, ...]:
    """What is wrong with installed packages that offer models. Loads all of them."""
    problems = []
    for name, offers in _entry_points().items():
        try:
            if name in _BUILT_IN:
                raise BrokenModel(f"{_packages(offers)} offers model {name}, which is built in: it is not used")
            _load(name)
        except BrokenModel as problem:
            problems.append(problem)
    return tuple(problems)


def look_again() -> None:
    """Forget what is installed: a package that was installed while this process runs is found from now on."""
    from importlib import invalidate_caches

    invalidate_caches()
    _entry_points.cache_clear()
    _load.cache_clear()


@cache
def _entry_points() -> dict[str, tuple[EntryPoint, ...]]:
    """What installed packages offer, by the model's name. Packages are not imported."""
    from importlib.metadata import entry_points  # takes 15 ms, and few commands need it

    offers: dict[str, tuple[EntryPoint, ...]] = {}
    for entry in entry_points(group=GROUP):
        offers[entry.name] = (*offers.get(entry.name, ()), entry)
    return offers


@cache
def _load(name: str) -> ModelDeclaration:
    """The declaration that a package offers, which must be what it says it is."""
    offers = _entry_points()[name]
    if len(offers) > 1:
        raise BrokenModel(f"{_packages(offers)} all offer model {name}: uninstall all but one of them")
    package = _packages(offers)
    try:
        declaration = offers[0].load()
    except Exception as error:  # a package may raise anything when it is imported
        raise BrokenModel(
            f"{package}: its model {name} cannot be loaded ({type(error).__name__}: {error}); repair or uninstall it"
        ) from error
    if not isinstance(declaration, ModelDeclaration):
        raise BrokenModel(f"{package}: {offers[0].value} is not a ce.declarations.ModelDeclaration")
    if declaration.name != name:
        raise BrokenModel(f"{package}: its entry point is called {name}, the model that it declares {declaration.name}")
    return declaration


def _packages(offers: tuple[EntryPoint, ...]) -> str:
    named = sorted(f"{entry.dist.name} {entry.dist.version}" if entry.dist else "a package" for entry in offers)
    return f"package {' and '.join(named)}" if len(named) == 1 else f"packages {' and '.join(named)}"
