"""One site's part in one attempt at a job: messages in, frames out.

attempt      receives all messages, passes each to the phase that it belongs to
setup        first phase: the offer, the keys
admission    second phase: enrolment, alignment, rules, consent
rounds       third phase: tasks, answers, checkpoints, results; of a sealed job: sealed_rounds
recorder     what is written about the attempt: its history, the ledger
"""
