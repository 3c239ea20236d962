#!/bin/sh
# The operator: signs the requests of the sites whose fingerprints were read out. Without a network.
# Certificates are not secret: they, and the list of what was issued, are what everybody may see.
set -eu
for site in "$@"; do
    [ -e "/exchange/signed/$site.pem" ] || ce-coordinator sign "/exchange/from/$site/$site.csr" \
        --fingerprint "$(cat "/exchange/from/$site/fingerprint")" --config /srv/authority --out /exchange/signed
done
cp /srv/authority/authority/ca.pem /exchange/signed/ca.pem
mkdir -p /exchange/signed/issued
cp /srv/authority/authority/issued/*.pem /exchange/signed/issued/
