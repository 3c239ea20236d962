#!/bin/sh
# A site, once: its own key, which never leaves its volume; its request and its fingerprint go out. Without a network.
set -eu
[ -e client.toml ] || ce-client init . --name "$SITE" --coordinator coordinator:8443 --labels /labels.csv
cp "$SITE.csr" /exchange/out/
ce-client fingerprint --config . >/exchange/out/fingerprint
