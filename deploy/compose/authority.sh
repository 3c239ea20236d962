#!/bin/sh
# The operator, once: an authority, the coordinator's papers and the operator's own. Without a network.
# The authority's key stays on its own volume: neither the coordinator nor the operator's commands ever have it.
set -eu
[ -e /srv/authority/coordinator.toml ] || ce-coordinator init /srv/authority --listen 0.0.0.0:8443
for file in coordinator.toml coordinator.key coordinator.pem; do
    [ -e "/srv/ce/$file" ] || cp -p "/srv/authority/$file" "/srv/ce/$file"
done
for file in coordinator.toml operator.key operator.pem; do
    [ -e "/srv/operator/$file" ] || cp -p "/srv/authority/$file" "/srv/operator/$file"
done
rm -f /srv/authority/coordinator.key /srv/authority/operator.key
