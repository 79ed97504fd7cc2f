// In the order of the file:
//  memory     two mappings of the same pages per device: `shown`, without rights, is what tensors
//             point to; `real`, a constant distance away, is where kernels work. There is no
//             mprotect() per operator, so no moment in which another thread could access device
//             memory unseen.
//  device     what libtorch requires of a backend in addition to operators: guard, streams (one,
//             always finished), events, generators, hooks.
//  operators  one boxed function. It makes CPU tensors over the same bytes (Shared), calls the CPU
//             kernel, and turns each result into the argument itself, a view of an argument's
//             storage, or a new device tensor. Views, in-place forms, out arguments of another
//             size, resize_ and set_ need no code of their own: aliasing follows from the storages.
//  graphs     operators with their arguments and results, run again on the same memory.
//  faults     SIGSEGV at an address of a device: a jump back (touched), a finding (survey), or the
//             end of the process with the callers.
#include "fake_device.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <execinfo.h>
#include <mutex>
#include <set>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/copy.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#if __has_include(<ATen/core/GraphImplInterface.h>)
#include <ATen/core/GraphImplInterface.h>
#endif
#include <torch/library.h>

namespace fake_device {
namespace {

using at::Tensor;
constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr auto kKey = c10::DispatchKey::PrivateUse1;
constexpr size_t kPage = 512;  // allocations are multiples of this, as CUDA's are

Options g_options;
std::mutex g_mutex;
Counts g_counts;
std::atomic<bool> g_unordered{false};
thread_local c10::DeviceIndex t_device = 0;

// --- findings of a survey

constexpr int kFrames = 64;
struct Raw {
  const void* touched = nullptr;
  std::string what;
  int n = 0;
  void* frames[kFrames];
};
// also written by a signal handler, which allocates no memory
Raw g_found[4096];
std::atomic<size_t> g_n_found{0};

void note(const void* touched, std::string what = "") {
  const size_t i = g_n_found++;
  if (i >= std::size(g_found)) return;
  g_found[i].touched = touched;
  if (!what.empty()) g_found[i].what = std::move(what);
  g_found[i].n = backtrace(g_found[i].frames, kFrames);
}

// --- memory

struct Memory {
  char *shown = nullptr, *real = nullptr;
  size_t size = 0, used = 0;
  size_t held = 0, held_at_most = 0;                   // by blocks
  std::map<size_t, std::vector<size_t>> freed;         // by rounded size
  std::map<size_t, std::pair<size_t, size_t>> blocks;  // offset: rounded size, bytes asked for
};
Memory g_memory[8];
int g_devices = 0;

int device_of(const void* address) {
  const char* p = static_cast<const char*>(address);
  for (int d = 0; d < g_devices; ++d)
    if (p >= g_memory[d].shown && p < g_memory[d].shown + g_memory[d].size) return d;
  return -1;
}

// Where kernels find the numbers of an address of the device.
void* real(const void* shown) {
  const int d = device_of(shown);
  if (d < 0) return const_cast<void*>(shown);  // null
  return g_memory[d].real + (static_cast<const char*>(shown) - g_memory[d].shown);
}

// Reports memory as CUDA's allocator does: freed blocks are not held.
struct DeviceAllocator final : c10::DeviceAllocator {
  static void release(void* shown) {
    const std::lock_guard lock(g_mutex);
    Memory& m = g_memory[device_of(shown)];
    const auto block = m.blocks.find(static_cast<size_t>(static_cast<char*>(shown) - m.shown));
    m.freed[block->second.first].push_back(block->first);
    g_counts.bytes_in_use -= block->second.first;
    m.held -= block->second.first;
    m.blocks.erase(block);
  }
  c10::DataPtr allocate_on(size_t n, int d) {
    const c10::Device device(kType, static_cast<c10::DeviceIndex>(d));
    if (n == 0) return {nullptr, device};
    const std::lock_guard lock(g_mutex);
    Memory& m = g_memory[d];
    const size_t size = (n + kPage - 1) / kPage * kPage;
    size_t at = m.used;
    if (auto& list = m.freed[size]; !list.empty()) {
      at = list.back();
      list.pop_back();
    } else {
      TORCH_CHECK_WITH(OutOfMemoryError, size <= m.size - m.used, "[", device,
                       "] out of memory: ", n, " bytes");
      m.used += size;
    }
    m.blocks[at] = {size, n};
    g_counts.bytes_in_use += size;
    g_counts.bytes_at_most = std::max(g_counts.bytes_at_most, g_counts.bytes_in_use);
    m.held += size;
    m.held_at_most = std::max(m.held_at_most, m.held);
    if (g_options.poison) std::memset(m.real + at, 0xff, size);
    return {m.shown + at, m.shown + at, &release, device};
  }
  c10::DataPtr allocate(size_t n) override { return allocate_on(n, t_device); }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t n) const override {
    std::memcpy(real(to), real(from), n);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex d) override {
    const std::lock_guard lock(g_mutex);
    c10::CachingDeviceAllocator::DeviceStats out;
    auto& held =
        out.reserved_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    held.current = static_cast<int64_t>(g_memory[d].held);
    held.peak = static_cast<int64_t>(g_memory[d].held_at_most);
    return out;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex d) override {
    const std::lock_guard lock(g_mutex);
    g_memory[d].held_at_most = g_memory[d].held;
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex d) override {
    const std::lock_guard lock(g_mutex);
    return {g_memory[d].size - g_memory[d].held, g_memory[d].size};
  }
};
DeviceAllocator g_allocator;

// --- device, stream, generator

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device d) const override {
    const c10::Device old = getDevice();
    setDevice(d);
    return old;
  }
  c10::Device getDevice() const override { return {kType, t_device}; }
  void setDevice(c10::Device d) const override {
    if (d.index() < 0) return;
    TORCH_CHECK(d.index() < g_devices, "there is no ", d);
    t_device = d.index();
  }
  void uncheckedSetDevice(c10::Device d) const noexcept override {
    if (d.index() >= 0 && d.index() < g_devices) t_device = d.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(g_devices);
  }
  // one stream per device, whose work is finished when a call returns
  c10::Stream getStream(c10::Device d) const override {
    return c10::Stream(c10::Stream::DEFAULT, d.index() < 0 ? getDevice() : d);
  }
  c10::Stream getDefaultStream(c10::Device d) const override { return getStream(d); }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool) const override { return getStream(d); }
  c10::Stream getNewStream(c10::Device d, int) const override { return getStream(d); }
  c10::Stream exchangeStream(c10::Stream s) const override { return getStream(s.device()); }
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override {}
};

