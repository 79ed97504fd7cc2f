#include "tessera/convert/storage_form.h"

#include <algorithm>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/convert/peft_parts.h"
#include "tessera/format/file_source.h"

namespace tessera::convert::peft {
namespace {

/// Whether two specs are one in the form of some dialect of the family.
bool one_model(const Family& family, const Checkpoint& a, const Checkpoint& b) {
  for (const auto& [dialect, side] : family.dialects) {
    if (!side.write) continue;
    try {
      if (spec_in_form_of(family, dialect, a) == spec_in_form_of(family, dialect, b)) return true;
    } catch (const Error& error) {
      // a form that a family cannot express is no form of both
      if (error.kind() == ErrorKind::internal) throw;
    }
  }
  return false;
}

/// Index of each row of a matrix of ours among those of the file, by order; no matrix whose
/// rows are numbers of several.
using Orders = std::map<std::string, std::vector<int64_t>>;

Orders orders_of(const Family& family, const Checkpoint& model) {
  Orders out;
  Shapes matrices = matrices_of(model);
  for_each_rule(family, "hf", model, [&](const BoundRule& rule) {
    const bool ours = std::all_of(rule.ours.begin(), rule.ours.end(),
                                  [&](const auto& name) { return matrices.contains(name); });
    if (!ours || rule.foreign.size() != 1 || !rule.steps.move_rows()) return;
    for (size_t i = 0; i < rule.ours.size(); ++i)
      out[rule.ours[i]] = order_of_rows(rule, matrices, i);
  });
  return out;
}

/// Of each row of the one its place in the other.
std::vector<int64_t> moves(const std::vector<int64_t>& from, const std::vector<int64_t>& to) {
  std::vector<int64_t> at(from.size());
  for (size_t i = 0; i < from.size(); ++i)
    at[static_cast<size_t>(from[i])] = static_cast<int64_t>(i);
  std::vector<int64_t> out;
  for (const int64_t row : to) out.push_back(at[static_cast<size_t>(row)]);
  return out;
}

bool stays(const std::vector<int64_t>& order) {
  std::vector<int64_t> same(order.size());
  std::iota(same.begin(), same.end(), int64_t{0});
  return order == same;
}

/// Parameters that are replaced whole, through the file's own form.
class Whole {
 public:
  Whole(const std::vector<AdapterTensors>& adapter,
        const Family& family,
        const Checkpoint& source) {
    for (const AdapterTensors& one : adapter)
      if (const auto part = one.parts.find(kWholePart); part != one.parts.end())
        ours_[one.weight] = as_plain_float(part->second);
    if (ours_.empty()) return;
    for_each_rule(family, "hf", source, [&](const BoundRule& rule) {
      std::vector<TensorView> parts;
      for (const std::string& name : rule.ours)
        if (const auto found = ours_.find(name); found != ours_.end())
          parts.push_back(found->second);
      if (parts.empty()) return;
      if (parts.size() != rule.ours.size())
        fail(ErrorKind::usage, "adapter",
             "{} is trained whole, and others that are one tensor with it are not; expected the "
             "model in the form that it was trained in",
             rule.ours.front());
      rule.invert(parts);
      for (size_t i = 0; i < parts.size(); ++i) foreign_[rule.foreign.at(i)] = parts[i];
    });
  }

  std::vector<AdapterTensors> as_of(const Family& family, const Checkpoint& target) const {
    std::vector<AdapterTensors> out;
    if (foreign_.empty()) return out;
    for_each_rule(family, "hf", target, [&](const BoundRule& rule) {
      std::vector<TensorView> parts;
      for (const std::string& name : rule.foreign)
        if (const auto found = foreign_.find(name); found != foreign_.end())
          parts.push_back(found->second);
      if (parts.size() != rule.foreign.size()) return;
      rule.apply(parts);
      for (size_t i = 0; i < rule.ours.size(); ++i)
        out.push_back({.weight = rule.ours[i], .parts = {{kWholePart, parts.at(i)}}});
    });
    if (out.size() != ours_.size())
      fail(ErrorKind::usage, "adapter", "{} has no name in files of family {}",
           ours_.begin()->first, target.family);
    return out;
  }

 private:
  std::map<std::string, TensorView> ours_, foreign_;
};

TensorView moved(const AdapterTensors& one,
                 const std::string& part,
                 const std::vector<int64_t>& order) {
  const TensorView& tensor = one.parts.at(part);
  if (part == kLoraA || part == kIn) return tensor;  // of columns
  const size_t axis = part == kVirtual ? 1 : 0;
  if (tensor.shape.size() <= axis || tensor.shape[axis] != std::ssize(order))
    fail(ErrorKind::usage, "adapter", "{} of {} has shape {}; expected {} rows", part, one.weight,
         format::shape_text(tensor.shape), order.size());
  if (part != kVirtual) return with_rows(as_float32(tensor), order);
  return turned(with_rows(turned(as_float32(tensor)), order));
}

}  // namespace
}  // namespace tessera::convert::peft

namespace tessera::convert {

std::optional<Reformed> in_form_of(const std::vector<AdapterTensors>& adapter,
                                   const Json& spec_json,
                                   const Checkpoint& base,
                                   const LoadOptions& options) {
  if (base.family.empty()) return {};
  FamilySet families = FamilySet::load(options.families);
  const Family& family = families.named(base.family);
  Checkpoint source;
  source.spec = model::read_model_spec(spec_json);
  source.spec_json = model::resolve(source.spec);
  source.family = base.family;
  source.foreign_config = base.foreign_config;
  source.foreign_dialect = base.foreign_dialect;
  if (!peft::one_model(family, source, base)) return {};
  const peft::Orders from = peft::orders_of(family, source), to = peft::orders_of(family, base);
  Reformed out{peft::Whole(adapter, family, source).as_of(family, base), {}};
  for (const auto& [name, order] : from)
    if (const auto other = to.find(name); other != to.end() && other->second == order)
      out.alike.insert(name);
  for (const AdapterTensors& one : adapter) {
    if (one.parts.contains(kWholePart)) continue;
    const auto own = from.find(one.weight), other = to.find(one.weight);
    const bool table = one.weight == model::kTokenTable;
    const bool stack = !table && one.parts.begin()->second.shape.size() == 3;
    AdapterTensors copy = one;
    if (own != from.end() && other != to.end()) {
      const std::vector<int64_t> order = peft::moves(own->second, other->second);
      if (!peft::stays(order))
        for (auto& [part, tensor] : copy.parts) tensor = peft::moved(one, part, order);
    } else if (!table && !stack) {
      fail(ErrorKind::usage, "adapter",
           "{} is stored in another form by this model, by more than moves of rows; expected the "
           "model in the form that the adapter was trained in",
           one.weight);
    }
    out.tensors.push_back(std::move(copy));
  }
  return out;
}

}  // namespace tessera::convert
