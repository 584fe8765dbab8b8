#!/usr/bin/env bash
# Checks deploy/: the Dockerfile, and what the chart makes of several values files.
#
#   deploy/check.sh                                     what needs no program
#   PACELINE=target/release/paceline deploy/check.sh    flags, probes and metrics too
#
# Its tools are Python packages, kept in a virtual environment under target/. Where they cannot be
# had, it says so and exits with 77.
set -euo pipefail
# Given relative to where the caller stands.
[ -z "${PACELINE:-}" ] || PACELINE=$(realpath -- "$PACELINE")
export PACELINE=${PACELINE:-}
cd "$(dirname "$0")/.."

wanted=deploy/check-requirements.txt
tools=${CARGO_TARGET_DIR:-target}/deploy-tools

no_tools() {
  echo "deploy/check.sh: $1; nothing was checked" >&2
  exit 77
}

# An environment counts once all of it is there: the list is copied last.
if ! cmp -s "$wanted" "$tools/have.txt"; then
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
    || no_tools "there is no python3 of at least 3.11"
  rm -rf "$tools"
  mkdir -p "$(dirname "$tools")"
  python3 -m venv "$tools" || no_tools "python3 cannot make a virtual environment"
  "$tools/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: -r "$wanted" \
    || no_tools "pip cannot get what $wanted lists"
  cp "$wanted" "$tools/have.txt"
fi
tools=$(cd "$tools" && pwd)

"$tools/bin/hadolint" deploy/Dockerfile
HELM="$tools/bin/helm" "$tools/bin/python" deploy/check.py -v
