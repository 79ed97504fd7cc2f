#include "tessera/train/runs/tensorboard_file.h"

#include <array>
#include <bit>

namespace tessera::train {
namespace {

std::array<uint32_t, 256> crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t rest = i;
    for (int bit = 0; bit < 8; ++bit)
      rest = (rest >> 1) ^ ((rest & 1) != 0 ? 0x82f63b78U : 0);  // Castagnoli, bits reversed
    table[i] = rest;
  }
  return table;
}

void put_fixed(std::string& out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
}

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7f) | 0x80);
  out += static_cast<char>(value);
}

// wire types of protocol buffers
constexpr uint64_t kVarint = 0, kEight = 1, kBytes = 2, kFour = 5;

void put_tag(std::string& out, uint64_t field, uint64_t type) {
  put_varint(out, field << 3 | type);
}

void put_bytes(std::string& out, uint64_t field, std::string_view bytes) {
  put_tag(out, field, kBytes);
  put_varint(out, bytes.size());
  out += bytes;
}

std::string event_of(double wall_time) {
  std::string event;
  put_tag(event, 1, kEight);
  put_fixed(event, std::bit_cast<uint64_t>(wall_time), 8);
  return event;
}

std::string record_of(std::string_view bytes) {
  const auto masked = [](std::string_view of) { return std::rotr(crc32c(of), 15) + 0xa282ead8U; };
  std::string record;
  put_fixed(record, bytes.size(), 8);
  put_fixed(record, masked(record), 4);
  record += bytes;
  put_fixed(record, masked(bytes), 4);
  return record;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static const std::array<uint32_t, 256> table = crc_table();
  uint32_t crc = 0xffffffffU;
  for (const char byte : bytes) crc = (crc >> 8) ^ table[(crc ^ static_cast<uint8_t>(byte)) & 0xff];
  return ~crc;
}

std::string first_event(double wall_time) {
  std::string event = event_of(wall_time);
  put_bytes(event, 3, "brain.Event:2");
  return record_of(event);
}

std::string scalars_event(double wall_time,
                          int64_t step,
                          const std::vector<std::pair<std::string, double>>& values) {
  std::string summary;
  for (const auto& [tag, number] : values) {
    std::string value;
    put_bytes(value, 1, tag);
    put_tag(value, 2, kFour);
    put_fixed(value, std::bit_cast<uint32_t>(static_cast<float>(number)), 4);
    put_bytes(summary, 1, value);
  }
  std::string event = event_of(wall_time);
  put_tag(event, 2, kVarint);
  put_varint(event, static_cast<uint64_t>(step));
  put_bytes(event, 5, summary);
  return record_of(event);
}

}  // namespace tessera::train
