# Usage, in this folder: . ./env.sh  (flwr needs absolute paths, so this rewrites its config file for the current location)
export FLWR_HOME="$PWD/flower" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
mkdir -p "$FLWR_HOME"
cat > "$FLWR_HOME/config.toml" <<END
[superlink]
default = "here"

[superlink.here]
address = "@HERE@:@PORT@"
root-certificates = "$PWD/ca.crt"
END
