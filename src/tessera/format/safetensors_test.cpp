#include "tessera/format/safetensors.h"

#include <gtest/gtest.h>

#include "tessera/format/test_support.h"

namespace tessera::format::safetensors_test {
namespace {

using test::bytes_of;
using test::ByteString;
using test::error_of;
using test::expect_error;
using test::TemporaryFolder;

std::string file_of(std::string_view header, size_t data) {
  return ByteString().sized(header).zeros(data).text();
}

TensorFile read(std::string_view text) {
  return read_safetensors(bytes_of(text), "x.safetensors");
}

constexpr std::string_view kTwo =
    R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
    R"("b":{"dtype":"U8","shape":[1,3],"data_offsets":[8,11]}})";

TEST(Safetensors, ReadsTensorsAndMetadata) {
  const std::string bytes = file_of(kTwo, 11);
  const TensorFile file = read(bytes);
  ASSERT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.tensors()[0].name, "a");
  EXPECT_EQ(file.at("b").shape, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(file.at("b").data.data(), bytes_of(bytes).data() + bytes.size() - 3);
  EXPECT_EQ(file.metadata().at("k"), "v");
  EXPECT_EQ(file.find("c"), nullptr);
}

TEST(Safetensors, RefusesEveryPrefix) {
  test::expect_prefixes_refused(file_of(kTwo, 11), read);
}

TEST(Safetensors, SaysWhichRuleIsBroken) {
  const auto one = [](std::string_view tensor, size_t data = 8) {
    return file_of(fmt::format(R"({{"a":{}}})", tensor), data);
  };
  const auto two = [](int begin, int end) {
    return file_of(fmt::format(R"({{"a":{{"dtype":"F32","shape":[2],"data_offsets":[0,8]}},)"
                               R"("b":{{"dtype":"F32","shape":[2],"data_offsets":[{},{}]}}}})",
                               begin, end),
                   16);
  };
  std::string rank(65 * 2, '1');
  for (size_t i = 1; i < rank.size(); i += 2) rank[i] = ',';
  rank.pop_back();
  test::expect_refused(
      {
          {"empty", "",
           "[safetensors] x.safetensors: byte 0: the file ends inside the header length: 0 bytes "
           "left; expected 8"},
          {"length too large", ByteString().number(uint64_t{100'000'001}).text(),
           "header of 100000001 bytes; at most 100000000"},
          {"length beyond the file", ByteString().number(uint64_t{3}).raw("{}").text(),
           "ends inside the header: 2 bytes left; expected 3"},
          {"not an object", file_of("[]", 0), "the header begins with \"[\"; expected {"},
          {"no header", file_of("", 0), "the header begins with nothing"},
          {"byte order mark", file_of("\xef\xbb\xbf{}", 0), "the header begins with \"\\xef\""},
          {"zero byte", file_of(std::string_view("{}\0\0", 4), 0),
           "zero byte at byte 2 of the header"},
          {"bad JSON", file_of("{]", 0), "invalid JSON"},
          {"duplicate tensor", file_of(R"({"a\n":1,"a\n":2})", 0), R"(key "a\n" appears twice)"},
          {"too deep", file_of(R"({"a":{"shape":[[]]}})", 0), "nested deeper than 3"},
          {"metadata", file_of(R"({"__metadata__":[]})", 0),
           "__metadata__ is an array; expected an object of strings"},
          {"metadata value", file_of(R"({"__metadata__":{"k":1}})", 0),
           "__metadata__ \"k\" is an integer; expected a string"},
          {"tensor", one("7"), "tensor \"a\" is an integer; expected an object"},
          {"unknown key", one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1})"),
           "unknown key \"x\""},
          {"no dtype", one(R"({"shape":[2],"data_offsets":[0,8]})"), "tensor \"a\": no dtype"},
          {"no shape", one(R"({"dtype":"F32","data_offsets":[0,8]})"), "tensor \"a\": no shape"},
          {"no offsets", one(R"({"dtype":"F32","shape":[2]})"), "tensor \"a\": no data_offsets"},
          {"dtype", one(R"({"dtype":1,"shape":[2],"data_offsets":[0,8]})"),
           "dtype is an integer; expected a string"},
          {"dtype name", one(R"({"dtype":"F33","shape":[2],"data_offsets":[0,8]})"),
           "unknown dtype \"F33\""},
          {"shape", one(R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})"),
           "shape is an integer; expected an array"},
          {"axis", one(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"),
           "shape holds -2; expected integers"},
          {"axis 2^63",
           one(R"({"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,8]})"),
           "shape holds 9223372036854775808"},
          {"rank",
           one(fmt::format(R"({{"dtype":"F32","shape":[{}],"data_offsets":[0,4]}})", rank), 4),
           "65 axes; at most 64"},
          {"three offsets", one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8,8]})"),
           "data_offsets has 3 numbers; expected 2"},
          {"backwards", one(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"),
           "data_offsets [8, 0] run backwards"},
          {"late start", one(R"({"dtype":"F32","shape":[2],"data_offsets":[4,12]})", 12),
           "begins at byte 4 of the data; expected 0"},
          {"gap", two(12, 20), "tensor \"b\" begins at byte 12 of the data; expected 8"},
          {"overlap", two(4, 12), "tensor \"b\" begins at byte 4 of the data; expected 8"},
          {"beyond the end", one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,12]})"),
           "ends at byte 12 of the data; the file holds 8"},
          {"count overflows",
           one(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]})"),
           "overflows 64 bits"},
          {"bytes overflow",
           one(R"({"dtype":"F32","shape":[4611686018427387906],"data_offsets":[0,8]})"),
           "overflows 64 bits"},
          {"half a byte", one(R"({"dtype":"F4","shape":[3],"data_offsets":[0,1]})", 1),
           "not a whole number of bytes"},
          {"size", one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"),
           "shape [3] of F32 takes 12 bytes, data_offsets [0, 8] give 8"},
          {"rest", one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})", 9),
           "9 bytes of data, of which tensors cover 8"},
      },
      read);
}