// A CPU generator with the device's keys; kernels get a CPU generator in the same state.
struct Generator final : at::CPUGeneratorImpl {
  explicit Generator(c10::DeviceIndex index) {
    device_ = c10::Device(kType, index);
    key_set_ = c10::DispatchKeySet(kKey);
  }
};
at::Generator& default_generator(c10::DeviceIndex index) {
  static std::vector<at::Generator> all = [] {
    std::vector<at::Generator> made;
    for (int d = 0; d < g_devices; ++d)
      made.push_back(at::make_generator<Generator>(static_cast<c10::DeviceIndex>(d)));
    return made;
  }();
  return all[static_cast<size_t>(index < 0 ? t_device : index)];
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(g_devices); }
  void setCurrentDevice(c10::DeviceIndex i) const override { t_device = i; }
  c10::DeviceIndex getCurrentDevice() const override { return t_device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex i) const override {
    return std::exchange(t_device, i);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex i) const override {
    return std::exchange(t_device, i);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex i) const override {
    return default_generator(i);
  }
  at::Generator getNewGenerator(c10::DeviceIndex i) const override {
    return at::make_generator<Generator>(i < 0 ? t_device : i);
  }
  c10::Device getDeviceFromPtr(void* p) const override {
    return {kType, static_cast<c10::DeviceIndex>(device_of(p))};
  }
};

// --- operators

