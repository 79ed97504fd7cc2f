#!/usr/bin/env python3
"""What a build of tessera is made of, as CycloneDX 1.5: sbom.py BUILD

Versions are those of the machine that built it; licences are the SPDX names that the projects give.
"""
import json
import os
import re
import subprocess
import sys

# name, Debian package, licence, how it is part of the program
LIBRARIES = [
    ("fmt", "libfmt-dev", "MIT", "linked"),
    ("nlohmann-json", "nlohmann-json3-dev", "MIT", "compiled in"),
    ("CLI11", "libcli11-dev", "BSD-3-Clause", "compiled in"),
    ("highway", "libhwy-dev", "Apache-2.0", "linked"),
    ("utf8proc", "libutf8proc-dev", "MIT", "linked"),
    ("pcre2", "libpcre2-dev", "BSD-3-Clause", "linked"),
    ("libedit", "libedit-dev", "BSD-3-Clause", "linked"),
    ("libbsd", "libbsd0", "BSD-3-Clause", "linked by libedit"),
    ("libmd", "libmd0", "BSD-3-Clause", "linked by libbsd"),
    ("ncurses", "libtinfo6", "X11-distribute-modifications-variant", "linked by libedit"),
    ("simdjson", "libsimdjson-dev", "Apache-2.0", "linked"),
    ("boost", "libboost1.81-dev", "BSL-1.0", "compiled in"),
    ("curl", "libcurl4-openssl-dev", "curl", "opened by `tessera pull`"),
]


def package_version(package: str) -> str:
    found = subprocess.run(["dpkg-query", "-W", "-f=${Version}", package], capture_output=True, text=True)
    if found.returncode != 0 or not found.stdout:
        sys.exit(f"sbom.py: {package} is not installed; scripts/setup.sh installs it")
    return found.stdout


def torch_version(build: str) -> str:
    with open(os.path.join(build, "CMakeCache.txt")) as cache:
        include = re.search(r"^Torch_INCLUDE_DIR:PATH=(.*)$", cache.read(), re.M).group(1)
    with open(os.path.join(include, "torch/headeronly/version.h")) as header:
        text = header.read()
    return ".".join(re.search(rf"TORCH_VERSION_{part} (\d+)", text).group(1) for part in ("MAJOR", "MINOR", "PATCH"))


def component(name: str, version: str, licence: str, how: str, purl: str) -> dict:
    kind = {"id": licence}
    return {"type": "library", "name": name, "version": version, "licenses": [{"license": kind}], "purl": purl,
            "properties": [{"name": "tessera:use", "value": how}]}


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__.splitlines()[0])
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    with open(os.path.join(here, "src/tessera/base/version.h")) as header:
        version = re.search(r'kVersion = "(.*)"', header.read()).group(1)
    torch = torch_version(sys.argv[1])
    components = [component("libtorch", torch, "BSD-3-Clause", "linked", f"pkg:pypi/torch@{torch}")]
    for name, package, licence, how in LIBRARIES:
        found = package_version(package)
        components.append(component(name, found, licence, how, f"pkg:deb/debian/{package}@{found}"))
    print(json.dumps({
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {"component": {"type": "application", "name": "tessera", "version": version,
                                   "licenses": [{"license": {"id": "Apache-2.0"}}]}},
        "components": components}, indent=2))


if __name__ == "__main__":
    main()
