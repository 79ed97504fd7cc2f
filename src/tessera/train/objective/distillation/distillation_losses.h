// How far a student is from its teacher, with p the teacher's and q the student's distribution. All
// take float32 or double and give gradients to the student's side.
#pragma once

#include "tessera/ops/tensor.h"
#include "tessera/train/objective/distillation/distillation_recipe.h"

namespace tessera::train {

/// By row [N], T^2 times the divergence of softmax(. / T) over the classes:
///   forward  sum p ln(p / q)              Hinton, Vinyals, Dean 2015, arXiv:1503.02531
///   reverse  sum q ln(q / p)              Gu et al. 2024, arXiv:2306.08543 (MiniLLM)
///   jsd      b KL(p | m) + (1 - b) KL(q | m), m = b p + (1 - b) q;   Agarwal et al. 2024,
///            arXiv:2306.13649 (GKD)
/// Of top_k > 0 the teacher's likeliest classes and one more, which is all others.
Tensor divergence(const Tensor& student_NC, const Tensor& teacher_NC, const DistillationTerm& how);

/// By row [N]: the mean square of the difference, or 1 less the cosine.
Tensor distance(const Tensor& student_ND, const Tensor& teacher_ND, HiddenDistance how);

/// softmax(v v^T / sqrt D) of one document, with the channels of its values cut into `heads` (0 =
/// as they are): [H, T, T]. Wang et al. 2020, arXiv:2002.10957 and 2021, arXiv:2012.15828.
Tensor value_relation(const Tensor& values_TGD, int64_t heads);

/// Of weights [H, T, S], by row [T] and the mean over heads. An entry that the teacher has at 0
/// counts for nothing.
Tensor weights_divergence(const Tensor& student_HTS, const Tensor& teacher_HTS);
Tensor weights_cross_entropy(const Tensor& student_HTS, const Tensor& teacher_HTS);
/// A row's share of the squared Frobenius norm of the difference.
Tensor weights_frobenius(const Tensor& student_HTS, const Tensor& teacher_HTS);

}  // namespace tessera::train
