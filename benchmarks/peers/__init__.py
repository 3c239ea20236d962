"""What ce is compared with: other software, and loops and sockets that are limits. Each can be measured by itself."""
