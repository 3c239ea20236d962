"""One site's part in one attempt at a job: messages in, frames out."""
