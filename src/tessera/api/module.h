// Specs as modules of a training loop that is the caller's: the caller owns parameters and
// optimizer, the module computes. What `tessera.nn` of the Python package is made of.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/model/model.h"
#include "tessera/model/state.h"

namespace tessera::api {

/// What a module computes of: a whole model of token ids, all others of activations [B,T,D].
enum class ModuleKind { model, stack, mixer, ffn, norm };
const char* name_of(ModuleKind kind);

/// What surrounds a stack or a part; unused for a whole model, whose spec has it.
struct ModuleScope {
  std::string slot = {};  // "mixer", "ffn" or "norm"; "" = found by the type's name
  int64_t d_model = 0;
  bool causal = true;
};

/// A spec and its parameters' declarations, without numbers.
struct ModuleSpec {
  ModuleKind kind = ModuleKind::model;
  model::ModelSpec spec;
  /// Under the module's own names: those of the spec, of a part without the part's prefix.
  std::vector<std::pair<std::string, spec::ParamDecl>> parameters = {};

  /// Reads a spec ("tessera": 1), a stack ("layers", with its defaults) or a part ("type"). Throws
  /// Error(spec) as specs do, Error(usage) for a part without a width.
  static ModuleSpec read(const spec::Json& json, const ModuleScope& scope);
  /// Newly initialized values, in the order of `parameters`.
  std::vector<Tensor> initial(uint64_t seed, at::ScalarType type) const;
};

struct ModuleCall {
  Tensor input;           // ids [B,T] int64 of a model, otherwise x [B,T,D]
  Tensor mask_BT = {};    // 1 = a token, 0 = padding; undefined: no padding
  Tensor ids_BT = {};     // with x, for parts that read ids (hash router)
  Tensor source_BS = {};  // ids of an encoder-decoder's source, with a row's first call
  Tensor source_mask_BS = {};
  model::State* state = nullptr;  // row b continues row b of the state
  bool training = false;
  bool hidden = false;  // of a model: hidden states instead of logits
  uint64_t seed = 0;    // of dropout and other noise in training
  int64_t step = 0;     // training step, for what is drawn again every few steps
};

struct ModuleResult {
  Tensor output;  // [B,T,D], logits [B,T,C], or [B,classes] of a head on whole documents
  /// Losses of parts in training (balance of experts), means per token, with gradients.
  std::map<std::string, Tensor> losses = {};
  /// Statistics of parts in training, which update rules read.
  std::map<std::string, Tensor> statistics = {};
};

/// A module on the caller's tensors: gradients reach them, changes in place are seen. Calls of one
/// module may run at once if they have different states.
class Module {
 public:
  /// `values` in the order of `spec.parameters`. Throws Error(file) for another shape.
  Module(const ModuleSpec& spec, const std::vector<Tensor>& values);
  /// The same on a loaded model, which must outlive it.
  explicit Module(const model::Model& model);
  ~Module();

  const model::ModelSpec& spec() const;
  ModuleKind kind() const { return kind_; }
  /// A state of `rows` empty rows. Throws Error(usage) for parts that cannot continue from one.
  model::State state(int64_t rows) const;
  /// Throws Error(input) for inputs of another shape or type, ids outside the vocabulary, and rows
  /// that are not those of the state.
  ModuleResult forward(const ModuleCall& call) const;

 private:
  struct Parts;
  Tensor run(const nn::Batch& batch,
             const Tensor& x_ND,
             const ModuleCall& call,
             ModuleResult&) const;
  Tensor run_model(const nn::Batch& batch, const ModuleCall& call, ModuleResult&) const;
  /// True for a head on whole documents.
  bool of_documents() const;
  void set_no_rows();
  /// Throws Error(input) for a state of another spec.
  void check(const model::State& state) const;

  ModuleKind kind_ = ModuleKind::model;
  at::ScalarType type_ = at::kFloat;         // of a state
  at::Device device_ = at::kCPU;             // of a state
  model::State no_rows_;                     // what states of this module are compared with
  std::unique_ptr<const Parts> parts_;       // of a stack or part
  std::unique_ptr<const model::Model> own_;  // of a whole model
  const model::Model* model_ = nullptr;
};

}  // namespace tessera::api
