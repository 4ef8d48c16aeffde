#!/bin/sh
# Starts node @NUMBER@ of the federation at @ADDRESS@. Needs: pip install 'fedstride[flower]'
#     ./start.sh 'data="/srv/patients.csv" name="Ward 3"'
# The app's load_data receives the settings as its argument `node`. The node connects only to @ADDRESS@.
# Keep the file `key` secret. To start a second node on the same machine: PORT=9095 ./start.sh ...
set -eu
cd "$(dirname "$0")"
umask 077
export FLWR_HOME="$PWD/flower" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
# To use Flower's own SuperNode, with rounds of several seconds: exec flower-supernode --superlink ...
exec python -P -m fedstride.app.supernode --superlink @ADDRESS@ --root-certificates ca.crt --auth-supernode-private-key key \
    --port "${PORT:-9094}" --node-config "client=@NUMBER@ $*"
