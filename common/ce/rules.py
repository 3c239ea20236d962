"""The catalogue of rules: every name by which a job is refused, what the rule says, and what to do next.

Some rules are keys of a site's `policy.toml`; the others belong to the protocol or to limits in `client.toml`. The
sentence of a refusal ends with the rule's name, metrics count by it, docs/errors.md lists them.
"""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    """What a rule says, and what to do when it refuses a job."""

    says: str
    remedy: str


_CHANGE_JOB = "change the job, or ask the site whether it changes the rule"
_ROOM_AT_SITE = "ask the site to raise the limit in `client.toml`"

#: Rules of a site's policy, by the keys of policy.toml, which explains them in detail.
POLICY = {
    "weakest_privacy": Rule("The site sends its sums only in a better mode than the job's.", _CHANGE_JOB),
    "min_sites": Rule("Too few sites are in the job, or in one of its totals.", "ask more sites to take part"),
    "min_objects": Rule("The site has too few objects in a total.", _CHANGE_JOB),
    "min_foreign_columns": Rule(
        "Too few columns of other sites are in the totals of objects that several sites hold.",
        'more clusterings at the other sites; or `below_minimum = "exclude"` at this one, which leaves the objects out',
    ),
    "min_classifiers": Rule(
        "Too few classifiers of other sites vote on objects that several sites hold (bc3e).",
        'more classifiers at the other sites; or `below_minimum = "exclude"` at this one',
    ),
    "shared_objects": Rule(
        'Objects that several sites hold take no part in totals (`"sealed"`), or in no job at all (`"exclude"`).',
        'a sealed job ([sealed.md](sealed.md)), unless the site says `"exclude"`; or objects that the sites hold '
        'alone; or, at the sites, `shared_objects = "totals"` in `policy.toml`: [threat-model.md](threat-model.md) '
        "says what can be read from such totals",
    ),
    "max_epsilon": Rule(
        "The tables of sealed jobs would tell more about the site's labels of an object than it allows: those of this "
        "job alone, or together with the jobs before.",
        "more noise (a smaller `epsilon`); or, at the site, `ce-client budget` and `ce-client allow-release`",
    ),
    "max_delta": Rule("The `delta` of a sealed job is larger than the site allows.", _CHANGE_JOB),
    "min_collusion": Rule(
        "The noise of a sealed job hides labels from fewer colluding sites than the site requires.",
        "a larger `collusion` in the job, or ask the site whether it changes the rule",
    ),
    "allow_exact": Rule(
        'The tables of a sealed job would have no noise (`epsilon = "exact"`).',
        "an `epsilon`, or ask the site whether it changes the rule",
    ),
    "max_definitions": Rule(
        "Other jobs have opened totals of the same objects, and the site allows no further definition.",
        "submit the same definition as before, under any name; or, at the site, `ce-client allow-definition`",
    ),
    "max_smoothing": Rule("The smoothing of the job is larger than the site allows.", _CHANGE_JOB),
    "max_restarts": Rule("The job has more restarts than the site allows.", _CHANGE_JOB),
    "max_local_loops": Rule("The job has more local_loops than the site allows.", _CHANGE_JOB),
    "max_clusters": Rule("The job has more clusters or classes than the site allows.", _CHANGE_JOB),
    "models": Rule("The site takes no part in jobs of this model.", _CHANGE_JOB),
    "max_rounds": Rule("The job has taken all the rounds that the site answers.", "fewer iterations, or ask the site"),
    "coordinators": Rule("The site takes no jobs from this coordinator.", "ask the site"),
    "leave_behind": Rule(
        "The job would go on without a site that stays away; the totals before and after would show its part.",
        "bring the missing site back; or submit a job without it, under another name",
    ),
    "consent": Rule(
        "The site declined the job, or approved another job of this name.", "ask the site, or take another name"
    ),
}

