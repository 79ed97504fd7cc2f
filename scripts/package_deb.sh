#!/usr/bin/env bash
# A Debian package of what is built, with the libtorch that it was built with (in /usr/lib/tessera), so that
# nothing but Debian's own packages is needed: commands, library, headers, man pages and completion.
#
#   scripts/package_deb.sh BUILD OUT
#
# `apt install ./tessera_*.deb` installs it and what it depends on.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1 out=$2
version=$(sed -nE 's/.*kVersion = "(.*)".*/\1/p' src/tessera/base/version.h)
architecture=$(dpkg --print-architecture)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root="$work/root"
cmake --build "$build" --target man >/dev/null
cmake --install "$build" --prefix "$root/usr" --strip >/dev/null
libraries="$root/usr/lib/tessera"
mkdir -p "$libraries" "$root/DEBIAN" "$root/usr/share/doc/tessera"
shared=$(find "$root/usr/lib" -name libtessera.so)
programs=("$root/usr/bin/tessera" "$root/usr/bin/tessera-tensors" "$shared")
# what no package of Debian has: libtorch and what it links
ldd "$shared" | sed -nE 's/.* => ([^ ]+) .*/\1/p' | while read -r library; do
  case $(readlink -f "$library") in /usr/lib/*|/lib/*) continue ;; esac
  name=$(basename "$library")
  [ "$name" = libgomp.so.1 ] && continue  # Debian's serves as well
  cp -L "$library" "$libraries/$name"
  patchelf --set-rpath '$ORIGIN' "$libraries/$name"
done
patchelf --set-rpath '$ORIGIN/../lib/tessera' "$root/usr/bin/tessera-tensors"
patchelf --set-rpath "\$ORIGIN/$(realpath --relative-to="$(dirname "$shared")" "$libraries")" "$shared"
find "$root/usr/share/man" -name '*.1' -exec gzip -9n {} +
cp LICENSE "$root/usr/share/doc/tessera/copyright"
python3 scripts/sbom.py "$build" >"$root/usr/share/doc/tessera/sbom.cdx.json"
# dpkg-shlibdeps wants to stand in a source package
mkdir -p "$work/source/debian"
printf 'Source: tessera\n\nPackage: tessera\nArchitecture: any\n' >"$work/source/debian/control"
depends=$(cd "$work/source" && dpkg-shlibdeps -O --ignore-missing-info -l"$libraries" "${programs[@]/#/-e}" \
  "$libraries"/*.so* 2>/dev/null | sed -nE 's/^shlibs:Depends=//p')
[ -n "$depends" ] || { echo "package_deb.sh: no dependencies were found" >&2; exit 1; }
cat >"$root/DEBIAN/control" <<END
Package: tessera
Version: $version
Architecture: $architecture
Section: science
Priority: optional
Maintainer: The tessera authors <tessera@localhost>
Installed-Size: $(du -sk "$root/usr" | cut -f1)
Depends: $depends
Recommends: libcurl4
Description: Transformers and their successors as data
 Trains, fine-tunes, runs, serves and measures Transformer architectures and what came after them, each
 a JSON spec made of parts, on a CPU. Reads and writes Hugging Face folders and GGUF files.
END
mkdir -p "$out"
dpkg-deb --root-owner-group -Zzstd -z"${TESSERA_DEB_LEVEL:-9}" --build "$root" "$out" >/dev/null
ls "$out"/tessera_*.deb
