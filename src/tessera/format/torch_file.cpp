#include "tessera/format/torch_file.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>

#include "tessera/base/mapped_file.h"
#include "tessera/format/pickle.h"
#include "tessera/format/torch_storages.h"

namespace tessera::format {
namespace {

using Kind = PickleNode::Kind;

/// Where training programs keep the weights among other things, the most telling first.
constexpr std::string_view kWeightKeys[] = {"state_dict", "model_state_dict", "model", "module"};
constexpr size_t kMaxTorchRank = 64;    // libtorch's limit
constexpr size_t kMaxNesting = 64;      // dictionaries in dictionaries
constexpr size_t kMaxNameBytes = 1024;  // of a tensor, all keys together
constexpr size_t kMaxWrappers = 4;      // a Parameter of a Parameter of ...
constexpr uint64_t kCopiesPerByte = 4;  // of the file
constexpr uint64_t kCopiesAtLeast = uint64_t{64} << 20;

/// Names of functions that give a tensor, and where their arguments stand.
struct Rebuild {
  std::string_view name;
  size_t min_arguments, max_arguments;
  int dtype = -1;     // which argument is one
  int metadata = -1;  // which argument marks values as conjugate or negated
};
constexpr Rebuild kRebuilds[] = {{"torch._utils._rebuild_tensor", 4, 4},
                                 {"torch._utils._rebuild_tensor_v2", 5, 7, -1, 6},
                                 {"torch._utils._rebuild_tensor_v3", 7, 8, 6, 7}};
/// Functions around a tensor that is their first argument.
constexpr std::string_view kWrappers[] = {"torch._utils._rebuild_parameter",
                                          "torch._utils._rebuild_parameter_with_state"};
/// Tensors with attributes of their own: (function, type, its arguments, attributes).
constexpr std::string_view kFromType = "torch._tensor._rebuild_from_type_v2";
/// Other values of such dictionaries, none of which holds a tensor.
constexpr std::string_view kOtherNames[] = {"torch.Size",
                                            "torch.device",
                                            "torch.Tensor",
                                            "torch.nn.parameter.Parameter",
                                            "torch.strided",
                                            "torch.serialization._get_layout",
                                            "_codecs.encode",
                                            "builtins.bytearray",
                                            "__builtin__.bytearray",
                                            "builtins.bytes",
                                            "__builtin__.bytes",
                                            "builtins.set",
                                            "__builtin__.set",
                                            "builtins.complex",
                                            "__builtin__.complex",
                                            "collections.Counter"};

class TorchReader {
 public:
  TorchReader(const TorchContent& content,
              std::shared_ptr<const void> owner,
              const FileSource& source,
              uint64_t file_bytes)
      : pickle_(content.pickle),
        storages_(content.storages),
        owner_(std::move(owner)),
        source_(source),
        copies_left_(std::max(kCopiesAtLeast, kCopiesPerByte * file_bytes)) {}

  TensorFile read(std::vector<std::string>* notes) {
    holds_.assign(pickle_.nodes.size(), Holds::unknown);
    const PickleIndex weights = weights_in(pickle_.root, notes);
    walk(weights, "", 0);
    return TensorFile(std::string(source_.format), std::string(source_.file), std::move(tensors_),
                      {}, std::move(unsupported_));
  }

 private:
  // --- which dictionary ---

  enum class Holds : uint8_t { unknown, asked, no, yes };

  const PickleNode& node(PickleIndex index) const { return pickle_.at(index); }

  bool is_tensor(PickleIndex index) const {
    const PickleNode& value = node(index);
    if (value.kind != Kind::call) return false;
    const std::string_view callee = node(value.items[0]).text;
    return callee == kFromType || rebuild_of(callee) != nullptr ||
           std::find(std::begin(kWrappers), std::end(kWrappers), callee) != std::end(kWrappers);
  }

