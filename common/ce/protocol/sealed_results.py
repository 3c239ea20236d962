"""What a site gets of a sealed job: labels of all its objects, and memberships of those that it scored itself.

Of an object that several sites hold only the label is known: its memberships are NaN, and empty in a consensus file.
Objects that a rule left out of the job are scored from this site's labels alone, as in other modes. Daemon and
simulation call it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ce.errors import MessageError
from ce.labels import LabelTable
from ce.protocol.sealed.site import SealedSite
from ce.protocol.sealed.site_input import codes_of
from ce.protocol.topology.site_view import SiteView
from ce.protocol.topology.topology import Rows
from ce.ring import Reals


def whole_labels(
    site: SealedSite, view: SiteView, table: LabelTable, participating: Rows
) -> tuple[NDArray[np.intp], Reals]:
    """(n,) labels, -1 where there is none, and (n, k) memberships of all objects of a site, after a finished job.

    `table`: all its objects, with tokens where the job uses them; `participating`: the rows of it that took part, in
    the order of the site's input.
    """
    outcome, model, terms = site.result, site.model, site.terms
    if outcome is None or model is None or terms is None:
        raise MessageError("results: expected after the step finish")
    labels = np.full(table.n_objects, -1, dtype=np.intp)
    memberships = np.full((table.n_objects, outcome.n_clusters), np.nan)
    labels[participating], memberships[participating] = outcome.labels, outcome.memberships
    rest = np.ones(table.n_objects, dtype=bool)
    rest[participating] = False
    if rest.any():
        labels[rest], memberships[rest] = model.score_alone(terms, site.name, codes_of(table.select(rest), view))
    return labels, memberships