TEST(Safetensors, UnsupportedTypesHarmNobodyUntilAskedFor) {
  const std::string bytes = file_of(R"({"a":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]},)"
                                    R"("b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
                                    3);
  const TensorFile file = read(bytes);
  EXPECT_EQ(file.tensors().size(), 1u);
  ASSERT_EQ(file.unsupported().size(), 1u);
  EXPECT_EQ(file.unsupported()[0].type, "F8_E4M3");
  EXPECT_EQ(file.unsupported()[0].data.size(), 2u);
  EXPECT_NE(file.find("b"), nullptr);
  EXPECT_EQ(error_of([&] { file.find("a"); }),
            "[safetensors] x.safetensors: tensor \"a\" has type F8_E4M3, which is not supported; "
            "convert it first");
}

TEST(Safetensors, MissingTensorNamesTheNearest) {
  const std::string bytes =
      file_of(R"({"layers.0.q":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0);
  EXPECT_EQ(
      error_of([&] { read(bytes).at("layer.0.q"); }),
      "[safetensors] x.safetensors: no tensor \"layer.0.q\" among 1; nearest is \"layers.0.q\"");
}

TEST(Safetensors, ViewsKeepTheFileMapped) {
  const TemporaryFolder folder;
  folder.write("x.safetensors",
               file_of(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})", 0) + "abc");
  TensorView view;
  {
    view = open_safetensors(folder / "x.safetensors").at("a");
    std::filesystem::remove(folder / "x.safetensors");
  }
  EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(view.data.data()), 3), "abc");
}

// ---- writing

TensorView text_tensor(std::string name, std::string_view text) {
  return {std::move(name), DType::u8, {static_cast<int64_t>(text.size())}, bytes_of(text)};
}

TEST(SafetensorsWriter, RefusesWhatTheFormatCannotHold) {
  const TemporaryFolder folder;
  const std::string block(18, '\0');
  const auto refused = [&](std::vector<TensorView> tensors, const StringMap& metadata = {},
                           ErrorKind kind = ErrorKind::usage) {
    expect_error(kind, "", [&] { write_safetensors(folder / "x", tensors, metadata); });
  };
  refused({{"q", DType::q4_0, {32}, bytes_of(block)}});
  refused({text_tensor("a", "x"), text_tensor("a", "y")});
  refused({text_tensor("__metadata__", "x")});
  refused({text_tensor("\xff", "x")});
  refused({text_tensor("a", "x")}, {{"k", "\xff"}});
  refused({{"a", DType::f32, {2}, bytes_of("1234")}}, {}, ErrorKind::internal);
  EXPECT_TRUE(folder.names().empty());
}

TEST(SafetensorsWriter, FullDiskLeavesTheOldFileAlone) {
  const TemporaryFolder folder;
  folder.write("x", "old");
  const auto write = [&] {
    const tessera::test::SmallFiles full(16);
    write_safetensors(folder / "x", std::vector{text_tensor("a", "x")});
  };
  expect_error(ErrorKind::resource, "cannot write: File too large", write);
  EXPECT_EQ(folder.names(), std::vector<std::string>{"x"});
  EXPECT_EQ(read_text_file(folder / "x"), "old");
}

TEST(SafetensorsWriter, MissingFolderIsAResourceError) {
  expect_error(ErrorKind::resource, "/nonexistent/x",
               [] { write_safetensors("/nonexistent/x", {}); });
}

TEST(SafetensorsWriter, ReplacesAFileWhileItIsRead) {
  const TemporaryFolder folder;
  write_safetensors(folder / "x", std::vector{text_tensor("a", "first")});
  const TensorFile first = open_safetensors(folder / "x");
  write_safetensors(folder / "x", first.tensors());
  EXPECT_EQ(open_safetensors(folder / "x").at("a").data.size(), 5u);
  EXPECT_EQ(first.at("a").data[0], std::byte{'f'});
}

}  // namespace
}  // namespace tessera::format::safetensors_test
