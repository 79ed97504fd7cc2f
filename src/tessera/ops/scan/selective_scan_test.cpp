// The selective scan in every form against values computed independently in double, and its
// kernels with gradients against the definition.
#include "tessera/ops/scan/selective_scan.h"

#include "tessera/ops/ops_testing.h"
#include "tessera/ops/basic/pointwise.h"

namespace tessera::ops::selective_scan_test {
namespace {

using Form = std::function<std::pair<Tensor, Tensor>(const SelectiveScan&, const Tensor& state)>;

std::vector<std::pair<std::string, Form>> forms() {
  std::vector<std::pair<std::string, Form>> out{{"recurrent", selective_scan_recurrent}};
  for (const int64_t chunk : {1, 2, 3, 4, 64})
    out.emplace_back("chunk " + std::to_string(chunk),
                     [chunk](const SelectiveScan& in, const Tensor& s) {
                       return selective_scan_chunked(in, chunk, s);
                     });
  return out;
}

/// The specification's example; a_log is the leaf behind A.
struct Golden {
  Tensor a_log = tensor({0, std::log(2.0), 0, std::log(2.0)}, {2, 2});  // [E, N]
  SelectiveScan in{tensor({1, -1, .5, 2, -1, .5, 2, 1}, {4, 2}),
                   tensor({0, -1, 1, .5, -.5, 0, .25, -2}, {4, 2}),
                   tensor({-1, .5}),
                   {},
                   tensor({1, .5, -1, 2, .5, -.5, 0, 1}, {4, 2}),
                   tensor({1, 1, .5, -1, 2, 0, -1, 1}, {4, 2}),
                   tensor({1, .5})};
  Tensor y = tensor({1.46989253, -1.21111548, -0.32727626, -5.61291303, -1.51199796, -1.34247236,
                     3.21986059, 1.68847476},
                    {4, 2});
  Tensor state = tensor({-0.17386905, 1.04599154, -0.65098238, 0.53749239}, {2, 2}).t();
  Tensor dy = tensor({1, -1, .5, 1, -1, 2, 1, .5}, {4, 2});

