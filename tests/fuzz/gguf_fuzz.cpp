// A GGUF file of any content; what is read and written again, whole or in parts, is read as it was.
#include "files.h"
#include "tensors.h"

#include "tessera/format/gguf.h"

using namespace tessera;
using format::GgufType;
using format::GgufValue;

namespace {

// Every accessor that fits the type, nested arrays included.
void touch(const GgufValue& value) {
  fuzz::check(value.text().find('\n') == std::string::npos, "a value is shown on one line");
  switch (value.type()) {
    case GgufType::string:
      value.as_string();
      return;
    case GgufType::boolean:
      value.as_bool();
      return;
    case GgufType::array:
      break;
    default:
      value.as_f64();
      return;
  }
  switch (value.element_type()) {
    case GgufType::string:
      fuzz::check(value.as_strings().size() == value.size(), "all strings");
      return;
    case GgufType::boolean:
      fuzz::check(value.as_bools().size() == value.size(), "all booleans");
      return;
    case GgufType::array: {
      const auto elements = value.elements();
      fuzz::check(elements.size() == value.size(), "all elements");
      for (const GgufValue& element : elements) touch(element);
      return;
    }
    default:
      fuzz::check(value.as_numbers().size() == value.size(), "all numbers");
      return;
  }
}

void check_same(const format::GgufFile& file, const format::GgufFile& written) {
  for (const auto& entry : file.metadata.entries()) {
    if (entry.key.starts_with("split.")) continue;
    const GgufValue* value = written.metadata.find(entry.key);
    fuzz::check(value != nullptr && value->type() == entry.value.type() &&
                    std::ranges::equal(value->encoded(), entry.value.encoded()),
                "every entry is written");
  }
  const auto &before = file.tensors.tensors(), &after = written.tensors.tensors();
  fuzz::check(before.size() == after.size(), "every tensor is written");
  for (size_t i = 0; i < before.size(); ++i)
    fuzz::check(before[i].name == after[i].name && before[i].dtype == after[i].dtype &&
                    before[i].shape == after[i].shape &&
                    std::ranges::equal(before[i].data, after[i].data),
                "every tensor is as it was");
}

void write_and_read(const format::GgufFile& file) {
  static const fuzz::Folder folder;
  std::vector<format::GgufTensor> heads;
  for (const auto& tensor : file.tensors.tensors())
    heads.push_back({tensor.name, tensor.dtype, tensor.shape});
  for (const int64_t most : {0, 64})
    fuzz::run(
        [&] {
          const auto paths = format::write_gguf_parts(
              folder.path() / "out.gguf", file.metadata.entries(), heads,
              [&](size_t i) { return file.tensors.tensors()[i].data; }, most);
          check_same(file, format::open_gguf(paths.front()));
          for (const auto& path : paths) std::filesystem::remove(path);
        },
        {ErrorKind::usage});
}

}  // namespace

TESSERA_FUZZ_TARGET(gguf) {
  fuzz::run([&] {
    const format::GgufFile file = format::read_gguf(input, "fuzz");
    write_and_read(file);
    fuzz::check_tensors(file.tensors, input);
    for (const auto& entry : file.metadata.entries()) {
      touch(entry.value);
      fuzz::check(file.metadata.find(entry.key) == &entry.value, "every key is found");
      fuzz::run([&] { file.metadata.get_u64(entry.key); });
      fuzz::run([&] { file.metadata.get_integers(entry.key); });
    }
  });
}
