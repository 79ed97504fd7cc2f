#include "tessera/convert/peft_parts.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/format/file_source.h"
#include "tessera/model/virtual_tokens.h"

namespace tessera::convert::peft {
namespace {

namespace fs = std::filesystem;

constexpr std::array<int64_t, 2> kTurn = {1, 0};

/// The gate of a router, which chooses experts.
bool is_gate(const spec::ParamDecl& decl) {
  return decl.name.ends_with("router.gate.weight");
}

}  // namespace

Shapes matrices_of(const Checkpoint& base) {
  Shapes out;
  for (const spec::ParamDecl& decl : model::parameters(base.spec)) {
    const bool of_layer = decl.name.find("layers.") != std::string::npos;
    const bool table = decl.name == model::kTokenTable || decl.name == kHead;
    if (decl.shape.size() == 2 && (table || (of_layer && (decl.adapts() || is_gate(decl)))))
      out[decl.name] = decl.shape;
  }
  return out;
}

Shapes stacks_of(const Checkpoint& base) {
  Shapes out;
  for (const spec::ParamDecl& decl : model::parameters(base.spec))
    if (decl.adapts() && decl.shape.size() == 3 && decl.axis_of(spec::Role::expert) == 0 &&
        decl.name.find("layers.") != std::string::npos)
      out[decl.name] = decl.shape;
  return out;
}

const Family& family_of(const Checkpoint& base, FamilySet& families) {
  if (base.family.empty())
    fail(ErrorKind::usage, "adapter",
         "model family unknown, whose names PEFT adapters use; expected a model converted from a "
         "Hugging Face folder or a GGUF file");
  return families.named(base.family);
}

std::string module_of(const std::string& tensor) {
  return tensor.ends_with(kWeight) ? tensor.substr(0, tensor.size() - kWeight.size()) : tensor;
}

void check_rule(const BoundRule& rule,
                const Shapes& matrices,
                const std::string& module,
                ErrorKind kind,
                const std::string& where) {
  for (const std::string& name : rule.ours)
    if (!matrices.contains(name))
      fail(kind, where, "module {} is {} here; expected one that is a matrix of the layers", module,
           name);
  if (rule.foreign.size() != 1)
    fail(kind, where,
         "module {} is one of {} parts of {}; expected a module that is a whole matrix here",
         module, rule.foreign.size(), rule.ours.front());
  if (!rule.steps.move_rows())
    fail(kind, where,
         "module {} is stored in another form than {}, by more than moves of rows; its adapters "
         "cannot be read or written",
         module, fmt::join(rule.ours, ", "));
}

TensorView owned(std::string name, Shape shape, std::vector<float> numbers) {
  const auto kept = std::make_shared<const std::vector<float>>(std::move(numbers));
  return {std::move(name), DType::f32, std::move(shape), std::as_bytes(std::span(*kept)), kept};
}

std::span<const float> numbers_of(const TensorView& f32) {
  return {reinterpret_cast<const float*>(f32.data.data()), f32.data.size() / sizeof(float)};
}

std::vector<TensorView> rows_as_ours(const BoundRule& rule, const TensorView& whole) {
  std::vector<TensorView> parts = {rule.steps.transpose() ? transposed(whole, kTurn) : whole};
  rule.apply(parts);
  return parts;
}

TensorView rows_as_theirs(const BoundRule& rule, std::vector<TensorView> parts) {
  rule.invert(parts);
  return rule.steps.transpose() ? transposed(parts.at(0), kTurn) : parts.at(0);
}

TensorView turned(const TensorView& matrix) {
  return transposed(matrix, kTurn);
}

TensorView shaped(TensorView view, Shape shape) {
  view.shape = std::move(shape);
  return view;
}

TensorView as_column(const TensorView& vector) {
  int64_t n = 1;
  for (const int64_t size : vector.shape) n *= size;
  return shaped(as_float32(vector), {n, 1});
}
TensorView as_vector(const TensorView& column) {
  return shaped(column, {column.shape[0] * column.shape[1]});
}

std::vector<int64_t> rows_of(const BoundRule& rule, const Shapes& matrices) {
  std::vector<int64_t> rows;
  for (const std::string& name : rule.ours) rows.push_back(matrices.at(name)[0]);
  return rows;
}

int64_t sum_of(const std::vector<int64_t>& sizes) {
  int64_t sum = 0;
  for (const int64_t size : sizes) sum += size;
  return sum;
}

void of_another_model(const fs::path& folder,
                      const std::string& what,
                      const std::string& module,
                      const Shape& here) {
  fail(ErrorKind::usage, "adapter", "{} was trained for another model: {} of {}, which is {} here",
       folder.string(), what, module, format::shape_text(here));
}

std::vector<int64_t> order_of_rows(const BoundRule& rule, const Shapes& matrices, size_t which) {
  const std::vector<int64_t> rows = rows_of(rule, matrices);
  std::vector<float> numbers(static_cast<size_t>(sum_of(rows)));
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i);
  const auto n = static_cast<int64_t>(numbers.size());
  const TensorView part = rows_as_ours(rule, owned("rows", {n, 1}, std::move(numbers))).at(which);
  std::vector<std::pair<float, int64_t>> found;
  for (int64_t i = 0; i < rows[which]; ++i)
    found.emplace_back(numbers_of(part)[static_cast<size_t>(i)], i);
  std::sort(found.begin(), found.end());
  std::vector<int64_t> order(found.size());
  for (size_t rank = 0; rank < found.size(); ++rank)
    order[static_cast<size_t>(found[rank].second)] = static_cast<int64_t>(rank);
  return order;
}

std::vector<CacheSlot> cache_slots(const Family& family, const Checkpoint& base) {
  const Shapes matrices = matrices_of(base);
  const std::vector<std::string> names = model::key_value_weights(base.spec);
  if (const std::string reason = model::no_virtual_reason(base.spec, true); !reason.empty())
    fail(ErrorKind::usage, "adapter", "a prefix: {}", reason);
  if (names.size() != 2 * base.spec.layers.size())
    fail(ErrorKind::usage, "adapter",
         "{} keys and values of their own in {} layers, and PEFT keeps two of every layer",
         names.size(), base.spec.layers.size());
  std::map<std::string, std::vector<int64_t>> orders;
  for_each_rule(family, "hf", base, [&](const BoundRule& rule) {
    for (size_t i = 0; i < rule.ours.size(); ++i)
      if (std::find(names.begin(), names.end(), rule.ours[i]) != names.end()) {
        check_rule(rule, matrices, module_of(rule.foreign.front()), ErrorKind::usage, "adapter");
        orders[rule.ours[i]] = order_of_rows(rule, matrices, i);
      }
  });
  std::vector<CacheSlot> slots;
  for (const std::string& name : names) {
    const auto found = orders.find(name);
    if (found == orders.end())
      fail(ErrorKind::usage, "adapter", "{} has no name in files of family {}", name, base.family);
    slots.push_back({name, found->second});
    if (slots.front().order.size() != slots.back().order.size())
      fail(ErrorKind::usage, "adapter", "{} has {} numbers, {} has {}, and PEFT keeps one width",
           slots.front().weight, slots.front().order.size(), name, slots.back().order.size());
  }
  return slots;
}

}  // namespace tessera::convert::peft