Tensor empty_on(at::IntArrayRef size,
                at::IntArrayRef strides,
                at::ScalarType type,
                c10::Device device) {
  const c10::DeviceGuard guard(device);
  return Tensor(at::detail::empty_strided_generic(size, strides, &g_allocator,
                                                  c10::DispatchKeySet(kKey), type));
}

bool same(const c10::Storage& a, const c10::Storage& b) {
  return a.unsafeGetStorageImpl() == b.unsafeGetStorageImpl();
}

// CPU tensors that share the memory of device tensors, for one call; and the way back.
class Shared {
 public:
  // a CPU storage over the same bytes; growing it moves it to the host, which settle() undoes
  c10::Storage host(const c10::Storage& storage) {
    for (const Pair& p : storages_)
      if (same(p.device, storage)) return p.host;
    c10::Storage made(c10::Storage::use_byte_size_t{}, storage.nbytes(),
                      c10::DataPtr(real(storage.data()), c10::Device(c10::kCPU)),
                      at::getCPUAllocator(), true);
    storages_.push_back({storage, made, made.data()});
    return made;
  }
  Tensor host(const Tensor& t) {
    if (!t.defined() || !t.is_privateuseone()) return t;
    for (const auto& [device, made] : tensors_)
      if (device.is_same(t)) return made;
    Tensor made = at::detail::make_tensor<c10::TensorImpl>(
        host(t.storage()), c10::DispatchKeySet(c10::DispatchKey::CPU), t.dtype());
    copy_view(t, made);
    if (t.unsafeGetTensorImpl()->is_wrapped_number())
      made.unsafeGetTensorImpl()->set_wrapped_number(true);
    tensors_.emplace_back(t, made);
    return made;
  }
  // arguments that were resized, or set to another storage
  void settle() {
    for (const Pair& p : storages_) {
      if (p.host.data() == p.data && p.host.nbytes() == p.device.nbytes()) continue;
      auto* impl = p.device.unsafeGetStorageImpl();
      if (p.host.data() != p.data) {
        c10::DataPtr grown = g_allocator.allocate_on(p.host.nbytes(), p.device.device().index());
        std::memcpy(real(grown.get()), p.host.data(), p.host.nbytes());
        impl->set_data_ptr_noswap(std::move(grown));
      }
      impl->set_nbytes(p.host.nbytes());
    }
    for (const auto& [device, made] : tensors_) {
      const c10::Storage& at = device_storage(made);
      if (at && !same(device.storage(), at))
        device.unsafeGetTensorImpl()->set_storage_keep_dtype(at);
      if (device.sizes() != made.sizes() || device.strides() != made.strides() ||
          device.storage_offset() != made.storage_offset())
        device.unsafeGetTensorImpl()->set_sizes_and_strides(made.sizes(), made.strides(),
                                                            made.storage_offset());
    }
  }
  // an argument itself, a view of one, or a new tensor
  Tensor device(const Tensor& t, c10::Device on) const {
    if (!t.defined()) return t;
    for (const auto& [device, made] : tensors_)
      if (made.is_same(t)) return device;
    Tensor out;
    if (const c10::Storage& storage = device_storage(t)) {
      // with the keys of the tensor that it is a view of: whether gradients may pass
      c10::DispatchKeySet keys(kKey);
      for (const auto& [device, made] : tensors_)
        if (same(device.storage(), storage)) keys = device.key_set();
      out = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(storage),
                                                     keys, t.dtype());
      copy_view(t, out);
      return out;
    }
    for (const Tensor& plain : plain_)
      if (plain.is_same(t)) return t;  // a CPU argument returned
    out = empty_on(t.sizes(), t.strides(), t.scalar_type(), on);
    if (const size_t n = std::min<size_t>(out.storage().nbytes(),
                                          t.storage().nbytes() - t.storage_offset() * t.itemsize());
        n && t.numel())
      std::memcpy(real(out.storage().data()), t.const_data_ptr(), n);
    out._set_conj(t.is_conj());
    out._set_neg(t.is_neg());
    return out;
  }
  void keep_plain(const Tensor& t) { plain_.push_back(t); }

 private:
  struct Pair {
    c10::Storage device, host;
    const void* data;
  };
  const c10::Storage& device_storage(const Tensor& t) const {
    static const c10::Storage none;
    for (const Pair& p : storages_)
      if (same(p.host, t.storage())) return p.device;
    return none;
  }
  static void copy_view(const Tensor& from, const Tensor& to) {
    to.unsafeGetTensorImpl()->set_sizes_and_strides(from.sizes(), from.strides(),
                                                    from.storage_offset());
    to._set_conj(from.is_conj());
    to._set_neg(from.is_neg());
  }
  std::vector<Pair> storages_;
  std::vector<std::pair<Tensor, Tensor>> tensors_;
  std::vector<Tensor> plain_;
};