  explicit Golden(at::ScalarType type) {
    for (Tensor* leaf : leaves()) *leaf = leaf->to(type).requires_grad_(true);
    in.a_NE = -a_log.t().exp();
  }
  std::vector<Tensor*> leaves() {
    return {&in.x_TE, &in.dt_TE, &in.dt_bias_E, &in.b_TN, &in.c_TN, &in.d_E, &a_log};
  }
  void expect_gradients(double tolerance, const char* what) {
    const std::vector<Tensor> want = {
        tensor({1.15845647, -0.99082739, 1.57929811, -4.43859040, -1.31626541, 2.58628376,
                1.38687101, 0.35070664},
               {4, 2}),
        tensor({0.13603805, 0.39088019, 0.54874512, -5.34926264, 0.12816941, 2.52057340, 0.41117481,
                -0.02947455},
               {4, 2}),
        tensor({1.22412739, -2.46728359}),
        tensor({0.24679157, 0.80498460, 4.20187676, -2.56782750, 2.28868101, 0.06986643,
                -0.87444865, 0.87444865},
               {4, 2}),
        tensor({0.78733867, 0.39366934, -2.84899369, 5.60205432, -1.33647338, 0.41538079,
                -0.49936024, 1.31473773},
               {4, 2}),
        tensor({4.25, 4.5}),
        tensor({0.05960476, -0.29120283, 3.88236761, -0.59649940}, {2, 2})};
    for (size_t i = 0; i < want.size(); ++i)
      expect_near(leaves()[i]->grad(), want[i], tolerance,
                  (std::string(what) + ", gradient " + std::to_string(i)).c_str());
  }
};

SelectiveScan narrowed(const SelectiveScan& in, int64_t from, int64_t n) {
  SelectiveScan part = in;
  for (Tensor* t : {&part.x_TE, &part.dt_TE, &part.b_TN, &part.c_TN}) *t = t->narrow(0, from, n);
  return part;
}

TEST(SelectiveScan, GoldenInEveryForm) {
  for (const auto& [name, form] : forms()) {
    Golden golden(at::kDouble);
    const auto [y, state] = form(golden.in, {});
    expect_near(y, golden.y, 1e-8, name.c_str());
    expect_near(state, golden.state, 1e-8, name.c_str());
    y.backward(golden.dy);
    golden.expect_gradients(2e-8, name.c_str());
  }
}

TEST(SelectiveScan, GoldenByKernels) {
  Golden golden(at::kFloat);
  const Tensor y = selective_scan(golden.in, {4}, 64);
  expect_near(y, golden.y, 4e-6);
  y.backward(golden.dy.to(at::kFloat));
  golden.expect_gradients(4e-6, "kernels");
  const at::NoGradGuard no_gradients;
  Tensor whole_state = at::zeros({2, 2});
  const Tensor whole = selective_scan_kernel(golden.in, whole_state);
  expect_near(whole, golden.y, 4e-6);
  expect_near(whole_state, golden.state, 4e-6);
  for (int64_t cut = 0; cut <= 4; ++cut) {
    Tensor state = at::zeros({2, 2});
    const Tensor first = selective_scan_kernel(narrowed(golden.in, 0, cut), state),
                 second = selective_scan_kernel(narrowed(golden.in, cut, 4 - cut), state);
    EXPECT_TRUE(at::equal(at::cat({first, second}), whole) && at::equal(state, whole_state))
        << "cut at " << cut;
  }
}

TEST(SelectiveScan, GatedGolden) {
  const Tensor z = tensor({.5, -.5, 1, 0, -1, 2, 0, 1}, {4, 2});
  const Tensor want = tensor(
      {0.45747416, 0.22862267, -0.23925812, 0, 0.40663888, -2.36489146, 0, 1.23437396}, {4, 2});
  const auto gated_y = [&](at::ScalarType type) {
    return gated(z.to(type), selective_scan(Golden(type).in, {4}, 3), Activation::silu);
  };
  expect_near(gated_y(at::kDouble), want, 1e-8);
  expect_near(gated_y(at::kFloat), want, 4e-6);
}

TEST(SelectiveScan, AnySplitWithAnyFormsGivesTheWhole) {
  const Golden golden(at::kDouble);
  for (const auto& [first_name, first] : forms())
    for (const auto& [second_name, second] : forms())
      for (int64_t cut = 0; cut <= 4; ++cut) {
        const std::string what =
            first_name + ", then " + second_name + " from " + std::to_string(cut);
        const auto [y1, s1] = first(narrowed(golden.in, 0, cut), {});
        const auto [y2, s2] = second(narrowed(golden.in, cut, 4 - cut), s1);
        expect_near(at::cat({y1, y2}), golden.y, 1e-8, what.c_str());
        expect_near(s2, golden.state, 1e-8, what.c_str());
      }
}

/// Documents of unequal length and more channels than one unit of work: output and every gradient
/// of the kernels and of the chunked form against the definition, a document at a time.
TEST(SelectiveScan, DocumentsAgainstTheDefinition) {
  constexpr int64_t kE = 70, kN = 3;
  for (const Lengths& lengths : {Lengths{5, 1, 40, 33}, Lengths{7, 7}, Lengths(20, 3)}) {
    const int64_t t = offsets_of(lengths).back();
    const auto leaves = [&](at::ScalarType type) {
      std::vector<Tensor> out{gen({t, kE}, .7, .1), gen({t, kE}, .31, 2),
                              gen({kE}, .9, 0),     -gen({kN, kE}, .13, 1).abs(),
                              gen({t, kN}, .57, 1), gen({t, kN}, .23, 3),
                              gen({kE}, .4, 0)};
      for (Tensor& leaf : out) leaf = leaf.to(type).requires_grad_(true);
      return out;
    };
    const auto scan = [](const std::vector<Tensor>& l) {
      return SelectiveScan{l[0], l[1], l[2], l[3], l[4], l[5], l[6]};
    };
    const Tensor dy = gen({t, kE}, .19, .5);
    const auto wanted = leaves(at::kDouble);
    std::vector<Tensor> ys;
    int64_t first = 0;
    for (const int64_t length : lengths) {
      ys.push_back(selective_scan_recurrent(narrowed(scan(wanted), first, length)).first);
      first += length;
    }
    const Tensor want = at::cat(ys);
    want.backward(dy);
    for (const auto& [type, tolerance] : {std::pair{at::kDouble, 1e-11}, {at::kFloat, 2e-5}}) {
      const auto got = leaves(type);
      const Tensor y = selective_scan(scan(got), lengths, 8);
      expect_near(y, want, tolerance);
      y.backward(dy.to(type));
      for (size_t i = 0; i < got.size(); ++i)
        expect_near(got[i].grad(), wanted[i].grad(),
                    tolerance * std::max(1.0, wanted[i].grad().abs().max().item<double>()),
                    std::to_string(i).c_str());
    }
  }
}

}  // namespace
}  // namespace tessera::ops::selective_scan_test
