#include "tessera/format/torch_file.h"

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/format/torch_testing.h"
#include "tessera/spec/json.h"

namespace tessera::format::torch_file_test {
namespace {

using namespace std::string_literals;
using test::bytes_of;
using test::ByteString;
using test::dictionary;
using test::error_of;
using test::legacy_file;
using test::PickleText;
using test::tensor_pickle;
using test::TensorCase;
using test::torch_zip;
using test::ZipFile;
using test::ZipText;
using Shape = std::vector<int64_t>;

TensorFile read(std::string_view text, std::vector<std::string>* notes = nullptr) {
  return read_torch_file(bytes_of(text), "x.bin", nullptr, notes);
}

std::string floats(int count) {
  ByteString out;
  for (int i = 0; i < count; ++i) out.number(static_cast<float>(i));
  return out.text();
}

std::vector<float> values(const TensorView& tensor) {
  std::vector<float> numbers(tensor.data.size() / sizeof(float));
  if (!numbers.empty()) std::memcpy(numbers.data(), tensor.data.data(), tensor.data.size());
  return numbers;
}

TEST(TorchFile, TensorsAreViewsOfTheFile) {
  const std::string file = torch_zip(dictionary(tensor_pickle()), floats(6)).str();
  const TensorFile tensors = read(file);
  const TensorView& w = tensors.at("w");
  EXPECT_EQ(w.shape, (Shape{2, 3}));
  EXPECT_EQ(w.dtype, DType::f32);
  EXPECT_EQ(values(w), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_GE(reinterpret_cast<const char*>(w.data.data()), file.data());
  EXPECT_LE(reinterpret_cast<const char*>(w.data.data()), file.data() + file.size());
}

TEST(TorchFile, OtherStridesAreCopied) {
  const std::string turned = tensor_pickle({.shape = {3, 2}, .strides = {1, 3}});
  const std::string cut = tensor_pickle({.offset = 1, .shape = {2, 2}, .strides = {3, 1}});
  const std::string wide = tensor_pickle({.shape = {2, 2, 2}, .strides = {0, 3, 1}});
  const std::string file = torch_zip(PickleText()
                                         .op("\x80\x02}(")
                                         .text("turned")
                                         .op(turned)
                                         .text("cut")
                                         .op(cut)
                                         .text("wide")
                                         .op(wide)
                                         .text("again")
                                         .op(turned)
                                         .op("u.")
                                         .str(),
                                     floats(6))
                               .str();
  const TensorFile tensors = read(file);
  EXPECT_EQ(values(tensors.at("turned")), (std::vector<float>{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(values(tensors.at("cut")), (std::vector<float>{1, 2, 4, 5}));
  EXPECT_EQ(values(tensors.at("wide")), (std::vector<float>{0, 1, 3, 4, 0, 1, 3, 4}));
  // a view that stands twice is one copy
  EXPECT_EQ(tensors.at("again").data.data(), tensors.at("turned").data.data());
}

TEST(TorchFile, ReadsTheFormBeforeArchives) {
  const std::string storages = ByteString().number(int64_t{6}).raw(floats(6)).text();
  const std::string file = legacy_file(dictionary(tensor_pickle()), test::kOneStorage, storages);
  EXPECT_EQ(values(read(file).at("w")), (std::vector<float>{0, 1, 2, 3, 4, 5}));
}

// {"epoch": 3, "optimizer": {"m": tensor}, "state_dict": {"net": {"w": tensor}, "b": [tensor]}}
TEST(TorchFile, FindsTheWeightsAmongOtherThings) {
  const std::string tensor = tensor_pickle();
  PickleText file;
  file.op("\x80\x02}(").text("epoch").integer(3);
  file.text("optimizer").op("}(").text("m").op(tensor).op("u");
  file.text("state_dict").op("}(").text("net").op("}(").text("w").op(tensor).op("u");
  file.text("b").op("](").op(tensor).op("eu").op("u.");
  std::vector<std::string> notes;
  const TensorFile tensors = read(torch_zip(file.str()).str(), &notes);
  std::vector<std::string> names;
  for (const TensorView& one : tensors.tensors()) names.push_back(one.name);
  EXPECT_EQ(names, (std::vector<std::string>{"net.w", "b.0"}));
  EXPECT_EQ(notes,
            (std::vector<std::string>{
                "x.bin: the weights are those of \"state_dict\"; not read are \"optimizer\""}));
}

TEST(TorchFile, AnOnlyDictionaryOfTensorsIsTheWeights) {
  PickleText file;
  file.op("\x80\x02}(").text("anything").op("}(").text("w").op(tensor_pickle()).op("u");
  file.text("epoch").integer(3).op("u.");
  EXPECT_EQ(read(torch_zip(file.str()).str()).tensors().front().name, "w");
}

TEST(TorchFile, CrcIsThatOfZip) {
  EXPECT_EQ(crc32(bytes_of("123456789")), 0xcbf43926U);  // its published check value
  EXPECT_EQ(crc32(bytes_of("")), 0U);
  EXPECT_EQ(crc32(bytes_of("a")), 0xe8b7be43U);
  EXPECT_EQ(crc32(bytes_of("The quick brown fox jumps over the lazy dog")), 0x414fa339U);
}

std::string zip_of(std::string pickle) {
  return torch_zip(std::move(pickle)).str();
}
/// A dictionary whose one value is made by these opcodes.
std::string value_of(std::string_view opcodes) {
  return zip_of(dictionary(opcodes));
}
std::string tensor_of(const TensorCase& c) {
  return value_of(tensor_pickle(c));
}
std::string call(std::string_view module, std::string_view name, std::string_view arguments) {
  return value_of(PickleText().global(module, name).op(arguments).op("R").str());
}

/// A pickle that a Python program would run.
std::string running(std::string_view module, std::string_view name) {
  return PickleText()
      .op("\x80\x02")
      .global(module, name)
      .op("(")
      .text("touch never")
      .op("tR.")
      .str();
}

std::vector<test::Malformed> code_that_never_runs() {
  std::vector<test::Malformed> cases;
  for (const auto& [module, name] : {std::pair{"os", "system"},
                                     {"posix", "system"},
                                     {"builtins", "eval"},
                                     {"builtins", "exec"},
                                     {"__builtin__", "eval"},
                                     {"builtins", "__import__"},
                                     {"builtins", "getattr"},
                                     {"subprocess", "Popen"},
                                     {"runpy", "_run_code"},
                                     {"torch", "load"},
                                     {"torch.hub", "load"},
                                     {"torch._utils", "_rebuild_qtensor"},
                                     {"argparse", "Namespace"},
                                     {"numpy.core.multiarray", "_reconstruct"},
                                     {"__main__", "Model"},
                                     {"torch.nn.modules.linear", "Linear"},
                                     {"torch.storage", "_load_from_bytes"},
                                     {"pickle", "loads"}}) {
    const std::string expected = fmt::format("it names \"{}.{}\"", module, name);
    cases.push_back(
        {fmt::format("{} in an archive", expected), zip_of(running(module, name)), expected});
  }
  cases.push_back({"a bare pickle", running("os", "system"), "it names \"os.system\""});
  cases.push_back(
      {"in the older form", legacy_file(running("os", "system")), "it names \"os.system\""});
  cases.push_back({"a name from the stack",
                   zip_of(PickleText().op("\x80\x04\x8c\x02os\x8c\x06system\x93)R.").str()),
                   "it names \"os.system\""});
  cases.push_back({"with INST", zip_of("\x80\x02(ios\nsystem\n."s), "opcode INST"});
  cases.push_back({"with OBJ", zip_of("\x80\x02(o."s), "opcode OBJ"});
  cases.push_back({"with NEWOBJ", zip_of("\x80\x02)\x81."s), "opcode NEWOBJ"});
  cases.push_back({"with EXT1", zip_of("\x80\x02\x82\x01."s), "opcode EXT1"});
  cases.push_back({"with PERSID", zip_of("\x80\x02Pstorage\n."s), "opcode PERSID"});
  cases.push_back({"attributes of a tensor", value_of(tensor_pickle() + "}b"), "sets attributes"});
  cases.push_back({"a call of a number", value_of("K\x01)R"s), "calls a number; expected a name"});
  cases.push_back({"a call with a list",
                   value_of(PickleText().global("torch", "Size").op("]R").str()),
                   "calls \"torch.Size\" with a list"});
  return cases;
}

TEST(TorchFile, CodeIsRefusedByName) {
  test::expect_refused(code_that_never_runs(), [](const std::string& text) { read(text); });
}

/// `n` dictionaries in one another, 50 of them below a key of their own each: a reader that
/// remembers what it has seen of parts sees none of them deep.
std::string chains(int n) {
  std::string heads, inner = tensor_pickle();
  uint8_t memo = 0;
  for (int made = 0; made < n; made += 50) {
    for (int i = 0; i < 50; ++i) inner = "}" + PickleText().text("").op(inner).str() + "s";
    const std::string head = PickleText().text("k" + std::to_string(memo)).op(inner).str();
    heads += head + "q" + std::string(1, static_cast<char>(memo));
    inner = "h" + std::string(1, static_cast<char>(memo++));
  }
  return "\x80\x02}(" + heads + PickleText().text("state_dict").op(inner).str() + "u.";
}

/// OrderedDict of one list of `pairs`, `calls` times.
std::string copied_pairs(int pairs, int calls) {
  std::string list = "](" + PickleText().text("k").op("N\x86q\x01").str();
  for (int i = 1; i < pairs; ++i) list += "h\x01";
  list += "eq\x02";
  std::string out =
      "\x80\x02](" + list + PickleText().global("collections", "OrderedDict").str() + "q\x03";
  for (int i = 0; i < calls; ++i) out += "h\x03h\x02\x85R";
  return out + "e.";
}

std::vector<test::Malformed> malformed_pickles() {
  const std::string good = dictionary(tensor_pickle());
  return {
      {"empty", zip_of(""), "ends inside a pickle"},
      {"without STOP", zip_of(good.substr(0, good.size() - 1)), "ends inside a pickle"},
      {"protocol 0", zip_of("(dp0\n."), "another opcode than PROTO"},
      {"protocol 9", zip_of("\x80\x09N."s), "protocol 9; expected 2 to 5"},
      {"two values", zip_of("\x80\x02NN."s), "ends with 2 values"},
      {"none", zip_of("\x80\x02."s), "ends with 0 values"},
      {"an open mark", zip_of("\x80\x02N(."s), "ends with 1 values"},
      {"tuple of an empty stack", zip_of("\x80\x02\x85."s), "takes 1 values from a stack of 0"},
      {"tuple beyond a mark", zip_of("\x80\x02N(\x85."s), "takes 1 values from a stack of 0"},
      {"no mark", zip_of("\x80\x02Nt."s), "goes back to a mark"},
      {"no dictionary to add to", zip_of("\x80\x02]NNs."s), "adds items to a list"},
      {"a key alone", zip_of("\x80\x02}(Nu."s), "a key without a value"},
      {"memo of nothing", zip_of("\x80\x02h\x05."s), "uses value 5 of its memo"},
      {"memo far away", zip_of("\x80\x02Nr\xff\xff\xff\xffj\xfe\xff\xff\xff."s),
       "uses value 4294967294 of its memo"},
      {"put of nothing", zip_of("\x80\x02q\x05."s), "takes a value from an empty stack"},
      {"a text beyond the file", zip_of("\x80\x02X\xff\xff\xff\x7f."s), "ends inside a text"},
      {"a text of 2^63", zip_of("\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f."s),
       "ends inside a text"},
      {"a name without an end",
       zip_of("\x80\x02"
              "ctorch"s),
       "a name that does not end"},
      {"a name of numbers", zip_of("\x80\x04K\x01K\x01\x93."s), "a name that is no text"},
      {"POP", zip_of("\x80\x02N0."s), "opcode POP"},
      {"an unknown opcode", zip_of("\x80\x02\xff."s), "opcode 0xff"},
      {"ordered pairs of one",
       value_of(PickleText()
                    .global("collections", "OrderedDict")
                    .op("](K\x01\x85"
                        "e\x85R")
                    .str()),
       "other values than a list of pairs"},
      {"a list", zip_of("\x80\x02]."s), "holds a list; expected a dictionary of tensors"},
      {"a tensor alone", zip_of("\x80\x02" + tensor_pickle() + "."), "holds a tensor; expected"},
      {"no tensor", value_of("K\x01"s), "a dictionary without a tensor"},
      {"itself", zip_of("\x80\x02}q\0X\x01\0\0\0ah\0s."s), "a value of the pickle holds itself"},
      {"nested deep",
       zip_of("\x80\x02}(" + PickleText().text("a").op(std::string(100'000, ']')).str() +
              std::string(99'999, 'a') + "u."),
       "nested more than 64 deep"},
      {"nested deep by parts that were seen before", zip_of(chains(1'000)),
       "nested more than 64 deep"},
      {"the pairs of one list again and again", zip_of(copied_pairs(40'000, 1'000)),
       "calls OrderedDict with more than 16000000 pairs in all"},
      {"a part in two places",
       zip_of(PickleText()
                  .op("\x80\x02}(")
                  .text("a")
                  .op("}q\0("s)
                  .text("w")
                  .op(tensor_pickle())
                  .op("u")
                  .text("b")
                  .op("h\0u."s)
                  .str()),
       "stands in two places"},
      {"two tensors of one name",
       zip_of(PickleText()
                  .op("\x80\x02}(")
                  .text("a.w")
                  .op(tensor_pickle())
                  .text("a")
                  .op("}(")
                  .text("w")
                  .op(tensor_pickle())
                  .op("uu.")
                  .str()),
       "two tensors are named \"a.w\""},
      {"a key that is a tuple", zip_of("\x80\x02}()" + tensor_pickle() + "u."),
       "a key of a dictionary"},
      {"a long name", zip_of(dictionary(tensor_pickle(), std::string(2000, 'n'))),
       "has 2001 bytes; at most 1024"}};
}

TEST(TorchFile, MalformedPicklesAreRefused) {
  test::expect_refused(malformed_pickles(), [](const std::string& text) { read(text); });
}

std::vector<test::Malformed> malformed_tensors() {
  const auto metadata = [](std::string_view last) {
    return call("torch._utils", "_rebuild_tensor_v2",
                PickleText()
                    .op("(")
                    .storage("0", 6)
                    .integer(0)
                    .tuple({6})
                    .tuple({1})
                    .op("\x89}")
                    .op(last)
                    .op("t")
                    .str());
  };
  const auto reference = [](std::string_view tuple) {
    return value_of(PickleText().op(tuple).op("Q").str());
  };
  return {
      {"leaves its storage", tensor_of({.shape = {2, 4}, .strides = {4, 1}}),
       "shape [2, 4] with strides [4, 1] from 0 leaves its storage of 6 elements"},
      {"strides beyond", tensor_of({.strides = {4, 1}}), "leaves its storage"},
      {"offset beyond", tensor_of({.offset = 1}), "leaves its storage"},
      {"negative offset", tensor_of({.offset = -1}), "its offset is -1"},
      {"negative stride", tensor_of({.strides = {-3, 1}}), "its strides hold -3"},
      {"negative axis", tensor_of({.shape = {-2, 3}}), "its shape hold -2"},
      {"axes without strides", tensor_of({.strides = {1}}), "2 axes and 1 strides"},
      {"65 axes",
       tensor_of({.shape = std::vector<int32_t>(65, 1), .strides = std::vector<int32_t>(65, 1)}),
       "65 axes; at most 64"},
      {"a shape that overflows",
       tensor_of({.shape = {1 << 30, 1 << 30, 1 << 30}, .strides = {0, 0, 0}}), "overflows"},
      {"strides that overflow", tensor_of({.shape = {2, 1 << 30}, .strides = {1, 2147483647}}),
       "leaves its storage"},
      {"a bomb of zero strides", tensor_of({.shape = {1 << 20, 1 << 10}, .strides = {0, 0}}),
       "takes more than 4 times the file"},
      {"a storage that is not there", tensor_of({.key = "7"}),
       "storage \"7\" is not in the archive"},
      {"a storage outside of the folder", tensor_of({.key = "../data.pkl"}),
       "storage \"../data.pkl\" is not in the archive"},
      {"a storage of another size", tensor_of({.count = 7}),
       "storage \"0\" has 24 bytes; its 7 elements take 28"},
      {"a storage of another type", tensor_of({.type = "DoubleStorage"}),
       "has 24 bytes; its 6 elements take 48"},
      {"a storage of minus one", tensor_of({.count = -1}), "storage \"0\" has -1 elements"},
      {"two types of one storage",
       zip_of(PickleText()
                  .op("\x80\x02}(")
                  .text("a")
                  .op(tensor_pickle())
                  .text("b")
                  .op(tensor_pickle({.type = "IntStorage"}))
                  .op("u.")
                  .str()),
       "storage \"0\" has two types"},
      {"a class that is no storage",
       value_of(PickleText()
                    .op("(")
                    .text("storage")
                    .global("torch", "Size")
                    .text("0")
                    .text("cpu")
                    .integer(6)
                    .op("tQ")
                    .str()),
       "a storage is of class \"torch.Size\""},
      {"a reference of another kind", reference(PickleText().op("(").text("module").op("t").str()),
       "a reference of the pickle is malformed"},
      {"a reference to a number", reference("K\x01"), "a reference of the pickle is malformed"},
      {"a number for a storage", call("torch._utils", "_rebuild_tensor", "(K\x01K\0))t"s),
       "a number in place of a storage"},
      {"three arguments", call("torch._utils", "_rebuild_tensor", "(NNNt"), "3 arguments of"},
      {"a parameter of nothing", call("torch._utils", "_rebuild_parameter", ")"),
       "is made by \"torch._utils._rebuild_parameter\", which gives no tensor"},
      {"a parameter of a number", call("torch._utils", "_rebuild_parameter", "(K\x01\x88Nt"s),
       "a number in place of a tensor"},
      {"parameters of parameters", value_of([] {
         std::string chain = tensor_pickle();
         for (int i = 0; i < 5; ++i)
           chain = PickleText()
                       .global("torch._utils", "_rebuild_parameter")
                       .op("(")
                       .op(chain)
                       .op("\x88NtR")
                       .str();
         return chain;
       }()),
       "a call in place of a tensor"},
      {"a shape of texts",
       call("torch._utils", "_rebuild_tensor",
            PickleText()
                .op("(")
                .storage("0", 6)
                .integer(0)
                .op("(")
                .text("6")
                .op("t")
                .tuple({1})
                .op("t")
                .str()),
       "its shape hold a text"},
      {"a shape that is a number",
       call("torch._utils", "_rebuild_tensor",
            PickleText().op("(").storage("0", 6).integer(0).integer(6).tuple({1}).op("t").str()),
       "its shape are a number"},
      {"a conjugate view", metadata("}X\x04\0\0\0conj\x88s"s), "is a conjugate or negated view"},
      {"a type that is none",
       call("torch._utils", "_rebuild_tensor_v3",
            PickleText()
                .op("(")
                .storage("0", 6)
                .integer(0)
                .tuple({6})
                .tuple({1})
                .op("\x89}K\x01t")
                .str()),
       "names no type"},
      {"an untyped storage without a type",
       call("torch._utils", "_rebuild_tensor",
            PickleText()
                .op("((")
                .text("storage")
                .global("torch.storage", "UntypedStorage")
                .text("0")
                .text("cpu")
                .integer(24)
                .op("tQ")
                .integer(0)
                .tuple({6})
                .tuple({1})
                .op("t")
                .str()),
       "an untyped storage and no type"}};
}

TEST(TorchFile, MalformedTensorsAreRefused) {
  test::expect_refused(malformed_tensors(), [](const std::string& text) { read(text); });
}

std::vector<test::Malformed> malformed_archives() {
  const ZipText good = torch_zip(dictionary(tensor_pickle()));
  const auto with = [&](auto change) {
    ZipText zip = good;
    change(zip);
    return zip.str();
  };
  const auto file = [&](size_t at, auto change) {
    return with([&](ZipText& zip) { change(zip.files[at]); });
  };
  return {
      {"compressed", file(2, [](ZipFile& f) { f.method = 8; }), "is compressed (method 8)"},
      {"a compressed pickle", file(0, [](ZipFile& f) { f.method = 8; }), "is compressed"},
      {"encrypted", file(2, [](ZipFile& f) { f.flags = 1; }), "is encrypted"},
      {"wrong checksum of a storage", file(2, [](ZipFile& f) { f.crc_error = 1; }),
       "zip entry \"a/data/0\" has checksum"},
      {"wrong checksum of the pickle", file(0, [](ZipFile& f) { f.crc_error = 1; }),
       "zip entry \"a/data.pkl\" has checksum"},
      {"two sizes", file(2, [](ZipFile& f) { f.size_error = 1; }), "in its local header"},
      {"packed is not plain", file(2, [](ZipFile& f) { f.packed_error = 1; }),
       "is stored and has two sizes, 25 and 24"},
      {"another local name", file(2, [](ZipFile& f) { f.local_name = "a/data/1"; }),
       "is named \"a/data/1\" in its local header"},
      {"an offset into data", file(2, [](ZipFile& f) { f.shift = 4; }), "no local header at byte"},
      {"an offset beyond", file(2, [](ZipFile& f) { f.shift = 1 << 20; }), "before the directory"},
      {"overlapping parts", with([](ZipText& zip) {
         // the data of one entry are another with a local header of its own
         const ZipFile inner{"a/data/1", std::string(24, '\1')};
         constexpr int64_t kHeader = 30;
         const auto extent = [](const ZipFile& f) {
           return kHeader + std::ssize(f.name) + std::ssize(f.data);
         };
         zip.files[2].data = ZipText{{inner}}.str().substr(0, static_cast<size_t>(extent(inner)));
         int64_t outer = extent(zip.files[0]) + extent(zip.files[1]);
         int64_t end = 0;
         for (const ZipFile& f : zip.files) end += extent(f);
         zip.files.push_back(inner);
         zip.files.back().shift = outer + kHeader + std::ssize(zip.files[2].name) - end;
       }),
       "overlap"},
      {"two of one name", with([](ZipText& zip) { zip.files.push_back(zip.files[1]); }),
       "two zip entries are named \"a/byteorder\""},
      {"two pickles", with([](ZipText& zip) {
         zip.files.push_back({"b/data.pkl", "x"});
       }),
       "holds two pickles"},
      {"no pickle", with([](ZipText& zip) { zip.files.erase(zip.files.begin()); }),
       "without data.pkl"},
      {"a program", with([](ZipText& zip) {
         zip.files.push_back({"a/constants.pkl", "x"});
       }),
       "is a TorchScript program"},
      {"big-endian", file(1, [](ZipFile& f) { f.data = "big"; }), "byte order \"big\""},
      {"more entries", with([](ZipText& zip) { zip.entries_error = 1; }),
       "5 zip entries in a directory of"},
      {"entries without end", with([](ZipText& zip) { zip.entries_error = 60000; }),
       "zip entries in a directory of"},
      {"a directory elsewhere", with([](ZipText& zip) { zip.offset_error = 1; }),
       "the zip directory lies by its record"},
      {"a directory before its place", with([](ZipText& zip) { zip.offset_error = -1; }),
       "holds no entry of the zip directory"},
      {"in parts", with([](ZipText& zip) { zip.disk = 1; }),
       "one part of a zip archive in several"},
      {"cut off", good.str().substr(0, good.str().size() - 30), "has no end record"},
      {"a header alone", "PK\x03\x04", "expected a zip archive of at least"}};
}

TEST(TorchFile, MalformedArchivesAreRefused) {
  test::expect_refused(malformed_archives(), [](const std::string& text) { read(text); });
}

TEST(TorchFile, MalformedFilesOfTheOlderFormAreRefused) {
  const std::string good = dictionary(tensor_pickle());
  const auto keys = [](std::string_view list) {
    return std::string("\x80\x02") + std::string(list) + ".";
  };
  const std::string one =
                        "]X\x01\0\0\0"
                        "0a"s,
                    none = "]",
                    two =
                        "](X\x01\0\0\0"
                        "0X\x01\0\0\0"
                        "0e"s,
                    other =
                        "]X\x01\0\0\0"
                        "7a"s;
  const std::string data = std::string(24, '\1');
  const auto sized = [&](int64_t count, const std::string& bytes) {
    return ByteString().number(count).raw(bytes).text();
  };
  const std::vector<test::Malformed> cases = {
      {"a pickle of another program", "\x80\x02}."s, "is a pickle of a dictionary"},
      {"another version", legacy_file(good, keys(one), sized(6, data), 1002), "another version"},
      {"big-endian", legacy_file(good, keys(one), sized(6, data), 1001, false), "big-endian"},
      {"no list of storages", legacy_file(good, keys("}"), ""),
       "lists its storages as a dictionary"},
      {"a storage is missing", legacy_file(good, keys(none), ""),
       "0 storages are listed; its tensors have 1"},
      {"an unknown storage", legacy_file(good, keys(other), ""), "storage \"7\" is listed"},
      {"a storage twice", legacy_file(good, keys(two), sized(6, data) + sized(6, data)),
       "storage \"0\" is listed twice"},
      {"another size", legacy_file(good, keys(one), sized(5, data)), "has 5 elements"},
      {"a negative size", legacy_file(good, keys(one), sized(-1, data)), "has -1 elements"},
      {"cut off", legacy_file(good, keys(one), sized(6, data.substr(1))),
       "ends inside the bytes of a storage"},
      {"more bytes", legacy_file(good, keys(one), sized(6, data) + "x"), "1 bytes follow"},
      {"a view of a storage",
       legacy_file(dictionary(PickleText()
                                  .global("torch._utils", "_rebuild_tensor_v2")
                                  .op("((")
                                  .text("storage")
                                  .global("torch", "FloatStorage")
                                  .text("0")
                                  .text("cpu")
                                  .integer(6)
                                  .op("(")
                                  .text("1")
                                  .integer(0)
                                  .integer(6)
                                  .op("ttQ")
                                  .integer(0)
                                  .tuple({6})
                                  .tuple({1})
                                  .op("\x89}tR")
                                  .str())),
       "is a view of another"}};
  test::expect_refused(cases, [](const std::string& text) { read(text); });
}

TEST(TorchFile, EveryPrefixIsRefused) {
  const auto refused = [](const std::string& whole) {
    ASSERT_EQ(error_of([&] { read(whole); }), "");
    test::expect_prefixes_refused(whole, [](std::string_view text) { read(text); });
  };
  refused(torch_zip(dictionary(tensor_pickle())).str());
  refused(legacy_file(dictionary(tensor_pickle())));
}

TEST(TorchFile, AFileOfAnotherKindIsRefused) {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "x.bin";
  for (const auto& [bytes, expected] :
       {std::pair{"GGUF and more", "neither as a zip archive nor as a pickle"},
        {"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"}}) {
    std::ofstream(path, std::ios::binary) << bytes;
    EXPECT_NE(error_of([&] { open_torch_file(path); }).find(expected), std::string::npos);
  }
}

// A hundred dictionaries and what PyTorch reads of them: tools/golden/torch_files.py.
TEST(TorchFile, ReadsWhatTorchReads) {
  const auto folder = std::filesystem::path(TESSERA_SOURCE_DIR) / "tests/golden/formats";
  const std::string all = read_text_file(folder / "torch_files.bin");
  const spec::Json golden = spec::read_json_file(folder / "torch_files.json");
  size_t n_tensors = 0;
  for (const spec::Json& one : golden.at("cases")) {
    SCOPED_TRACE(one.at("case").get<std::string>());
    const std::string file = all.substr(one.at("at").get<size_t>(), one.at("bytes").get<size_t>());
    if (one.contains("refused")) {
      EXPECT_NE(error_of([&] { read(file); }).find(one.at("refused").get<std::string>()),
                std::string::npos)
          << error_of([&] { read(file); });
      continue;
    }
    const TensorFile tensors = read(file);
    const spec::Json& expected = one.at("tensors");
    EXPECT_EQ(tensors.tensors().size() + tensors.unsupported().size(), expected.size());
    const auto compare = [&](const std::string& name, std::string_view type, const Shape& shape,
                             std::span<const std::byte> data) {
      ASSERT_TRUE(expected.contains(name)) << name;
      EXPECT_EQ(expected[name].at("type").get<std::string>(), type) << name;
      EXPECT_EQ(expected[name].at("shape").get<Shape>(), shape) << name;
      EXPECT_EQ(expected[name].at("crc32").get<uint32_t>(), crc32(data)) << name;
      EXPECT_EQ(expected[name].at("bytes").get<size_t>(), data.size()) << name;
      ++n_tensors;
    };
    for (const TensorView& t : tensors.tensors()) {
      std::string type(name_of(t.dtype));
      compare(t.name, type, t.shape, t.data);
    }
    for (const UnsupportedTensor& t : tensors.unsupported())
      compare(t.name, t.type, t.shape, t.data);
  }
  EXPECT_EQ(golden.at("cases").size(), 100u);
  EXPECT_GT(n_tensors, 300u);
}

}  // namespace
}  // namespace tessera::format::torch_file_test