// A page that a survey opened is closed again at the next operator.
std::atomic<bool> g_open{false};
void raise_barriers() {
  if (!g_open.exchange(false)) return;
  for (int d = 0; d < g_devices; ++d) mprotect(g_memory[d].shown, g_memory[d].size, PROT_NONE);
}

// CUDA accepts tensors without axes from the host, and indices of index and index_put_; all others
// must be on the operator's device.
bool may_be_on_host(const std::string& name, const Tensor& t, size_t argument) {
  return t.dim() == 0 ||
         (argument == 1 && (name == "aten::index" || name.find("index_put") != std::string::npos));
}

// --- graphs

struct Launch {
  std::optional<c10::OperatorHandle> op;  // none: a copy of arguments[0] to arguments[1]
  torch::jit::Stack arguments, results;
};
// What this thread records; null = it computes.
thread_local std::vector<Launch>* t_recording = nullptr;
thread_local bool t_replaying = false;
std::atomic<bool> g_refuse_graphs{false};

void refuse_while_recording(bool wrong, const std::string& what) {
  TORCH_CHECK(!wrong || t_recording == nullptr, "[fake device] ", what,
              " while operators are recorded");
}

// Moves a number of an operator's result by a unit in the last place, another one at every call.
void disorder(const std::string& name, const Tensor& result) {
  static const std::set<std::string> sums{"aten::embedding_dense_backward",
                                          "aten::index_add_",
                                          "aten::index_add",
                                          "aten::_index_put_impl_",
                                          "aten::index_put_",
                                          "aten::scatter_add_",
                                          "aten::scatter_add",
                                          "aten::index_add.out",
                                          "aten::index_put"};
  // another order in every process, too
  static std::atomic<uint64_t> calls{
      static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count())};
  if (!g_unordered || at::globalContext().deterministicAlgorithms() || !sums.contains(name)) return;
  if (result.scalar_type() != at::kFloat || result.numel() == 0 || !result.is_contiguous()) return;
  float* const values = result.mutable_data_ptr<float>();
  uint64_t random = ++calls * 0x9e3779b97f4a7c15U;
  for (int64_t i = 0; i < result.numel(); ++i) {
    random = random * 6364136223846793005U + 1442695040888963407U;
    values[i] = std::nextafter(values[i], random >> 63 != 0 ? -1e30F : 1e30F);
  }
}