  static const Rebuild* rebuild_of(std::string_view callee) {
    for (const Rebuild& rebuild : kRebuilds)
      if (rebuild.name == callee) return &rebuild;
    return nullptr;
  }

  /// Values of a dictionary, items of a list or tuple.
  std::vector<PickleIndex> members(const PickleNode& value) const {
    std::vector<PickleIndex> found;
    const bool dict = value.kind == Kind::dict;
    if (!dict && value.kind != Kind::list && value.kind != Kind::tuple) return found;
    for (size_t i = dict ? 1 : 0; i < value.items.size(); i += dict ? 2 : 1)
      found.push_back(value.items[i]);
    return found;
  }

  bool holds_tensors(PickleIndex index, size_t depth = 0) {
    if (is_tensor(index)) return true;
    if (holds_[index] == Holds::asked) source_.fail("a value of the pickle holds itself");
    if (holds_[index] != Holds::unknown) return holds_[index] == Holds::yes;
    if (depth > kMaxNesting) source_.fail("nested more than {} deep", kMaxNesting);
    holds_[index] = Holds::asked;
    bool any = false;
    for (const PickleIndex member : members(node(index)))
      any = holds_tensors(member, depth + 1) || any;
    holds_[index] = any ? Holds::yes : Holds::no;
    return any;
  }

  /// The member of a dictionary under a text; the last one, as Python has it.
  std::optional<PickleIndex> member(const PickleNode& dict, std::string_view key) const {
    std::optional<PickleIndex> found;
    for (size_t i = 0; i + 1 < dict.items.size(); i += 2)
      if (node(dict.items[i]).kind == Kind::text && node(dict.items[i]).text == key)
        found = dict.items[i + 1];
    return found;
  }

  PickleIndex weights_in(PickleIndex root, std::vector<std::string>* notes) {
    if (node(root).kind != Kind::dict)
      source_.fail(
          "holds {}; expected a dictionary of tensors, as torch.save(model.state_dict(), "
          "...) writes",
          is_tensor(root) ? "a tensor" : name_of(node(root).kind));
    if (!holds_tensors(root)) source_.fail("holds a dictionary without a tensor");
    for (size_t depth = 0; depth < kMaxNesting; ++depth) {
      const auto inner = inner_weights(node(root));
      if (!inner) break;
      note_others(node(root), *inner, notes);
      root = *inner;
    }
    return root;
  }

  /// The dictionary of the weights in one of other things, if it is not that one itself.
  std::optional<PickleIndex> inner_weights(const PickleNode& dict) {
    for (const std::string_view key : kWeightKeys)
      if (const auto found = member(dict, key))
        if (node(*found).kind == Kind::dict && holds_tensors(*found)) return found;
    std::optional<PickleIndex> only;
    for (const PickleIndex one : members(dict)) {
      if (!holds_tensors(one)) continue;
      if (only || node(one).kind != Kind::dict) return std::nullopt;
      only = one;
    }
    return only;
  }

  void note_others(const PickleNode& dict, PickleIndex taken, std::vector<std::string>* notes) {
    if (notes == nullptr) return;
    std::string of, others;
    for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
      const PickleIndex value = dict.items[i + 1];
      if (!holds_tensors(value)) continue;
      std::string& to = value == taken ? of : others;
      to += (to.empty() ? "" : ", ") + in_quotes(key_text(dict.items[i]));
    }
    if (!others.empty())
      notes->push_back(fmt::format("{}: the weights are those of {}; not read are {}",
                                   printable(source_.file), of, others));
  }

  // --- names ---

  std::string key_text(PickleIndex index) const {
    const PickleNode& key = node(index);
    if (key.kind == Kind::text) return std::string(key.text);
    if (key.kind == Kind::integer) return std::to_string(key.integer);
    source_.fail("a key of a dictionary that holds tensors is {}; expected a text or a number",
                 name_of(key.kind));
  }

