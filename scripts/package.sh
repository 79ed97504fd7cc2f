#!/usr/bin/env bash
# A wheel of what is built: the module, the library, the commands. It holds no libtorch: it depends on
# PyPI's torch of the version that it was built with, whose libraries it finds next to itself.
#
#   scripts/package.sh BUILD PYTHON OUT     PYTHON has the package `wheel`
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1 python=$2 out=$3
version=$(sed -nE 's/.*kVersion = "(.*)".*/\1/p' src/tessera/base/version.h)
torch=$(sed -nE 's/^.*TORCH_VERSION_MAJOR ([0-9]+).*/\1/p; s/^.*TORCH_VERSION_MINOR ([0-9]+).*/\1/p' \
  "$(sed -nE 's/^Torch_INCLUDE_DIR:PATH=//p' "$build/CMakeCache.txt")/torch/headeronly/version.h" | paste -sd.)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/prefix" --strip >/dev/null
root="$work/tessera-$version"
info="$root/tessera-$version.dist-info"
mkdir -p "$root" "$info"
cp -r python/tessera "$root/tessera"
rm -rf "$root/tessera/__pycache__"
mkdir "$root/tessera/bin" "$root/tessera/lib"
cp "$work/prefix/bin/tessera" "$work/prefix/bin/tessera-tensors" "$root/tessera/bin"
cp -L "$(find "$work/prefix" -name libtessera.so)" "$root/tessera/lib/libtessera.so"
# of this machine nothing stays: libtorch is that of the environment that the wheel is installed in
patchelf --set-rpath '$ORIGIN/../../torch/lib' "$root/tessera/bin/tessera-tensors" "$root/tessera/lib/libtessera.so"
cp LICENSE "$info/LICENSE"
mkdir "$info/sboms"
python3 scripts/sbom.py "$build" >"$info/sboms/tessera.cdx.json"
cat >"$info/METADATA" <<END
Metadata-Version: 2.1
Name: tessera
Version: $version
Summary: Transformers and their successors as data: train, fine-tune, run, serve and measure them on a CPU
License: Apache-2.0
Requires-Python: >=3.9
Requires-Dist: torch==$torch.*
Description-Content-Type: text/markdown

$(cat README.md)
END
printf 'Wheel-Version: 1.0\nGenerator: tessera\nRoot-Is-Purelib: false\nTag: py3-none-%s\n' \
  "$("$python" -c 'import platform, sysconfig; print("manylinux_2_" + platform.libc_ver()[1].split(".")[1] + "_" + platform.machine())')" >"$info/WHEEL"
printf '[console_scripts]\ntessera = tessera.command:main\n' >"$info/entry_points.txt"
mkdir -p "$out"
"$python" -m wheel pack "$root" --dest-dir "$out" >/dev/null
ls "$out"/*.whl