void serve(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const auto& schema = op.schema();
  const std::string& name = schema.name();
  const size_t n = schema.arguments().size(), first = stack->size() - n;
  const auto must = [](bool holds, const auto&... text) {
    if (holds) return;
    if (!g_options.survey) TORCH_CHECK(false, "[fake device] ", text...);
    note(nullptr, c10::str(text...));
  };
  raise_barriers();
  must(name.compare(0, 6, "aten::") == 0, op.operator_name(), " has no kernel for this device");
  refuse_while_recording(name == "aten::_local_scalar_dense", "the host reads a number");
  if (!t_replaying) {
    const std::lock_guard lock(g_mutex);
    ++g_counts.operators;
    ++g_counts.by_name[name];
    if (name == "aten::_local_scalar_dense") ++g_counts.scalars;
    if (!at::globalContext().deterministicAlgorithms()) ++g_counts.not_deterministic;
  }
  Launch launch;
  if (t_recording != nullptr)
    launch = {op, {stack->begin() + static_cast<std::ptrdiff_t>(first), stack->end()}, {}};
  // where it runs: the device argument, or that of its tensors
  std::optional<c10::Device> on;
  const auto see = [&](const Tensor& t) {
    if (!on && t.defined() && t.is_privateuseone()) on = t.device();
  };
  for (size_t i = 0; i < n; ++i) {
    const c10::IValue& v = (*stack)[first + i];
    if (v.isDevice()) on = v.toDevice();
    if (v.isTensor()) see(v.toTensor());
    if (v.isStorage() && !on) on = v.toStorage().device();
    if (v.isTensorList())
      for (const Tensor& t : v.toTensorVector()) see(t);
    if (v.isOptionalTensorList())
      for (const auto& t : v.toOptionalTensorVector())
        if (t) see(*t);
  }
  TORCH_CHECK(on && on->type() == kType, "[fake device] ", op.operator_name(),
              ": no tensor is on the device");
  if (on->index() < 0) on = c10::Device(kType, t_device);

  Shared shared;
  const auto host = [&](const Tensor& t, size_t i) {
    if (!t.defined()) return t;
    if (!t.is_privateuseone()) {
      shared.keep_plain(t);
      refuse_while_recording(t.dim() > 0, c10::str(op.operator_name(), " reads host memory"));
      must(may_be_on_host(name, t, i), op.operator_name(), ": ", schema.arguments()[i].name(),
           " is on ", t.device(), "; expected all tensors to be on the same device, ", *on);
    } else {
      must(t.device() == *on, op.operator_name(), ": ", schema.arguments()[i].name(), " is on ",
           t.device(), "; expected all tensors to be on the same device, ", *on);
      TORCH_CHECK_NOT_IMPLEMENTED(t.layout() == at::kStrided, "[fake device] ", op.operator_name(),
                                  ": only strided tensors are supported");
    }
    return shared.host(t);
  };
  at::Generator drawn, cpu_generator;
  for (size_t i = 0; i < n; ++i) {
    c10::IValue& v = (*stack)[first + i];
    if (v.isTensor()) {
      v = host(v.toTensor(), i);
    } else if (v.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& t : v.toTensorVector()) list.push_back(host(t, i));
      v = std::move(list);
    } else if (v.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (const auto& t : v.toOptionalTensorVector())
        list.push_back(t ? std::optional<Tensor>(host(*t, i)) : t);
      v = std::move(list);
    } else if (v.isDevice()) {
      v = c10::Device(c10::kCPU);
    } else if (v.isStorage()) {
      v = shared.host(v.toStorage());
    } else if (schema.arguments()[i].name() == "generator" && (v.isNone() || v.isGenerator())) {
      drawn = v.isNone() ? default_generator(on->index()) : v.toGenerator();
      must(drawn.device() == *on, op.operator_name(), ": the generator is on ", drawn.device());
      cpu_generator = at::detail::createCPUGenerator();
      cpu_generator.set_state(drawn.get_state());
      v = cpu_generator;
    }
  }
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  if (drawn.defined()) drawn.set_state(cpu_generator.get_state());
  if (!schema.returns().empty() && stack->back().isTensor())
    disorder(name, stack->back().toTensor());
  shared.settle();

  for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); ++i) {
    c10::IValue& v = (*stack)[i];
    if (v.isTensor()) {
      v = shared.device(v.toTensor(), *on);
    } else if (v.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& t : v.toTensorVector()) list.push_back(shared.device(t, *on));
      v = std::move(list);
    }
  }
  if (t_recording == nullptr) return;
  launch.results = {stack->end() - static_cast<std::ptrdiff_t>(schema.returns().size()),
                    stack->end()};
  t_recording->push_back(std::move(launch));
}

Tensor empty(at::IntArrayRef size,
             std::optional<at::ScalarType> type,
             std::optional<at::Layout>,
             std::optional<at::Device> device,
             std::optional<bool>,
             std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device.value_or(c10::Device(kType)));
  return Tensor(at::detail::empty_generic(size, &g_allocator, c10::DispatchKeySet(kKey),
                                          c10::dtype_or_default(type), format));
}

