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

}  // namespace

TESSERA_FUZZ_TARGET(gguf) {
  fuzz::run([&] {
    const format::GgufFile file = format::read_gguf(input, "fuzz");
    fuzz::check_tensors(file.tensors, input);
    for (const auto& entry : file.metadata.entries()) {
      touch(entry.value);
      fuzz::check(file.metadata.find(entry.key) == &entry.value, "every key is found");
      fuzz::run([&] { file.metadata.get_u64(entry.key); });
      fuzz::run([&] { file.metadata.get_integers(entry.key); });
    }
  });
}
