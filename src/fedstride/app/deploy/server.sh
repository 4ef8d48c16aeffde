#!/bin/sh
# Starts the SuperLink of this federation, port @PORT@, with TLS and SuperNode authentication.
set -eu
cd "$(dirname "$0")"
umask 077
. ./env.sh
exec python superlink.py --host @LISTEN@ --port @PORT@ \
    --ssl-ca-certfile ca.crt --ssl-certfile server.crt --ssl-keyfile server.key \
    --enable-supernode-auth --database superlink.db --disable-runtime-dependency-installation