Tensor empty_strided(at::IntArrayRef size,
                     at::IntArrayRef strides,
                     std::optional<at::ScalarType> type,
                     std::optional<at::Layout>,
                     std::optional<at::Device> device,
                     std::optional<bool>) {
  return empty_on(size, strides, c10::dtype_or_default(type), device.value_or(c10::Device(kType)));
}

// where copy_ and to() end when one tensor is on a device
Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  const at::AutoDispatchBelowADInplaceOrView below;
  refuse_while_recording(from.is_cpu() || to.is_cpu(), "a copy from or to the host");
  if (t_recording != nullptr) t_recording->push_back({{}, {from, to}, {}});
  if (!t_replaying) {
    const std::lock_guard lock(g_mutex);
    ++(from.is_cpu()                  ? g_counts.to_device
       : to.is_cpu()                  ? g_counts.to_host
       : from.device() != to.device() ? g_counts.between
                                      : g_counts.operators);
    if (!from.is_cpu() && to.is_cpu())
      g_counts.bytes_to_host += static_cast<int64_t>(from.nbytes());
  }
  raise_barriers();
  Shared shared;
  shared.host(to).copy_(shared.host(from));
  return to;
}

void record_stream(Tensor&, c10::Stream) {}

#if __has_include(<ATen/core/GraphImplInterface.h>)

// While operators are recorded they run, so that shapes are known; then memory becomes what it was,
// and memory that was taken meanwhile holds NaN, as nothing is computed on a GPU.
class Graph final : public at::GraphImplInterface {
 public:
  explicit Graph(at::GraphImplArgs) {}
  void capture_begin(at::MempoolId_t, at::GraphCaptureMode) override {
    TORCH_CHECK(!g_refuse_graphs, "[fake device] operators are not recorded");
    TORCH_CHECK(t_recording == nullptr, "[fake device] operators are recorded already");
    launches_.clear();
    before_.clear();
    const std::lock_guard lock(g_mutex);
    for (int d = 0; d < g_devices; ++d)
      for (const auto& [at, sizes] : g_memory[d].blocks)
        before_[{d, at}].assign(g_memory[d].real + at, g_memory[d].real + at + sizes.first);
    t_recording = &launches_;
  }
  void capture_end() override {
    t_recording = nullptr;
    const std::lock_guard lock(g_mutex);
    for (int d = 0; d < g_devices; ++d)
      for (const auto& [at, sizes] : g_memory[d].blocks) {
        const auto found = before_.find({d, at});
        if (found != before_.end())
          std::memcpy(g_memory[d].real + at, found->second.data(),
                      std::min(sizes.first, found->second.size()));
        else
          std::memset(g_memory[d].real + at, 0xff, sizes.first);
      }
    before_.clear();
  }
  void instantiate() override {}
  void replay() override {
    {
      const std::lock_guard lock(g_mutex);
      ++g_counts.replays;
    }
    t_replaying = true;
    try {
      for (const Launch& launch : launches_) run(launch);
    } catch (...) {
      t_replaying = false;
      throw;
    }
    t_replaying = false;
  }
  void reset() override { launches_.clear(); }
  at::MempoolId_t pool() const override { return {0, 0}; }
  void enable_debug_mode() override {}
  void debug_dump(const std::string&) override {}

 private:
  static void run(const Launch& launch) {
    if (!launch.op) {
      Shared shared;
      shared.host(launch.arguments[1].toTensor())
          .copy_(shared.host(launch.arguments[0].toTensor()));
      return;
    }
    torch::jit::Stack stack = launch.arguments;
    serve(*launch.op, &stack);
    for (size_t i = 0; i < launch.results.size(); ++i) {
      if (launch.results[i].isTensor()) settle(stack[i].toTensor(), launch.results[i].toTensor());
      if (launch.results[i].isTensorList()) {
        const auto fresh = stack[i].toTensorVector(), recorded = launch.results[i].toTensorVector();
        for (size_t j = 0; j < recorded.size(); ++j) settle(fresh[j], recorded[j]);
      }
    }
  }
  // a result that is no view of an argument goes where the recorded one is
  static void settle(const Tensor& fresh, const Tensor& recorded) {
    if (!recorded.defined() || same(fresh.storage(), recorded.storage())) return;
    Shared shared;
    shared.host(recorded).copy_(shared.host(fresh));
  }

