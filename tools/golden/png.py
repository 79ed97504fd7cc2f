"""Small PNG files in all filters, blocks, colours and depths.

    python tools/golden/png.py tests/golden/png

The encoder follows the specification (W3C, PNG 2nd edition); compression and check sums are Python's zlib.
"""

import pathlib
import random
import struct
import sys
import zlib

CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def predicted(filter_type, left, above, corner):
    if filter_type < 4:
        return [0, left, above, (left + above) // 2][filter_type]
    p = left + above - corner
    a, b, c = abs(p - left), abs(p - above), abs(p - corner)
    return left if a <= b and a <= c else above if b <= c else corner


def png(width, height, depth, colour, rows, filters, level=9, palette=b"", strategy=0, split=False, interlaced=0):
    step, raw, before = max(1, CHANNELS[colour] * depth // 8), b"", bytes(len(rows[0]))
    for row, kind in zip(rows, filters):
        raw += bytes([kind])
        for i, value in enumerate(row):
            left, corner = (row[i - step], before[i - step]) if i >= step else (0, 0)
            raw += bytes([value - predicted(kind, left, before[i], corner) & 255])
        before = row
    made = zlib.compressobj(level, zlib.DEFLATED, 15, 9, strategy)
    stream = made.compress(raw) + made.flush()
    out = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced))
    if palette:
        out += chunk(b"PLTE", palette)
    for part in [stream[:7], stream[7:]] if split else [stream]:
        out += chunk(b"IDAT", part)
    return out + chunk(b"IEND", b"")


def value(i):
    return (i * i * 7 + i * 13 + 5) & 255


colours = [bytes(value(y * 15 + i) for i in range(15)) for y in range(5)]
random.seed(1)
letters = [bytes(random.choice(b"abcdefgh") for _ in range(300)) for _ in range(30)]
files = {
    "rgb8": png(5, 5, 8, 2, colours, [0, 1, 2, 3, 4], split=True),
    "stored": png(5, 5, 8, 2, colours, [4, 3, 2, 1, 0], level=0),
    "fixed": png(40, 20, 8, 0, [bytes([y] * 40) for y in range(20)], [0] * 20, strategy=zlib.Z_FIXED),
    "grey1": png(10, 2, 1, 0, [bytes([0b10110011, 0b01000000]), bytes([0xFF, 0xC0])], [0, 2]),
    "palette2": png(3, 1, 2, 3, [bytes([0b00011000])], [0], palette=bytes(range(1, 10))),
    "grey_alpha16": png(2, 1, 16, 4, [bytes([10, 200, 1, 2, 30, 40, 5, 6])], [0]),
    "rgba8": png(1, 2, 8, 6, [bytes([1, 2, 3, 4]), bytes([5, 6, 7, 8])], [1, 4]),
    "letters": png(300, 30, 8, 0, letters, [0] * 30),
    "interlaced": png(5, 5, 8, 2, colours, [0] * 5, interlaced=1),
}
for name, data in files.items():
    (pathlib.Path(sys.argv[1]) / f"{name}.png").write_bytes(data)
