// --device, --deterministic: where and how a command computes.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "tessera/cli/cli.h"
#include "tessera/infer/loading/load_model.h"
#include "tessera/model/placement.h"
#include "tessera/ops/deterministic.h"
#include "tessera/ops/device_name.h"

namespace tessera::cli {

class DeviceFlag {
 public:
  /// `takes_auto`: whether "auto" is a device, for commands with a model of one size.
  CLI::Option* add(CLI::App& app, bool takes_auto = true) {
    takes_auto_ = takes_auto;
    option_ = app.add_option(
        "--device", given_,
        std::string("where to compute: cpu, cuda, cuda:N") +
            (takes_auto ? ", or auto = cuda if a GPU has memory for the model, else cpu" : "") +
            "; default TESSERA_DEVICE, else cpu. Quantized types stay packed on a GPU");
    app.add_flag("--deterministic", deterministic_,
                 "on a GPU: deterministic algorithms, the same bits again on one kind of GPU; the "
                 "CPU is deterministic without it");
    return option_;
  }
  /// On another device than the CPU, this option is an error.
  void excludes(const CLI::Option* option) { on_cpu_.push_back(option); }
  bool deterministic() const { return deterministic_; }

  /// Throws Error(usage) for a name or device that is not there, and for options of a CPU. `bytes`:
  /// what the model takes on a GPU; called once, for "auto", whose choice is printed and kept. From
  /// then on --deterministic holds.
  at::Device device(const std::function<int64_t()>& bytes = {}) const {
    const std::string name = this->name();
    if (name == "auto" && takes_auto_) {
      if (!chosen_) chosen_ = choose(bytes);
      return prepared(*chosen_);
    }
    if (name == "auto")
      fail(ErrorKind::usage, "device",
           "auto is not available here, where models of several sizes compute; expected {}",
           expected());
    const at::Device device = ops::device_named(name, expected());
    for (const CLI::Option* option : on_cpu_)
      if (!device.is_cpu() && option->count() > 0)
        fail(ErrorKind::usage, "device",
             "{}: {} is available on the CPU; leave it out, or --device cpu", name,
             option->get_name());
    return prepared(device);
  }
  /// The errors of device() for a device that is named.
  void check() const {
    if (name() != "auto" || !takes_auto_) device();
  }
  /// What load() returns, with its weights there; errors of device() come first.
  template <class Load>
  infer::LoadedModel loaded(const Load& load) const {
    std::optional<infer::LoadedModel> known;
    const at::Device there = device([&] {
      known.emplace(load());
      return model::bytes_on_device(known->model);
    });
    infer::LoadedModel out = known ? std::move(*known) : load();
    if (!there.is_cpu()) out.model = model::to_device(out.model, there);
    return out;
  }

 private:
  std::string expected() const {
    return takes_auto_ ? "cpu, cuda, cuda:N or auto" : "cpu, cuda or cuda:N";
  }
  std::string name() const {
    if (option_->count() > 0 && given_.empty())
      fail(ErrorKind::usage, "device", "--device is empty; expected {}", expected());
    return given_.empty() ? device_of_environment() : given_;
  }
  at::Device prepared(at::Device device) const {
    if (deterministic_ && !held_) held_.emplace(device);
    return device;
  }
  at::Device choose(const std::function<int64_t()>& bytes) const {
    for (const CLI::Option* option : on_cpu_)
      if (option->count() > 0) {
        fmt::print(stderr, "tessera: device auto: cpu, since {} is given\n", option->get_name());
        return at::kCPU;
      }
    const ops::AutoDevice out = ops::auto_device(bytes());
    fmt::print(stderr, "tessera: device auto: {}\n", out.reason);
    return out.device;
  }

  CLI::Option* option_ = nullptr;
  std::string given_;
  bool takes_auto_ = true, deterministic_ = false;
  std::vector<const CLI::Option*> on_cpu_;
  mutable std::optional<at::Device> chosen_;        // of "auto"
  mutable std::optional<ops::Deterministic> held_;  // from the choice of the device on
};

/// What a model takes on a GPU.
inline int64_t device_bytes_of(const std::string& path, const convert::LoadOptions& loading) {
  return model::bytes_on_device(infer::load_model(path, loading).model);
}

}  // namespace tessera::cli