  std::vector<Launch> launches_;
  std::map<std::pair<int, size_t>, std::vector<char>> before_;
};

void register_graphs() {
  at::GraphImplRegistry()->Register(
      c10::DeviceTypeName(kType, false),
      [](at::GraphImplArgs args) -> std::unique_ptr<at::GraphImplInterface> {
        return std::make_unique<Graph>(args);
      });
}

#else
void register_graphs() {}
#endif

// --- faults

struct sigaction g_before;
thread_local sigjmp_buf* t_jump = nullptr;
thread_local const void* t_touched = nullptr;
constexpr int kExitCode = 86;

void on_fault(int signal, siginfo_t* info, void* context) {
  const bool ours = device_of(info->si_addr) >= 0;
  if (ours && t_jump) {
    t_touched = info->si_addr;
    siglongjmp(*t_jump, 1);
  }
  if (ours && g_options.survey) {
    note(info->si_addr);
    g_open = true;
    const auto page = reinterpret_cast<uintptr_t>(info->si_addr) & ~uintptr_t{4095};
    if (mprotect(reinterpret_cast<void*>(page), 4096, PROT_READ | PROT_WRITE) == 0) return;
  }
  if (ours) {
    const std::string text = "the host accesses " + describe(info->si_addr) + "\n";
    (void)!write(2, text.data(), text.size());
    void* frames[64];
    backtrace_symbols_fd(frames, backtrace(frames, 64), 2);
    _exit(kExitCode);
  }
  if (g_before.sa_flags & SA_SIGINFO && g_before.sa_sigaction)
    return g_before.sa_sigaction(signal, info, context);
  ::signal(signal, SIG_DFL);
  raise(signal);
}

void handle_faults() {
  static const bool once = [] {
    void* frames[2];
    backtrace(frames, 2);  // loads its libraries before a handler runs
    struct sigaction action {};
    action.sa_sigaction = &on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    return sigaction(SIGSEGV, &action, &g_before) == 0;
  }();
  (void)once;
}

char* map(int file, size_t size, int rights) {
  void* p = mmap(nullptr, size, rights, MAP_SHARED | MAP_NORESERVE, file, 0);
  TORCH_CHECK(p != MAP_FAILED, "[fake device] no address range of ", size, " bytes");
  return static_cast<char*>(p);
}

}  // namespace

void install(const Options& options) {
  static bool done = false;
  if (std::exchange(done, true)) return;
  TORCH_CHECK(options.devices > 0 && options.devices <= static_cast<int>(std::size(g_memory)),
              "[fake device] ", options.devices, " devices");
  g_options = options;
  for (int d = 0; d < options.devices; ++d) {
    g_memory[d].size = options.bytes;
    const int file = memfd_create("fake device", MFD_CLOEXEC);
    TORCH_CHECK(file >= 0 && ftruncate(file, static_cast<off_t>(options.bytes)) == 0,
                "[fake device] no memory");
    g_memory[d].shown = map(file, options.bytes, PROT_NONE);
    g_memory[d].real = map(file, options.bytes, PROT_READ | PROT_WRITE);
    close(file);
  }
  g_devices = options.devices;
  c10::register_privateuse1_backend("fake");
  c10::SetAllocator(kType, &g_allocator);
  static const c10::impl::DeviceGuardImplRegistrar guard(kType, new Guard);
  at::RegisterPrivateUse1HooksInterface(new Hooks);

  const auto boxed = [] { return torch::CppFunction::makeFromBoxedFunction<&serve>(); };
  static torch::Library rest(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
  rest.fallback(boxed());
  static torch::Library aten(torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__);
  aten.impl("empty.memory_format", empty);
  aten.impl("empty_strided", empty_strided);
  aten.impl("_copy_from", copy_from);
  aten.impl("record_stream", record_stream);
  // clone() would resolve the conjugate by clone(), without end; the copy handles conjugate views
  for (const auto key : {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative}) {
    static std::vector<torch::Library> views;
    views.emplace_back(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    views.back().impl("_copy_from", torch::CppFunction::makeFallthrough());
  }
  // composites that end in an operator without a CPU kernel
  aten.impl("convolution", boxed());
  aten.impl("convolution_backward", boxed());
  // by name: torch would compose other operators for a device without a kernel, with other bits
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op || !op->hasSchema() || name.name.compare(0, 6, "aten::") != 0) continue;
    if (!op->hasKernelForDispatchKey(c10::DispatchKey::CPU) || op->hasKernelForDispatchKey(kKey))
      continue;
    aten.impl(c10::toString(name).c_str() + 6, boxed());
  }
  register_graphs();
  handle_faults();
}

