#include "tessera/train/objective/contrastive/contrastive_loss.h"

#include <algorithm>
#include <limits>

#include "tessera/ops/weights/product.h"

namespace tessera::train {
namespace {

constexpr double kLeastLength = 1e-12;  // a vector of zeros stays zero

Tensor picked(const Tensor& x_ND, const std::vector<int64_t>& numbers) {
  return x_ND.index_select(0, at::tensor(numbers, at::kLong).to(x_ND.device()));
}

/// The first channels of all vectors, normalized, in double.
Tensor unit_length(const Tensor& x_ND, int64_t dims) {
  const Tensor x = (dims > 0 ? x_ND.narrow(1, 0, dims) : x_ND).to(at::kDouble);
  return x / x.norm(2, {1}, true).clamp_min(kLeastLength);
}

std::vector<int64_t> columns_of(const ContrastLayout& layout) {
  std::vector<int64_t> out = layout.positives;
  out.insert(out.end(), layout.negatives.begin(), layout.negatives.end());
  return out;
}

/// [samples, columns] on the host: columns excluded from a sample's sum.
Tensor left_out(const ContrastLayout& layout, int64_t first, int64_t count) {
  const std::vector<int64_t> columns = columns_of(layout);
  const int64_t b = layout.samples(), k = std::ssize(columns);
  const auto item = [&](int64_t piece) { return layout.items[static_cast<size_t>(piece)]; };
  std::vector<int64_t> texts, positives, of_columns;
  for (const int64_t piece : layout.texts) texts.push_back(item(piece));
  for (const int64_t piece : layout.positives) positives.push_back(item(piece));
  for (const int64_t piece : columns) of_columns.push_back(item(piece));
  const Tensor t_B = at::tensor(texts, at::kLong), p_B = at::tensor(positives, at::kLong),
               c_K = at::tensor(of_columns, at::kLong).unsqueeze(0),
               t_R1 = t_B.narrow(0, first, count).unsqueeze(1),
               p_R1 = p_B.narrow(0, first, count).unsqueeze(1);
  Tensor out = (c_K == t_R1).logical_or(c_K == p_R1);
  // the positive of an equal text
  out.narrow(1, 0, b).logical_or_(t_B.unsqueeze(0) == t_R1);
  const Tensor own = at::arange(first, first + count, at::kLong).unsqueeze(1) ==
                     at::arange(k, at::kLong).unsqueeze(0);
  return out.logical_and(own.logical_not());
}

}  // namespace

void ContrastLayout::add(const PackedBatch& packed) {
  const auto before = std::ssize(items);
  int64_t row = -1, sample = samples() - 1, place = 0;
  for (int64_t i = 0; i < std::ssize(packed.pieces); ++i) {
    const PackedDocument& piece = packed.pieces[static_cast<size_t>(i)];
    if (piece.row != row) row = piece.row, place = 0, ++sample;
    auto& kind = place == 0 ? texts : place == 1 ? positives : negatives;
    kind.push_back(before + i);
    if (place++ > 1) owner.push_back(sample);
  }
  items.insert(items.end(), packed.items.begin(), packed.items.end());
}

ContrastLosses contrast(const Tensor& vectors_ND,
                        const ContrastLayout& layout,
                        const ContrastiveRecipe& how) {
  const int64_t b = layout.samples();
  const std::vector<int64_t> columns = columns_of(layout);
  const Tensor out_BK = left_out(layout, 0, b).to(vectors_ND.device());
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  std::vector<int64_t> dims = how.dims;
  dims.push_back(0);
  ContrastLosses losses;
  for (const int64_t some : dims) {
    const Tensor e_ND = unit_length(vectors_ND, some), a_BD = picked(e_ND, layout.texts),
                 c_KD = picked(e_ND, columns), cosines_BK = ops::product(a_BD, c_KD.t());
    Tensor s_BK = cosines_BK / how.temperature;
    if (how.hard_weight > 0 && !layout.negatives.empty()) {
      Tensor added = at::zeros(s_BK.sizes(), at::kDouble);
      for (size_t i = 0; i < layout.owner.size(); ++i)
        added[layout.owner[i]][b + static_cast<int64_t>(i)] = how.hard_weight;
      s_BK = s_BK + added.to(s_BK.device());
    }
    const Tensor own_B = s_BK.diagonal();
    Tensor loss_B = s_BK.masked_fill(out_BK, kNone).logsumexp(1) - own_B;
    if (how.symmetric) {
      const Tensor back_BB = s_BK.narrow(1, 0, b).masked_fill(out_BK.narrow(1, 0, b), kNone).t();
      loss_B = 0.5 * (loss_B + back_BB.logsumexp(1) - own_B);
    }
    losses.loss_B = losses.loss_B.defined() ? losses.loss_B + loss_B : loss_B;
    if (some > 0) continue;
    const Tensor near_BK = (cosines_BK.detach() >= cosines_BK.detach().diagonal().unsqueeze(1))
                               .logical_and(out_BK.logical_not());
    losses.ahead_B = near_BK.sum(1) - 1;  // without its own positive
  }
  losses.loss_B = losses.loss_B / static_cast<double>(dims.size());
  return losses;
}

std::vector<int64_t> ranks(const Tensor& vectors_ND, const ContrastLayout& layout, int64_t dims) {
  constexpr int64_t kRows = 256;  // rows at a time: their cosines are a few MiB
  const Tensor e_ND = unit_length(vectors_ND, dims), a_BD = picked(e_ND, layout.texts),
               c_DK = picked(e_ND, columns_of(layout)).t();
  std::vector<int64_t> out;
  for (int64_t first = 0; first < layout.samples(); first += kRows) {
    const int64_t count = std::min(kRows, layout.samples() - first);
    const Tensor s_RK = ops::product(a_BD.narrow(0, first, count), c_DK),
                 own_R1 = s_RK.narrow(1, first, count).diagonal().unsqueeze(1),
                 others_RK = left_out(layout, first, count).logical_not().to(s_RK.device()),
                 near_R = (s_RK >= own_R1).logical_and(others_RK).sum(1).cpu();
    out.insert(out.end(), near_R.const_data_ptr<int64_t>(),
               near_R.const_data_ptr<int64_t>() + count);
  }
  return out;
}

}  // namespace tessera::train
