// What reading and writing adapters of PEFT share.
#pragma once

#include <map>
#include <span>

#include "tessera/convert/mapping.h"
#include "tessera/convert/peft.h"
#include "tessera/convert/peft_file.h"

namespace tessera::convert::peft {

/// Parts of model::WeightAdapter (model::kOverlayParts).
inline constexpr const char *kLoraA = "lora_a", *kLoraB = "lora_b", *kLengths = "magnitude",
                            *kOut = "out", *kIn = "in", *kVirtual = "prefix";
inline constexpr const char* kHead = "head.weight";
inline constexpr std::string_view kWeight = ".weight", kBias = ".bias",
                                  kVectors = "prompt_embeddings";

using Shapes = std::map<std::string, Shape>;

/// Matrices that an adapter may train products or factors for, and their shapes: those of the
/// layers, the token embedding and the output matrix.
Shapes matrices_of(const Checkpoint& base);
/// Stacks of matrices of experts, [E, O, I].
Shapes stacks_of(const Checkpoint& base);

/// Throws Error(usage) for a model that does not know its family.
const Family& family_of(const Checkpoint& base, FamilySet& families);

/// Throws Error(kind) unless a product for the rule's one foreign matrix is one for ours.
void check_rule(const BoundRule& rule,
                const Shapes& matrices,
                const std::string& module,
                ErrorKind kind,
                const std::string& where);

std::string module_of(const std::string& tensor);  // without ".weight"
std::vector<int64_t> rows_of(const BoundRule& rule, const Shapes& matrices);
int64_t sum_of(const std::vector<int64_t>& sizes);

TensorView owned(std::string name, Shape shape, std::vector<float> numbers);
std::span<const float> numbers_of(const TensorView& f32);
TensorView shaped(TensorView view, Shape shape);
TensorView turned(const TensorView& matrix);
/// A vector as a float32 matrix of one column, and back.
TensorView as_column(const TensorView& vector);
TensorView as_vector(const TensorView& column);

/// Rows of a foreign matrix [O, C], as ours, and the way back.
std::vector<TensorView> rows_as_ours(const BoundRule& rule, const TensorView& whole);
TensorView rows_as_theirs(const BoundRule& rule, std::vector<TensorView> parts);

/// Of each row of the rule's matrix `which` of ours, its place among those by their order in the
/// file.
std::vector<int64_t> order_of_rows(const BoundRule& rule, const Shapes& matrices, size_t which);

/// Keys and values of the layers, in the order in which PEFT stacks them, with the place that each
/// row of ours has among the rule's own.
struct CacheSlot {
  std::string weight;
  std::vector<int64_t> order;  // theirs, of each row of ours
};
std::vector<CacheSlot> cache_slots(const Family& family, const Checkpoint& base);

/// "FOLDER is of another model: WHAT of MODULE, which is SHAPE here".
[[noreturn]] void of_another_model(const std::filesystem::path& folder,
                                   const std::string& what,
                                   const std::string& module,
                                   const Shape& here);

}  // namespace tessera::convert::peft