at::Device device(int index) {
  return {kType, static_cast<c10::DeviceIndex>(index)};
}

std::string describe(const void* address) {
  const int d = device_of(address);
  if (d < 0) return "";
  const Memory& m = g_memory[d];
  const size_t at = static_cast<size_t>(static_cast<const char*>(address) - m.shown);
  const auto block = m.blocks.upper_bound(at);
  std::string out = "fake:" + std::to_string(d);
  if (block == m.blocks.begin()) return out;
  const auto& [begin, sizes] = *std::prev(block);
  if (at - begin >= sizes.first) return out + ", not allocated";
  return out + ", byte " + std::to_string(at - begin) + " of an allocation of " +
         std::to_string(sizes.second);
}

Counts counts() {
  const std::lock_guard lock(g_mutex);
  return g_counts;
}

void reset_counts() {
  const std::lock_guard lock(g_mutex);
  const size_t in_use = g_counts.bytes_in_use;
  g_counts = {};
  g_counts.bytes_in_use = g_counts.bytes_at_most = in_use;
}

void refuse_graphs(bool refuse) {
  g_refuse_graphs = refuse;
}

std::string Finding::where(size_t n) const {
  std::string out;
  Dl_info own{}, at{};
  dladdr(reinterpret_cast<void*>(&install), &own);
  for (void* caller : callers) {
    if (n == 0) break;
    if (dladdr(caller, &at) == 0 || at.dli_fbase != own.dli_fbase) continue;
    char text[32];
    std::snprintf(
        text, sizeof text, "%s(+0x%zx)", out.empty() ? "" : " ",
        static_cast<size_t>(static_cast<char*>(caller) - static_cast<char*>(own.dli_fbase)));
    out += text;
    --n;
  }
  return out;
}

std::vector<Finding> findings() {
  std::vector<Finding> out;
  for (size_t i = 0; i < std::min(g_n_found.load(), std::size(g_found)); ++i) {
    const Raw& raw = g_found[i];
    out.push_back({raw.touched ? "the host accesses " + describe(raw.touched) : raw.what,
                   {raw.frames, raw.frames + raw.n}});
  }
  return out;
}

void clear_findings() {
  for (Raw& raw : g_found) raw.what.clear();
  g_n_found = 0;
}

UnorderedSums::UnorderedSums() {
  g_unordered = true;
}
UnorderedSums::~UnorderedSums() {
  g_unordered = false;
}

Opened::Opened() {
  for (int d = 0; d < g_devices; ++d)
    mprotect(g_memory[d].shown, g_memory[d].size, PROT_READ | PROT_WRITE);
}
Opened::~Opened() {
  for (int d = 0; d < g_devices; ++d) mprotect(g_memory[d].shown, g_memory[d].size, PROT_NONE);
}

std::string touched(const std::function<void()>& f) {
  sigjmp_buf jump;
  t_touched = nullptr;
  if (sigsetjmp(jump, 1) == 0) {
    t_jump = &jump;
    f();
  }
  t_jump = nullptr;
  return t_touched ? describe(t_touched) : "";
}

}  // namespace fake_device
