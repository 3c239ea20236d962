"""What sealed jobs have cost this site's objects, and what must survive a crash so that nothing is opened twice.

database       the file: releases.sqlite in the state directory
keyed_ids      objects and their label rows, as nobody without the site's secret can read them
accounts       rho and labellings of each object, over all jobs; what a job would cost
allowances     releases that a person here has allowed beyond the policy
ledger_lines   what the ledger says about them
job_records    the records of one job (`ce.protocol.sealed.records.Records`)
store          all of it, as daemon and commands use it
"""
