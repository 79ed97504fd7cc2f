#!/usr/bin/env bash
# A wheel of what is built: the module, the library, the commands, what plugins are built with, and the shared
# libraries that they link but libtorch and those of every Linux. It depends on PyPI's torch of the version
# that it was built with, whose libraries it finds next to itself.
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
# what plugins are built with (find_package(tessera COMPONENTS plugin))
mkdir -p "$root/tessera/include" "$root/tessera/lib/cmake/tessera" "$root/tessera/share"
cp -r "$work/prefix/include/tessera-plugin" "$root/tessera/include"
cp -r "$work/prefix/share/tessera" "$root/tessera/share"
for file in tesseraConfig tesseraConfigVersion tesseraPlugin; do
  cp "$(find "$work/prefix" -name "$file.cmake")" "$root/tessera/lib/cmake/tessera"
done
# of this machine nothing stays: libtorch is that of the environment that the wheel is installed in
sed -i 's/^set(_tessera_torch ".*")$/set(_tessera_torch "")/' "$root/tessera/lib/cmake/tessera/tesseraPlugin.cmake"
cp LICENSE "$info/LICENSE"
mkdir "$info/licenses"
torch_folder=$(dirname "$(sed -nE 's/^Torch_LIBRARY:FILEPATH=//p' "$build/CMakeCache.txt")")
ldd "$root/tessera/lib/libtessera.so" "$root/tessera/bin/tessera" "$root/tessera/bin/tessera-tensors" |
  sed -nE 's/^\t.* => (\/[^ ]+) .*/\1/p' | sort -u | while read -r library; do
  case $library in
    "$torch_folder"/*|*/libcudart.so.*|*/libcupti.so.*) continue ;;
    */libc.so.6|*/libm.so.6|*/libdl.so.2|*/librt.so.1|*/libpthread.so.0|*/libutil.so.1|*/ld-linux*) continue ;;
    */libstdc++.so.6|*/libgcc_s.so.1|*/libgomp.so.1) continue ;;
  esac
  name=$(basename "$library")
  cp -L "$library" "$root/tessera/lib/$name"
  patchelf --set-rpath '$ORIGIN' "$root/tessera/lib/$name"
  package=$(dpkg -S "*/$(basename "$(readlink -f "$library")")" | head -n 1 | cut -d: -f1)
  cp "/usr/share/doc/$package/copyright" "$info/licenses/$package"
done
patchelf --set-rpath '$ORIGIN/../lib:$ORIGIN/../../torch/lib' "$root/tessera/bin/tessera" "$root/tessera/bin/tessera-tensors"
patchelf --set-rpath '$ORIGIN:$ORIGIN/../../torch/lib' "$root/tessera/lib/libtessera.so"
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
