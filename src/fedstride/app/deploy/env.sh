# For this shell, in this folder: . ./env.sh  (flwr wants an absolute path, so its file is written anew wherever this folder is)
export FLWR_HOME="$PWD/flower" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
mkdir -p "$FLWR_HOME"
cat > "$FLWR_HOME/config.toml" <<END
[superlink]
default = "here"

[superlink.here]
address = "@HERE@:@PORT@"
root-certificates = "$PWD/ca.crt"
END
