#!/usr/bin/env bash
# Installs the Debian package in a fresh Debian 12 and runs it there: needs root, debootstrap and the
# network for Debian's own packages.
#
#   scripts/try_deb.sh tessera_*.deb
set -euo pipefail
deb=$(realpath "$1")
root=$(mktemp -d)
finish() { umount "$root/proc" 2>/dev/null || true; rm -rf "$root"; }
trap finish EXIT
debootstrap --variant=minbase bookworm "$root" >"$root.log" 2>&1 || { tail -n 5 "$root.log"; exit 1; }
rm -f "$root.log"
cp -L /etc/resolv.conf "$root/etc/resolv.conf"
mount -t proc proc "$root/proc"
cp "$deb" "$root/tmp/tessera.deb"
inside() { chroot "$root" env DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 "$@"; }
inside apt-get update -qq
inside apt-get install -y -qq --no-install-recommends /tmp/tessera.deb >/dev/null
cat >"$root/tmp/spec.json" <<'END'
{"tessera": 1, "arch": "decoder", "vocab": 256, "d_model": 32, "norm": "rms_norm",
 "layers": [{"repeat": 2, "mixer": {"type": "mamba2", "n_heads": 4, "d_state": 8}}], "head": "tied"}
END
inside tessera --version
inside tessera init /tmp/spec.json --out /tmp/model
inside tessera generate /tmp/model Once -n 8 --temperature 0
echo "try_deb: installed and run in a fresh Debian 12"
