"""The audit of sealed jobs, which `ce.audit.audit` plays where the job is one."""
