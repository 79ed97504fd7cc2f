// Check values: CRC-32C of "123456789" (RFC 3720's polynomial) and of the four vectors of RFC 3720,
// B.4; the bytes of an event as the package tensorboard serialises and frames it (tensorboard 2.21:
// EventFileWriter; tools/golden/tensorboard_check.py reads whole files back).
#include "tessera/train/runs/tensorboard_file.h"

#include <gtest/gtest.h>

namespace tessera::train::tensorboard_file_test {
namespace {

TEST(EventFile, Crc32c) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  std::string rising, falling;
  for (int i = 0; i < 32; ++i) rising += static_cast<char>(i), falling += static_cast<char>(31 - i);
  EXPECT_EQ(crc32c(rising), 0x46dd794eU);
  EXPECT_EQ(crc32c(falling), 0x113fdb5cU);
}

std::string hex(const std::string& bytes) {
  std::string out;
  for (const char byte : bytes) {
    out += "0123456789abcdef"[static_cast<uint8_t>(byte) >> 4];
    out += "0123456789abcdef"[static_cast<uint8_t>(byte) & 15];
  }
  return out;
}

TEST(EventFile, BytesOfTensorboard) {
  EXPECT_EQ(hex(first_event(1.5)),
            "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c");
  EXPECT_EQ(hex(scalars_event(2.25, 300, {{"loss", 0.5}, {"lr", 1e-3}})),
            "2600000000000000734fe30009000000000000024010ac022a180a0b0a046c6f7373150000003f0a"
            "090a026c72156f12833a381ffa6b");
}

}  // namespace
}  // namespace tessera::train::tensorboard_file_test