  void walk(PickleIndex index, const std::string& name, size_t depth) {
    if (depth > kMaxNesting) source_.fail("nested more than {} deep", kMaxNesting);
    if (is_tensor(index)) return add(index, name);
    if (!holds_tensors(index, depth)) return;
    // a part in many places would give more names than the file has bytes
    if (!walked_.insert(index).second)
      source_.fail("{} stands in two places of the dictionary", in_quotes(name));
    const PickleNode& value = node(index);
    const bool dict = value.kind == Kind::dict;
    for (size_t i = 0; i + (dict ? 1 : 0) < value.items.size(); i += dict ? 2 : 1) {
      const PickleIndex inner = value.items[dict ? i + 1 : i];
      if (!holds_tensors(inner, depth + 1)) continue;
      const std::string key = dict ? key_text(value.items[i]) : std::to_string(i);
      if (name.size() + key.size() >= kMaxNameBytes)
        source_.fail("the name of tensor {} has {} bytes; at most {}", in_quotes(key),
                     name.size() + key.size() + 1, kMaxNameBytes);
      walk(inner, name.empty() ? key : name + "." + key, depth + 1);
    }
  }

  // --- tensors ---

  struct Layout {
    const TorchStorage* storage = nullptr;
    const TorchType* type = nullptr;
    int64_t offset = 0;  // elements
    std::vector<int64_t> shape, strides;
  };

  void add(PickleIndex index, const std::string& name) {
    Layout layout = layout_of_tensor(index, name);
    std::span<const std::byte> data = layout.storage->data;
    std::shared_ptr<const void> owner = owner_;
    check_extent(layout, name);
    const auto count = static_cast<size_t>(element_count(layout.shape));
    const auto bytes = static_cast<size_t>(layout.type->bytes);
    if (count == 0) {
      data = {};
    } else if (is_contiguous(layout)) {
      data = data.subspan(static_cast<size_t>(layout.offset) * bytes, count * bytes);
    } else {
      owner = copied(layout, count * bytes, name);
      data = *static_cast<const std::vector<std::byte>*>(owner.get());
    }
    if (layout.type->here)
      tensors_.push_back({name, *layout.type->here, std::move(layout.shape), data, owner});
    else
      unsupported_.push_back(
          {name, std::string(layout.type->name), std::move(layout.shape), data, owner});
  }

  Layout layout_of_tensor(PickleIndex index, const std::string& name) const {
    const std::string quoted = in_quotes(name);
    for (size_t i = 0; i < kMaxWrappers && node(index).kind == Kind::call; ++i) {
      const PickleNode& call = node(index);
      std::string_view callee = node(call.items[0]).text;
      std::vector<PickleIndex> arguments = node(call.items[1]).items;
      if (callee == kFromType) {
        if (arguments.size() != 4 || node(arguments[0]).kind != Kind::global ||
            node(arguments[2]).kind != Kind::tuple)
          source_.fail("tensor {}: malformed arguments of {}", quoted, callee);
        callee = node(arguments[0]).text;
        arguments = node(arguments[2]).items;
      }
      if (const Rebuild* rebuild = rebuild_of(callee))
        return layout_from(*rebuild, arguments, quoted);
      if (std::find(std::begin(kWrappers), std::end(kWrappers), callee) == std::end(kWrappers) ||
          arguments.empty())
        source_.fail("tensor {} is made by {}, which gives no tensor", quoted, in_quotes(callee));
      index = arguments[0];
    }
    source_.fail("tensor {}: {} in place of a tensor", quoted, name_of(node(index).kind));
  }

