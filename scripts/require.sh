#!/usr/bin/env bash
# Checks that what the build needs is here, and says what is missing. Usage: require.sh PYTHON [GIGABYTES]
# With GIGABYTES it warns where the disk has less than that left.
set -eu
python=${1:-python3}
missing=0
complain() { printf 'missing: %s\n  hint: %s\n' "$1" "$2" >&2; missing=1; }

# edition 2024 and the dependencies need this Rust (rust-version in Cargo.toml)
need_rust=1.88
have_rust=$(rustc --version 2>/dev/null | awk '{print $2}' || true)
if ! command -v cargo >/dev/null 2>&1 || [ -z "$have_rust" ]; then
  complain "a Rust tool chain (cargo, rustc >= $need_rust)" "install it with rustup, then run make again"
elif [ "$(printf '%s\n%s\n' "$need_rust" "$have_rust" | sort -V | head -n 1)" != "$need_rust" ]; then
  complain "rustc >= $need_rust (found $have_rust)" "run: rustup update stable"
fi
if ! command -v "$python" >/dev/null 2>&1; then
  complain "Python >= 3.10 (no \`$python\` on the PATH)" "install it, or name it: make PYTHON=/path/to/python3.12 ..."
elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
  complain "Python >= 3.10 (found $("$python" -V 2>&1))" "name another one: make PYTHON=python3.12 ..."
elif ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
  complain "Python's venv module" "install it (Debian: apt-get install python3-venv)"
fi
if ! command -v cc >/dev/null 2>&1; then
  complain "a C linker (cc)" "install gcc or clang (Debian: apt-get install build-essential)"
fi
if [ $# -gt 1 ]; then
  free=$(df -Pk . | awk 'NR == 2 { print int($4 / 1000000) }')
  if [ "$free" -lt "$2" ]; then
    printf 'warning: %s GB of disk are free\n  hint: PyTorch with its CUDA libraries takes 5 GB, unpacking and the builds for tests as much again\n' "$free" >&2
  fi
fi
exit $missing
