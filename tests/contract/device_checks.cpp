// A model on another device gives the CPU's results, forward, backward and with a state: on the
// test device (tests/fake_device), whose operators are the CPU's and whose memory the host cannot
// access. Its results differ from the CPU's plain forms by rounding only: libtorch chooses other
// forms of a few operators on a CPU (attention, vectorized loops).
#include <limits>

#include "checks.h"
#include "fake_device/fake_device.h"
#include "tessera/model/placement.h"

namespace tessera::contract {
namespace {

constexpr double kTolerance = 1e-4;  // of the largest value, float32 after a layer or two

/// No id twice in a document: a router decides between equal tokens by rounding.
Rows distinct_ids() {
  return {{3, 1, 4, 0, 5, 9, 2, 6, 8}, {7, 10, 1, 3}};
}

/// The same model on the device, with the tensors behind its weights.
Rig placed(const Rig& rig, at::Device device) {
  model::Model model = model::to_device(rig.model, device);
  std::map<std::string, Tensor> values;
  for (const auto& [decl, weight] : model.weights().all())
    values[decl.name] = weight->dense_tensor();
  return {std::move(values), std::move(model)};
}

void report_findings(const char* during, Report& report) {
  for (const fake_device::Finding& finding : fake_device::findings())
    report.expect(false, "{}: {} at {}", during, finding.what, finding.where());
  fake_device::clear_findings();
}

/// Two rows in calls of several lengths.
Tensor decoded(const Rig& rig, at::Device device) {
  const at::NoGradGuard no_gradients;
  model::State state(rig.spec(), 2, 0, at::TensorOptions(device).dtype(at::kFloat));
  const Ids a = random_ids(9, 3), b = random_ids(7, 4);
  std::vector<Tensor> out;
  size_t done = 0;
  for (const size_t n : {5, 1, 1}) {
    const auto part = [&](const Ids& ids) {
      return Ids(ids.begin() + static_cast<ptrdiff_t>(done),
                 ids.begin() + static_cast<ptrdiff_t>(done + n));
    };
    out.push_back(feed(rig, state, {{0, part(a)}, {1, part(b)}}));
    done += n;
  }
  return at::cat(out);
}

void check_spec(const Json& json, bool with_state, Report& report) {
  const Rig rig = make_rig(json, at::kFloat);
  const Rig there = placed(rig, fake_device::device());
  fake_device::clear_findings();
  const auto compare = [&](const std::string& name, const Tensor& got, const Tensor& want) {
    if (!got.defined() && !want.defined()) return;
    report.expect(got.defined() && got.device() == fake_device::device(), "{} is {}", name,
                  got.defined() ? "on " + got.device().str() : "missing");
    if (!got.defined()) return;
    const double off = want.defined() ? difference(got.detach().cpu(), want) : 0;
    report.expect(off < kTolerance, "{} differs from the CPU's by {:.3g}", name, off);
  };
  // the terms of a small gradient may cancel (a factor that a norm after it undoes): their
  // rounding, some units of float32 of the largest gradient, stays
  const auto compare_gradient = [&](const std::string& name, const Tensor& got, const Tensor& want,
                                    double largest) {
    const bool both = got.defined() && want.defined() && want.numel() > 0;
    const double off = both ? (got.detach().cpu() - want).abs().max().item<double>() : 0;
    constexpr double kRounding = 16 * std::numeric_limits<float>::epsilon();
    if (!both || !(off <= kRounding * largest)) compare("the gradient of " + name, got, want);
  };
  const Rows rows = distinct_ids();
  const auto forward = [&](const Rig& of, Tensor& y) {
    return gradients(of, [&] {
      y = whole(of, batch_of(of, rows));
      return y;
    });
  };
  Tensor want, got;
  const auto want_gradients = forward(rig, want), got_gradients = forward(there, got);
  report_findings("forward and backward", report);
  compare("the output", got, want);
  double largest = 0;
  for (const auto& [name, gradient] : want_gradients)
    if (gradient.defined() && gradient.numel() > 0)
      largest = std::max(largest, gradient.abs().max().item<double>());
  for (const auto& [name, gradient] : want_gradients)
    compare_gradient(name, got_gradients.at(name), gradient, largest);
  {
    const at::NoGradGuard no_gradients;
    compare("the output without gradients", whole(there, batch_of(there, rows)),
            whole(rig, batch_of(rig, rows)));
    report_findings("forward", report);
  }
  if (!with_state) return;
  compare("the output with a state", decoded(there, fake_device::device()), decoded(rig, at::kCPU));
  report_findings("decoding", report);
}

}  // namespace

void check_device(const Case& c, Report& report) {
  check_spec(c.decoder, no_state(c).empty(), report);
  if (!c.encoder.is_null()) check_spec(c.encoder, false, report);
}

}  // namespace tessera::contract
