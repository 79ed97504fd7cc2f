"""Packs the goldens of the checkpoint families: one archive a family.

    python tools/golden/pack_families.py [FAMILY ...] [--check]

tests/golden/families/FAMILY is what the generators write and the tests read; git ignores it. The repository holds
tests/golden/archives/FAMILY.tar.xz, which configuring the build unpacks there (cmake/Goldens.cmake). This writes the archives
of folders that say something else than their archive, or have none; a second run writes nothing. The same files give the same
bytes, whatever their times and owners (of the same liblzma). --check only names what differs, with exit status 1.
"""

import argparse
import hashlib
import io
import lzma
import os
import pathlib
import sys
import tarfile

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"
FOLDERS, ARCHIVES, STAMPS = GOLDEN / "families", GOLDEN / "archives", GOLDEN / "archives" / ".unpacked"

# numbers of 4 bytes in rows: their place within the number says more than the byte before
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 1, "lp": 2, "pb": 2}]


def files_of(folder):
    """{name below the folder's parent: bytes} of all its files."""
    files = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder.parent).as_posix()
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            sys.exit(f"[{name}] kind: neither file nor folder; expected plain files")
        if path.is_file():
            files[name] = path.read_bytes()
    return files


def files_in(archive):
    """What files_of gave when the archive was packed; None if there is none."""
    if not archive.exists():
        return None
    with tarfile.open(archive, "r:xz") as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}


def packed(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(files):
            member = tarfile.TarInfo(name)  # time and owner 0, mode 0644
            member.size = len(files[name])
            tar.addfile(member, io.BytesIO(files[name]))
    return lzma.compress(out.getvalue(), format=lzma.FORMAT_XZ, check=lzma.CHECK_CRC64, filters=FILTERS)


def write_whole(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(data)
    os.replace(partial, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("family", nargs="*", help="these only")
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if something differs")
    options = parser.parse_args()
    known = sorted(path.name for path in FOLDERS.iterdir() if path.is_dir()) if FOLDERS.exists() else []
    for name in options.family:
        if name not in known:
            sys.exit(f"[{FOLDERS / name}] family: no such folder; expected one of {', '.join(known) or 'none'}")
    different = 0
    for name in options.family or known:
        archive, files = ARCHIVES / f"{name}.tar.xz", files_of(FOLDERS / name)
        if files != files_in(archive):
            different += 1
            size = sum(map(len, files.values()))
            if options.check:
                print(f"{name}: its folder is not what its archive holds")
                continue
            data = packed(files)
            write_whole(archive, data)
            print(f"{name}: {len(files)} files, {size / 1e3:.0f} kB, packed {len(data) / 1e3:.0f} kB")
        if not options.check:  # so that the build does not unpack what is there
            write_whole(STAMPS / name, hashlib.sha256(archive.read_bytes()).hexdigest().encode())
    if options.check and different:
        sys.exit(1)


if __name__ == "__main__":
    main()