  Layout layout_from(const Rebuild& rebuild,
                     const std::vector<PickleIndex>& arguments,
                     const std::string& quoted) const {
    if (arguments.size() < rebuild.min_arguments || arguments.size() > rebuild.max_arguments)
      source_.fail("tensor {}: {} arguments of {}; expected {} to {}", quoted, arguments.size(),
                   rebuild.name, rebuild.min_arguments, rebuild.max_arguments);
    const auto argument = [&](int at) -> const PickleNode* {
      return at < 0 || static_cast<size_t>(at) >= arguments.size()
                 ? nullptr
                 : &node(arguments[static_cast<size_t>(at)]);
    };
    Layout layout;
    const auto storage = storages_.find(arguments[0]);
    if (storage == storages_.end())
      source_.fail("tensor {}: {} in place of a storage", quoted, name_of(node(arguments[0]).kind));
    layout.storage = storage->second;
    layout.type = layout.storage->type;
    if (const PickleNode* dtype = argument(rebuild.dtype)) {
      layout.type = dtype->kind == Kind::global ? torch_type_of_dtype(dtype->text) : nullptr;
      if (layout.type == nullptr) source_.fail("tensor {} names no type", quoted);
    }
    if (layout.type == nullptr)
      source_.fail("tensor {} has an untyped storage and no type", quoted);
    if (const PickleNode* metadata = argument(rebuild.metadata))
      if (metadata->kind != Kind::none && !metadata->items.empty())
        source_.fail("tensor {} is a conjugate or negated view; expected its values", quoted);
    if (node(arguments[1]).kind != Kind::integer || node(arguments[1]).integer < 0)
      source_.fail("tensor {}: its offset is {}; expected a number from 0", quoted,
                   node(arguments[1]).kind == Kind::integer
                       ? std::to_string(node(arguments[1]).integer)
                       : std::string(name_of(node(arguments[1]).kind)));
    layout.offset = node(arguments[1]).integer;
    layout.shape = sizes_in(arguments[2], "shape", quoted);
    layout.strides = sizes_in(arguments[3], "strides", quoted);
    if (layout.shape.size() != layout.strides.size())
      source_.fail("tensor {}: {} axes and {} strides", quoted, layout.shape.size(),
                   layout.strides.size());
    return layout;
  }

  /// A tuple of numbers from 0, or torch.Size of one.
  std::vector<int64_t> sizes_in(PickleIndex index,
                                std::string_view what,
                                const std::string& quoted) const {
    const PickleNode* value = &node(index);
    if (value->kind == Kind::call && node(value->items[0]).text == "torch.Size" &&
        node(value->items[1]).items.size() == 1)
      value = &node(node(value->items[1]).items[0]);
    if (value->kind != Kind::tuple && value->kind != Kind::list)
      source_.fail("tensor {}: its {} are {}; expected a tuple", quoted, what,
                   name_of(value->kind));
    if (value->items.size() > kMaxTorchRank)
      source_.fail("tensor {}: {} axes; at most {}", quoted, value->items.size(), kMaxTorchRank);
    std::vector<int64_t> sizes;
    for (const PickleIndex item : value->items) {
      const PickleNode& number = node(item);
      if (number.kind != Kind::integer || number.integer < 0)
        source_.fail("tensor {}: its {} hold {}; expected numbers from 0", quoted, what,
                     number.kind == Kind::integer ? std::to_string(number.integer)
                                                  : std::string(name_of(number.kind)));
      sizes.push_back(number.integer);
    }
    return sizes;
  }

  /// The last element that the strides reach lies in the storage.
  void check_extent(const Layout& layout, const std::string& name) const {
    const auto count = checked_element_count(layout.shape);
    if (!count || !checked_multiply(*count, layout.type->bytes))
      source_.fail("tensor {}: the size of shape {} overflows 64 bits", in_quotes(name),
                   shape_text(layout.shape));
    if (*count == 0) return;  // reads nothing, wherever it begins
    const int64_t held = static_cast<int64_t>(layout.storage->data.size()) / layout.type->bytes;
    int64_t end = layout.offset;
    bool fits = true;
    for (size_t axis = 0; fits && axis < layout.shape.size(); ++axis) {
      const auto step = checked_multiply(layout.shape[axis] - 1, layout.strides[axis]);
      fits = step && !__builtin_add_overflow(end, *step, &end);
    }
    if (!fits || end >= held)
      source_.fail("tensor {}: shape {} with strides {} from {} leaves its storage of {} elements",
                   in_quotes(name), shape_text(layout.shape), shape_text(layout.strides),
                   layout.offset, held);
  }

