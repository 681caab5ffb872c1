#!/usr/bin/env bash
# Chromium for the tests that open the report's page; without it they are skipped.
set -euo pipefail
for name in chromium chromium-browser google-chrome chrome; do
    if command -v "$name" > /dev/null; then
        exit 0
    fi
done
if ! command -v apt-get > /dev/null || [ "$(id -u)" -ne 0 ]; then
    echo "No Chromium here, and it takes root on Debian or Ubuntu to install it: tests of the report's page are skipped." >&2
    exit 0
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo "Installing Chromium (about 400 MB), once ..." >&2
export DEBIAN_FRONTEND=noninteractive
if ! { apt-get update && apt-get install -y --no-install-recommends chromium fonts-dejavu-core; } > "$log" 2>&1; then
    echo "Chromium cannot be installed, tests of the report's page are skipped:" >&2
    tail -n 5 "$log" >&2
fi
