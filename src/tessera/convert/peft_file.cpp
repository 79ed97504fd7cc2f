#include "tessera/convert/peft_file.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/convert/peft.h"
#include "tessera/convert/tensor_ops.h"
#include "tessera/format/safetensors.h"
#include "tessera/format/torch_file.h"

namespace tessera::convert {
namespace {

using format::TensorView;

constexpr std::string_view kVectors = "prompt_embeddings";

/// A tensor's place in a module, by the word that ends the module's name.
struct PartName {
  std::string_view word, end;  // "lora_A", "weight"
  const TensorView* PeftModule::*part;
  PeftKind kind;
  size_t axes;
};
constexpr PartName kPartNames[] = {
    {"lora_A", "weight", &PeftModule::a, PeftKind::lora, 2},
    {"lora_B", "weight", &PeftModule::b, PeftKind::lora, 2},
    {"lora_B", "bias", &PeftModule::bias, PeftKind::lora, 1},
    {"lora_embedding_A", "", &PeftModule::table_a, PeftKind::lora, 2},
    {"lora_embedding_B", "", &PeftModule::table_b, PeftKind::lora, 2},
    {"lora_magnitude_vector", "", &PeftModule::magnitude, PeftKind::lora, 1},
    {"lora_magnitude_vector", "weight", &PeftModule::magnitude, PeftKind::lora, 1},
    {"ia3_l", "", &PeftModule::factors, PeftKind::ia3, 2},
    {"trainable_tokens_delta", "", &PeftModule::tokens, PeftKind::lora, 2},
    {"trainable_tokens_delta", "", &PeftModule::tokens, PeftKind::tokens, 2}};

std::vector<std::string> words_in(std::string_view name) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t dot = std::min(name.find('.', begin), name.size());
    words.emplace_back(name.substr(begin, dot - begin));
    begin = dot + 1;
  }
  return words;
}

bool names_part(const std::string& word) {
  return std::any_of(std::begin(kPartNames), std::end(kPartNames),
                     [&](const PartName& part) { return part.word == word; });
}

const char* names_of_kind(PeftKind kind) {
  switch (kind) {
    case PeftKind::lora:
      return "base_model.model.MODULE.lora_A.weight and .lora_B.weight";
    case PeftKind::ia3:
      return "base_model.model.MODULE.ia3_l";
    case PeftKind::tokens:
      return "base_model.model.MODULE.trainable_tokens_delta";
    default:
      return "prompt_embeddings";
  }
}

class FileReader {
 public:
  FileReader(const format::TensorFile& file, const PeftConfig& config)
      : file_(file), config_(config) {}

  PeftFile read() {
    for (const TensorView& tensor : file_.tensors()) place(tensor);
    for (const format::UnsupportedTensor& tensor : file_.unsupported())
      fail(ErrorKind::file, file_.file(), "tensor {} has type {}; expected a floating-point type",
           format::in_quotes(tensor.name), tensor.type);
    join_spellings();
    for (const auto& [module, parts] : found_.modules) check(module, parts);
    if (found_.modules.empty() && found_.whole.empty() && found_.vectors == nullptr)
      fail(ErrorKind::file, file_.file(), "holds no tensor of an adapter");
    return std::move(found_);
  }

 private:
  [[noreturn]] void refuse(const TensorView& tensor) const {
    fail(ErrorKind::file, file_.file(), "tensor {} is not supported; expected names {}",
         format::in_quotes(tensor.name), names_of_kind(config_.kind()));
  }

  void place(const TensorView& tensor) {
    std::string_view name = tensor.name;
    if (name == kVectors && config_.has_virtual_tokens()) {
      check_axes(tensor, 2);
      return put(found_.vectors, tensor);
    }
    if (name.starts_with(kPeftPrefix)) name.remove_prefix(kPeftPrefix.size());
    std::vector<std::string> words = words_in(name);
    const auto part = std::find_if(words.rbegin(), words.rend(), names_part);
    if (part != words.rend()) return place_part(tensor, words, words.rend() - part - 1);
    place_whole(tensor, std::move(words));
  }

  /// words: MODULE part [adapter] [end]
  void place_part(const TensorView& tensor, std::vector<std::string> words, ptrdiff_t at) {
    const std::string word = words[static_cast<size_t>(at)];
    std::vector<std::string> rest(words.begin() + at + 1, words.end());
    words.resize(static_cast<size_t>(at));
    if (word == "trainable_tokens_delta" && !words.empty() && words.back() == "token_adapter")
      words.pop_back();
    if (words.empty()) refuse(tensor);
    PeftModule& module = found_.modules[fmt::format("{}", fmt::join(words, "."))];
    for (const PartName& part : kPartNames) {
      if (part.word != word || part.kind != config_.kind()) continue;
      std::vector<std::string> left = rest;
      if (!part.end.empty()) {
        if (left.empty() || left.back() != part.end) continue;
        left.pop_back();
      }
      // an adapter's name, which may be any word
      if (left.size() > 1 || (left.size() == 1 && (left[0] == "weight" || left[0] == "bias")))
        continue;
      check_axes(tensor, part.axes);
      return put(module.*part.part, tensor);
    }
    refuse(tensor);
  }

