// A model on another device gives the CPU's results, forward, backward and with a state: on the
// test device (tests/fake_device), whose operators are the CPU's and whose memory the host cannot
// access.
//
// The results are not bit-identical. On a CPU, sums and products have tessera's order and float32
// has tessera's kernels (ops/form.h, ops/basic/ordered_sum.h); on any other
// device, libtorch computes the plain forms, with its own order of summation and its own exp. In
// double this leaves rounding near 1e-15, so a form that computes something else shows. A small
// gradient may be a sum of large terms that cancel, so differences are relative to the model's
// largest gradient.
#include <algorithm>

#include "device_checks.h"
#include "fake_device/tested_device.h"
#include "tessera/model/placement.h"

namespace tessera::contract {
namespace {

/// Largest difference from the CPU's, relative to the largest value: thousands of roundings in
/// double; in float32 the bound of gradients in check_gradients.
double tolerance(at::ScalarType type) {
  return type == at::kDouble ? 1e-12 : 1e-4;
}

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
Tensor decoded(const Rig& rig, at::Device device, at::ScalarType type) {
  const at::NoGradGuard no_gradients;
  model::State state(rig.spec(), 2, 0, at::TensorOptions(device).dtype(type));
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

double largest_of(const Tensor& values) {
  return values.defined() && values.numel() > 0 ? values.detach().abs().max().item<double>() : 0;
}

void check_spec(const Json& json, at::ScalarType type, bool with_state, Report& report) {
  const at::Device device = test::tested_device();
  const Rig rig = make_rig(json, type), there = placed(rig, device);
  fake_device::clear_findings();
  const auto compare = [&](const std::string& name, const Tensor& got, const Tensor& want,
                           double largest) {
    if (!got.defined() && !want.defined()) return;
    report.expect(got.defined() && got.device() == device, "{} is {}", name,
                  got.defined() ? "on " + got.device().str() : "missing");
    if (!got.defined() || !want.defined()) return;
    const double off = largest_of(got.detach().cpu() - want.detach());
    report.expect(off <= tolerance(type) * largest,
                  "{} in {} differs from the CPU's by {:.3g} of the largest value", name,
                  c10::toString(type), off / largest);
  };
  const auto outputs = [&](const std::string& name, const Tensor& got, const Tensor& want) {
    compare(name, got, want, largest_of(want));
  };
  const Rows rows = distinct_ids();
  const auto forward = [&](const Rig& of, Tensor& y) {
    return gradients(of, [&] { return y = whole(of, batch_of(of, rows)); });
  };
  Tensor want, got;
  const auto want_gradients = forward(rig, want), got_gradients = forward(there, got);
  report_findings("forward and backward", report);
  outputs("the output", got, want);
  double largest = 0;
  for (const auto& [name, gradient] : want_gradients)
    largest = std::max(largest, largest_of(gradient));
  for (const auto& [name, gradient] : want_gradients)
    compare("the gradient of " + name, got_gradients.at(name), gradient, largest);
  {
    const at::NoGradGuard no_gradients;
    outputs("the output without gradients", whole(there, batch_of(there, rows)),
            whole(rig, batch_of(rig, rows)));
    report_findings("forward", report);
  }
  if (!with_state) return;
  outputs("the output with a state", decoded(there, device, type), decoded(rig, at::kCPU, type));
  report_findings("decoding", report);
}

}  // namespace

void check_device(const Case& c, Report& report) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    check_spec(c.decoder, type, no_state(c).empty(), report);
    if (!c.encoder.is_null()) check_spec(c.encoder, type, false, report);
  }
}

}  // namespace tessera::contract
