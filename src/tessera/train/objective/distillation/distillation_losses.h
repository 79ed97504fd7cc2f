// Distances between student and teacher, with p the teacher's and q the student's distribution. All
// take float32 or double and have gradients for the student.
#pragma once

#include "tessera/ops/tensor.h"
#include "tessera/train/objective/distillation/distillation_recipe.h"

namespace tessera::train {

/// By row [N], T^2 times the divergence of softmax(. / T) over the classes:
///   forward  sum p ln(p / q)              Hinton, Vinyals, Dean 2015, arXiv:1503.02531
///   reverse  sum q ln(q / p)              Gu et al. 2024, arXiv:2306.08543 (MiniLLM)
///   jsd      b KL(p | m) + (1 - b) KL(q | m), m = b p + (1 - b) q;   Agarwal et al. 2024,
///            arXiv:2306.13649 (GKD)
/// With top_k > 0, over the teacher's most likely classes and one class for all others.
Tensor divergence(const Tensor& student_NC, const Tensor& teacher_NC, const DistillationTerm& how);

/// By row [N]: the mean squared difference, or 1 minus the cosine.
Tensor distance(const Tensor& student_ND, const Tensor& teacher_ND, HiddenDistance how);

/// softmax(v v^T / sqrt D) of one document, with the channels of its values split into `heads` (0 =
/// unchanged): [H, T, T]. Wang et al. 2020, arXiv:2002.10957 and 2021, arXiv:2012.15828.
Tensor value_relation(const Tensor& values_TGD, int64_t heads);

/// For attention weights [H, T, S]: by row [T], mean over heads. Entries that are 0 in the teacher
/// are ignored.
Tensor weights_divergence(const Tensor& student_HTS, const Tensor& teacher_HTS);
Tensor weights_cross_entropy(const Tensor& student_HTS, const Tensor& teacher_HTS);
/// By row: its part of the squared Frobenius norm of the difference.
Tensor weights_frobenius(const Tensor& student_HTS, const Tensor& teacher_HTS);

}  // namespace tessera::train
