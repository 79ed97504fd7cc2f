#include "tessera/model/padding.h"

namespace tessera::model {
namespace {

/// Flat indices of the real tokens, row after row.
Tensor kept(const Tensor& ids_BT, const Tensor& mask_BT) {
  if (!mask_BT.defined()) return at::arange(ids_BT.numel(), at::kLong);
  return mask_BT.reshape({-1}).ne(0).nonzero().squeeze(1);
}

/// Number of tokens of a row, which must be adjacent. A 0 between tokens is an error: the tokens
/// around it would become neighbours, and every distance across it would shrink.
int64_t run_length(const Tensor& mask_T, int64_t row) {
  const Tensor real = mask_T.ne(0).nonzero().squeeze(1);
  const int64_t length = real.numel();
  if (length == 0) fail(ErrorKind::input, "input", "row {} of attention_mask holds no token", row);
  const int64_t first = real[0].item<int64_t>();
  if (real[length - 1].item<int64_t>() - first + 1 != length)
    fail(ErrorKind::input, "input",
         "row {} of attention_mask has a 0 between its tokens, at {}; expected padding at the ends "
         "only: leave that token out of input_ids",
         row, mask_T.slice(0, first).eq(0).nonzero()[0].item<int64_t>() + first);
  return length;
}

/// Checks that a mask is 0 or 1 for every token; masks that are added to scores are not supported.
void expect_zero_or_one(const Tensor& mask_BT, const char* name) {
  if (!mask_BT.defined()) return;
  const Tensor wrong = mask_BT.ne(0).logical_and(mask_BT.ne(1)).nonzero();
  if (wrong.size(0) == 0) return;
  const int64_t row = wrong[0][0].item<int64_t>(), column = wrong[0][1].item<int64_t>();
  fail(ErrorKind::input, "input", "{}[{}, {}] is {}; expected 0 or 1", name, row, column,
       mask_BT[row][column].item<double>());
}

}  // namespace

nn::Batch from_padded(const Tensor& ids_BT,
                      const Tensor& mask_BT,
                      const Tensor& positions,
                      const Tensor& types_BT,
                      const Tensor& global_BT) {
  if (ids_BT.dim() != 2 || ids_BT.numel() == 0)
    fail(ErrorKind::input, "input", "input_ids has {} axes and {} ids; expected [B, T], not empty",
         ids_BT.dim(), ids_BT.numel());
  const auto same_shape = [&](const Tensor& t, const char* name) {
    if (t.defined() && t.sizes() != ids_BT.sizes())
      fail(ErrorKind::input, "input", "{} has another shape than input_ids [{}, {}]", name,
           ids_BT.size(0), ids_BT.size(1));
  };
  same_shape(mask_BT, "attention_mask");
  const bool by_axes = positions.defined() && positions.dim() == 3;
  if (!by_axes) {
    same_shape(positions, "position_ids");
  } else if (positions.size(0) != 3 || positions[0].sizes() != ids_BT.sizes()) {
    fail(ErrorKind::input, "input",
         "position_ids is [{}]; expected [{}, {}] as input_ids, or [3, {}, {}]",
         fmt::join(positions.sizes(), ", "), ids_BT.size(0), ids_BT.size(1), ids_BT.size(0),
         ids_BT.size(1));
  }
  same_shape(types_BT, "token_type_ids");
  same_shape(global_BT, "global_attention_mask");
  expect_zero_or_one(mask_BT, "attention_mask");
  expect_zero_or_one(global_BT, "global_attention_mask");
  const Tensor index = kept(ids_BT, mask_BT);
  const auto pick = [&](const Tensor& t) {
    return t.reshape({-1}).to(at::kLong).index_select(0, index);
  };
  nn::Batch batch;
  batch.ids_N = pick(ids_BT);
  int64_t begin = 0;
  for (int64_t r = 0; r < ids_BT.size(0); ++r) {
    const int64_t length = mask_BT.defined() ? run_length(mask_BT.select(0, r), r) : ids_BT.size(1);
    batch.segments.push_back({r, begin, length, 0});
    begin += length;
  }
  batch.number();
  if (by_axes)
    batch.axes_3N = at::stack({pick(positions[0]), pick(positions[1]), pick(positions[2])});
  else if (positions.defined())
    batch.positions_N = pick(positions);
  if (types_BT.defined()) batch.types_N = pick(types_BT);
  if (global_BT.defined()) batch.global_N = pick(global_BT).ne(0);
  return batch;
}

void set_prefixes(nn::Batch& batch, const Tensor& lengths_B) {
  if (lengths_B.dim() != 1 || lengths_B.size(0) != static_cast<int64_t>(batch.segments.size()))
    fail(ErrorKind::input, "input", "prefix_lengths is [{}]; expected [{}], one for each row",
         fmt::join(lengths_B.sizes(), ", "), batch.segments.size());
  const Tensor lengths = lengths_B.to(at::kLong).contiguous();
  for (nn::Segment& s : batch.segments) {
    s.prefix = lengths.const_data_ptr<int64_t>()[s.row];
    if (s.prefix < 0 || s.prefix > s.length)
      fail(ErrorKind::input, "input",
           "prefix_lengths[{}] is {}; expected 0 to {}, the row's tokens", s.row, s.prefix,
           s.length);
  }
}

Tensor to_padded(const Tensor& x_N, const Tensor& ids_BT, const Tensor& mask_BT) {
  auto sizes = x_N.sizes().vec();
  sizes[0] = ids_BT.numel();
  Tensor out = at::zeros(sizes, x_N.options());
  out.index_copy_(0, kept(ids_BT, mask_BT), x_N);
  sizes.erase(sizes.begin());
  sizes.insert(sizes.begin(), {ids_BT.size(0), ids_BT.size(1)});
  return out.reshape(sizes);
}

}  // namespace tessera::model