  void place_whole(const TensorView& tensor, std::vector<std::string> words) {
    if (config_.has_virtual_tokens() || words.size() < 2) refuse(tensor);
    // layers that PEFT wraps around a module of the model
    std::erase(words, "base_layer");
    std::erase(words, "token_adapter");
    const bool original = std::erase(words, "original_module") > 0;
    // X.modules_to_save.ADAPTER.weight, the adapter's name not always
    const auto saved = std::find(words.begin(), words.end(), "modules_to_save");
    const bool copy = saved != words.end();
    if (copy) words.erase(saved, saved + (words.end() - saved > 2 ? 2 : 1));
    if (words.size() < 2) refuse(tensor);
    put((original ? originals_
         : copy   ? copies_
                  : found_.whole)[fmt::format("{}", fmt::join(words, "."))],
        tensor);
  }

  /// One tensor a name. With tables (save_embedding_layers) a file has what was trained twice, as
  /// X.weight and X.modules_to_save.weight; the base's own (original_module) is not used.
  void join_spellings() {
    for (const auto& [name, copy] : copies_) {
      const auto [own, added] = found_.whole.emplace(name, copy);
      if (!added && !equal_values(*own->second, *copy))
        fail(ErrorKind::file, file_.file(), "tensors {} and {} differ; expected one adapter",
             format::in_quotes(own->second->name), format::in_quotes(copy->name));
    }
    for (const auto& [name, original] : originals_)
      if (!found_.whole.contains(name))
        fail(ErrorKind::file, file_.file(), "tensor {} has no trained copy; expected {}{} too",
             format::in_quotes(original->name), kPeftPrefix, name);
  }

  void put(const TensorView*& place, const TensorView& tensor) const {
    if (place != nullptr)
      fail(ErrorKind::file, file_.file(), "tensors {} and {} are one; expected one adapter",
           format::in_quotes(place->name), format::in_quotes(tensor.name));
    place = &tensor;
  }

  void check_axes(const TensorView& tensor, size_t axes) const {
    if (tensor.shape.size() != axes)
      fail(ErrorKind::file, file_.file(), "tensor {} has shape {}; expected {} axes",
           format::in_quotes(tensor.name), format::shape_text(tensor.shape), axes);
  }

  void check(const std::string& module, const PeftModule& parts) const {
    check_pair(module, parts.a, parts.b, "lora_A", "lora_B");
    check_pair(module, parts.table_a, parts.table_b, "lora_embedding_A", "lora_embedding_B");
    if (parts.a == nullptr &&
        (parts.bias != nullptr || (parts.magnitude != nullptr && parts.table_a == nullptr)))
      fail(ErrorKind::file, file_.file(), "module {} has no lora_A; expected both", module);
    if (parts.a != nullptr && config_.dora() != (parts.magnitude != nullptr))
      fail(ErrorKind::file, file_.file(),
           "module {} has {} lora_magnitude_vector, with use_dora {}", module,
           config_.dora() ? "no" : "a", config_.dora());
    if (parts.table_a != nullptr && (config_.dora() || parts.magnitude != nullptr))
      fail(ErrorKind::file, file_.file(),
           "module {} is a table with use_dora true, which is not supported; expected LoRA without "
           "DoRA on tables",
           module);
  }

  void check_pair(const std::string& module,
                  const TensorView* a,
                  const TensorView* b,
                  std::string_view a_name,
                  std::string_view b_name) const {
    if (a == nullptr && b == nullptr) return;
    if (a == nullptr || b == nullptr)
      fail(ErrorKind::file, file_.file(), "module {} has no {}; expected both", module,
           a == nullptr ? a_name : b_name);
    if (a->shape[0] < 1 || a->shape[0] != b->shape[1])
      fail(ErrorKind::file, file_.file(),
           "module {} has {} {} and {} {}; expected one rank of at least 1", module, a_name,
           format::shape_text(a->shape), b_name, format::shape_text(b->shape));
  }

  const format::TensorFile& file_;
  const PeftConfig& config_;
  PeftFile found_;
  std::map<std::string, const TensorView*> copies_, originals_;  // by the names of PeftFile::whole
};

}  // namespace

format::TensorFile open_peft_tensors(const std::filesystem::path& folder) {
  std::error_code ignored;
  const std::filesystem::path pickled = folder / kPeftPickle;
  if (!std::filesystem::exists(folder / kPeftTensors, ignored) &&
      std::filesystem::exists(pickled, ignored))
    return format::open_torch_file(pickled);
  return format::open_safetensors(folder / kPeftTensors);
}

PeftFile read_peft_file(const format::TensorFile& file, const PeftConfig& config) {
  return FileReader(file, config).read();
}

}  // namespace tessera::convert
