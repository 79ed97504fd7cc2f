// The steps between a foreign tensor and ours, as a family file lists them, each with its inverse:
//   {"transpose": [1, 0]}                          axis k becomes axis list[k]
//   {"reshape": {"from": [...], "to": [...]}}      both are stated, so that either direction is
//   checked
//   {"squeeze": 1} {"unsqueeze": 1}                an axis of one element
//   {"split": {"axis": 0, "sizes": [...]}}         one tensor becomes several
//   {"join": {"axis": 0, "sizes": [...]}}          several become one
//   {"unstack": {"axis": 0, "count": n}} {"stack": {"axis": 0, "count": n}}   the same with an axis
//   of its own
//   {"order": [1, 0]}                              tensor k becomes tensor list[k] of several
//   {"interleave": {"heads": h, "rotary": r}}      rotary rows from halves to pairs; "deinterleave"
//   back
//   {"swap_halves": {"heads": h, "rotary": r}}     the halves of rotary rows change places
//   {"first_rows": {"count": n, "of": m, "padding": 0}}   the first n of m rows; inverted: padded
//   {"rows_before": {"count": n, "padding": 0}}    n rows before those of the tensor; inverted:
//   left out
//   {"repeat": {"axis": 0, "count": n}}            an axis of one element becomes n equal ones
//   {"mxfp4": true}                                codes and scales become one tensor of MXFP4
//   {"integers": true}                             int32 or int64 become float32; the inverse int64
//   {"ternary": {"inverse": false, "scale": "bf16"}}   codes of BitNet and their factor become one
//   {"round_ternary": true}                        nothing; inverted: rounded by its mean magnitude
//   {"add": c} {"scale": c} {"apply": "exp" | "log" | "neg"}
//   {"$if": "condition", "then": [...], "else": [...]}
// "only": [0, 1] next to a step restricts it to those of several tensors. Numbers may be
// "=expressions".
#pragma once

#include "tessera/convert/template.h"
#include "tessera/convert/tensor_ops.h"

namespace tessera::convert {

class TensorSteps {
 public:
  static TensorSteps compile(const Json& json, const std::string& where);
  bool empty() const { return steps_.empty(); }
  void collect_names(ExprNames& names) const;
  /// Whether nothing happens to a matrix but that its rows are moved and parted, and that it is
  /// turned over: then any matrix with its rows goes the same way.
  bool move_rows() const;
  /// Whether a step turns matrices over.
  bool transpose() const;
  /// Foreign to ours. Throws Error(file) that names the tensor where shapes do not fit.
  void apply(std::vector<TensorView>& tensors, Environment& env, const Local* locals) const;
  /// Ours to foreign.
  void invert(std::vector<TensorView>& tensors, Environment& env, const Local* locals) const;

 private:
  enum class Kind {
    transpose,
    reshape,
    squeeze,
    unsqueeze,
    split,
    join,
    stack,
    unstack,
    order,
    interleave,
    deinterleave,
    swap_halves,
    first_rows,
    rows_before,
    repeat,
    mxfp4,
    integers,
    ternary,
    round_ternary,
    add,
    scale,
    apply,
    choice
  };
  struct Step {
    Kind kind;
    std::shared_ptr<const Template> argument;
    std::optional<Expr> condition;
    std::vector<size_t> only;
    std::vector<TensorSteps> branches;  // then, else
    std::string where;
  };
  static void run(const Step& step,
                  bool forward,
                  std::vector<TensorView>& tensors,
                  Environment& env,
                  const Local* locals);
  std::vector<Step> steps_;
};

}  // namespace tessera::convert