  static bool is_contiguous(const Layout& layout) {
    int64_t step = 1;
    for (size_t axis = layout.shape.size(); axis-- > 0;) {
      if (layout.shape[axis] != 1 && layout.strides[axis] != step) return false;
      step *= layout.shape[axis];
    }
    return true;
  }

  /// The elements in the order of the shape. Equal views share one copy.
  std::shared_ptr<const void> copied(const Layout& layout, size_t bytes, const std::string& name) {
    auto& copy =
        copies_[{layout.storage, layout.type, layout.offset, layout.shape, layout.strides}];
    if (copy != nullptr) return copy;
    if (bytes > copies_left_)
      source_.fail(
          "tensor {}: with those that are not contiguous, shape {} takes more than {} times "
          "the file",
          in_quotes(name), shape_text(layout.shape), kCopiesPerByte);
    copies_left_ -= bytes;
    auto to = std::make_shared<std::vector<std::byte>>(bytes);
    const auto width = static_cast<size_t>(layout.type->bytes);
    std::vector<int64_t> at(layout.shape.size(), 0);
    int64_t from = layout.offset;
    for (size_t out = 0; out < bytes; out += width) {
      std::memcpy(to->data() + out, layout.storage->data.data() + static_cast<size_t>(from) * width,
                  width);
      // the next place, the last axis first
      for (size_t axis = at.size(); axis-- > 0;) {
        from += layout.strides[axis];
        if (++at[axis] < layout.shape[axis]) break;
        from -= layout.strides[axis] * layout.shape[axis];
        at[axis] = 0;
      }
    }
    return copy = to;
  }

  using View = std::tuple<const TorchStorage*,
                          const TorchType*,
                          int64_t,
                          std::vector<int64_t>,
                          std::vector<int64_t>>;

  const Pickle& pickle_;
  const std::unordered_map<PickleIndex, const TorchStorage*>& storages_;
  std::shared_ptr<const void> owner_;
  const FileSource& source_;
  uint64_t copies_left_;
  std::vector<Holds> holds_;
  std::set<PickleIndex> walked_;
  std::map<View, std::shared_ptr<const void>> copies_;
  std::vector<TensorView> tensors_;
  std::vector<UnsupportedTensor> unsupported_;
};

}  // namespace

bool is_torch_name(std::string_view global) {
  const auto among = [&](const auto& names) {
    return std::find(std::begin(names), std::end(names), global) != std::end(names);
  };
  return is_torch_storage(global) || torch_type_of_dtype(global) != nullptr ||
         global == kFromType || among(kWrappers) || among(kOtherNames) ||
         std::any_of(std::begin(kRebuilds), std::end(kRebuilds),
                     [&](const Rebuild& rebuild) { return rebuild.name == global; });
}

TensorFile read_torch_file(std::span<const std::byte> bytes,
                           std::string_view file,
                           std::shared_ptr<const void> owner,
                           std::vector<std::string>* notes) {
  const FileSource source{"torch", file};
  const TorchContent content = read_torch_content(bytes, source);
  return TorchReader(content, std::move(owner), source, bytes.size()).read(notes);
}

TensorFile open_torch_file(const std::filesystem::path& path, std::vector<std::string>* notes) {
  auto file = MappedFile::open(path);
  const auto bytes = file->bytes();
  const std::string name = path.string();
  const FileSource source{"torch", name};
  if (is_lfs_pointer(text_of(bytes))) source.fail("{}", kLfsPointer);
  if (!begins_as_torch(text_of(bytes)))
    source.fail("begins neither as a zip archive nor as a pickle; expected a file of torch.save");
  return read_torch_file(bytes, name, std::move(file), notes);
}

}  // namespace tessera::format