#: Every rule by which a job is refused. Metrics count a rule that is not listed here as `other`.
RULES = {
    **POLICY,
    "diffused start": Rule(
        'It has not been analysed what a coordinator learns from `start = "diffused"` in `masked`.',
        '`start = "votes"`, or `privacy = "blind"`',
    ),
    "one roster per label file": Rule(
        "The site's labels are in totals with other sites: the difference of two totals would be a site's part.",
        "the same sites as before; or, at the site, `ce-client allow-roster`",
    ),
    "declared categories": Rule(
        "The site randomises its labels, and has not declared the categories of every column that takes part.",
        "at the site: list all categories of each column under `[labels.categories]` in `client.toml`, then restart "
        "its daemon",
    ),
    "one randomisation per column": Rule(
        "The site has sent labels of a column that were randomised in another way; a second draw of the same labels "
        "shows more of them.",
        "at the site: restore the declared categories, `randomise`, `randomise_columns` and the secret; or "
        "`ce-client allow-redraw`, which adds the epsilons up",
    ),
    "same in every attempt": Rule(
        "A site's labels, its policy or the topology changed between two attempts at the job, or the site refused the "
        "job before.",
        "submit the job under another name",
    ),
    "unpinned peer": Rule(
        "The site does not trust another site of the job.", "both compare fingerprints, then `ce-client trust`"
    ),
    "changed key of a peer": Rule(
        "Another site's key is not the one that this site has pinned.",
        "ask that site, by telephone, whether it made a new key; if so, `ce-client trust` again",
    ),
    "peer with another name": Rule(
        "The certificate that was sent for a site has another name in it.",
        "tell the operator: the coordinator passed on a wrong certificate",
    ),
    "results of another job": Rule(
        "The site has results of another job under this name.", "submit the job under another name"
    ),
    "finished job": Rule(
        "The job is over at the site, and is offered to it again: its results stay as they are.",
        "submit the job under another name",
    ),
    "usable columns": Rule("The site has no column that the model uses.", "change the job, or the labels"),
    "classes of the job": Rule(
        "A classifier of the site uses a class that the job does not name.", "name all classes in `classes`"
    ),
    "one job key": Rule(
        "Two sites have different job keys: the site that made the key gave them different ones.",
        "ask the first site of the job, by name, about its software; install the same release at all sites",
    ),
    "overlap of sites": Rule(
        "The coordinator says something else about the objects that two sites hold than the sites have found.",
        "take no part in jobs of this coordinator until its operator and the named site have explained it",
    ),
    "one set of holders": Rule(
        "A column that the site shares has other holders than most of its shared columns: its parameters, which the "
        "coordinator sends, would tell the site apart from its co-holders in the sums of the others (`masked`).",
        'none is needed: the column is left out; `privacy = "blind"` keeps it',
    ),
    "rare categories": Rule(
        "Labels of a category that too few sites have, in a column that several sites hold, take no part.",
        'none is needed: they are left out; a site that says `below_minimum = "refuse"` takes no part in the job',
    ),
    "one labelling": Rule(
        "A sealed job has labelled the same objects, with the same labels of the site, before. Each labelling tells "
        "the other holders of an object a little about the site's labels of it; many of them tell all.",
        "none is needed: the labels of the job before are in the results of the sites; or a job without these objects",
    ),
    "counted releases": Rule(
        "The site's ledger has charged sealed jobs that `state/releases.sqlite` lacks: the file was deleted or "
        "replaced, and the site would spend its budget again.",
        "at the site: `ce-client check`; restore the file from a backup. If it is lost for good, stop the daemon and "
        "move the ledger to an archive: the budget then begins anew, which the archive shows",
    ),
    "exact tables": Rule(
        "Tables without noise would have too many categories for the objects that two sites hold both: a site could "
        "solve them for the labels of the other.",
        "fewer categories, more common objects, or an `epsilon`",
    ),
    "members of a block": Rule(
        "More than 63 sites hold the same objects in a sealed job.",
        "none is needed: these objects are left out; or a job of fewer sites",
    ),
    "overlapping cells": Rule(
        "Two sites hold a label for the same object in the same column.",
        "drop it at all but one, or rename the column at one: [concepts.md](concepts.md)",
    ),
    "clashing column": Rule(
        "Two sites give a column the same name but not the same kind of labels.",
        "write them alike, or rename the column at one: [concepts.md](concepts.md)",
    ),
    "feature of a site": Rule(
        "The software of a site leaves out what the job needs: it takes no part in blind jobs.",
        '`privacy = "masked"`, or a job without the site',
    ),
    "largest_state": Rule(
        "The job needs more memory than the site gives it (`client.toml`).",
        "fewer restarts or clusters; [capacity.md](capacity.md) says how much a job takes",
    ),
    "limits.jobs_at_once": Rule(
        "The site is in as many jobs as it allows.", "submit the job later, under another name"
    ),
    "limits.jobs_remembered": Rule(
        "The site has files of as many jobs as it allows.", "at the site, `ce-client forget` some; then another name"
    ),
    "limits.sites_per_job": Rule("The job has more sites than this one allows.", _ROOM_AT_SITE),
    "limits.attempts_per_job": Rule(
        "Masked words of the same sealed job have left the site in as many attempts as it allows, and its tables were "
        "never opened.",
        "find out why its attempts fail; then submit the job under another name",
    ),
    "limits.ledger_bytes": Rule(
        "The site's ledger is full.", "at the site: stop the daemon, move the ledger to an archive, start again"
    ),
}

#: Rules of commands, which refuse no job.
OF_COMMANDS = {
    "job under way": Rule("`ce-client forget` of a job that is not over.", "wait for its end, or stop the daemon"),
}
