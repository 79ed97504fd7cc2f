// libtessera_ops.so: the CPU kernels as ordinary torch ops for Python.
//
//   torch.ops.load_library("libtessera_ops.so")
//   y = torch.ops.tessera.selective_scan(x, dt, dt_bias, a, b, c, d, 64)
//
// Every op takes tensors and one integer, and gives one tensor shaped as one of them. It has a CPU
// kernel, a Meta kernel (shapes), and an Autograd kernel whose gradient is an op of its own,
// <name>_backward: it computes the forward pass again and differentiates it, so that between the
// two passes only the inputs are kept.
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <utility>

#include "tessera/ops/flash_attention.h"
#include "tessera/ops/linear_recurrence.h"
#include "tessera/ops/pointwise.h"
#include "tessera/ops/rg_lru.h"
#include "tessera/ops/selective_scan.h"
#include "tessera/ops/short_conv.h"
#include "tessera/ops/ssm.h"
#include "tessera/ops/wkv4.h"

namespace tessera::ops {
namespace {

using Tensors = std::vector<Tensor>;

/// [B, T, ...] as the rows of one tensor [B T, ...], and back.
Tensor rows(const Tensor& x) {
  return x.flatten(0, 1);
}
Lengths lengths_of(const Tensor& x_BT) {
  return Lengths(static_cast<size_t>(x_BT.size(0)), x_BT.size(1));
}

// --- the ops: name, arguments, their number, whose shape the result has, what is computed

struct SelectiveScanOp {
  static constexpr const char* name = "selective_scan";
  static constexpr const char* arguments =
      "Tensor x, Tensor dt, Tensor dt_bias, Tensor a, Tensor b, Tensor c, Tensor d, int chunk";
  static constexpr size_t count = 7, like = 0;
  /// x and dt [B, T, E], dt_bias and d [E], a [E, N] and not positive, b and c [B, T, N].
  static Tensor compute(const Tensors& t, int64_t chunk) {
    const SelectiveScan in{rows(t[0]), rows(t[1]), t[2], t[3].t().contiguous(),
                           rows(t[4]), rows(t[5]), t[6]};
    return selective_scan(in, lengths_of(t[0]), chunk).view_as(t[0]);
  }
};

struct SsdOp {
  static constexpr const char* name = "ssd";
  static constexpr const char* arguments =
      "Tensor x, Tensor dt, Tensor a, Tensor b, Tensor c, Tensor d, int chunk";
  static constexpr size_t count = 6, like = 0;
  /// x [B, T, H, P], dt [B, T, H] after softplus, a and d [H], b and c [B, T, G, N].
  static Tensor compute(const Tensors& t, int64_t chunk) {
    return ssd_chunked({t[0], t[1], t[2], t[3], t[4], t[5]}, chunk).first;
  }
};

struct LinearAttentionOp {
  static constexpr const char* name = "linear_attention";
  static constexpr const char* arguments =
      "Tensor q, Tensor k, Tensor v, Tensor log_decay, int chunk";
  static constexpr size_t count = 4, like = 2;
  /// q and k [B, T, H, K], v [B, T, H, V], log_decay [H], [B, T, H] or [B, T, H, K].
  static Tensor compute(const Tensors& t, int64_t chunk) {
    return linear_recurrence({t[0], t[1], t[2], t[3]}, chunk).first;
  }
};

struct DeltaRuleOp {
  static constexpr const char* name = "delta_rule";
  static constexpr const char* arguments =
      "Tensor q, Tensor k, Tensor v, Tensor log_decay, Tensor beta, int chunk";
  static constexpr size_t count = 5, like = 2;
  /// As linear_attention, with unit keys and beta [B, T, H].
  static Tensor compute(const Tensors& t, int64_t chunk) {
    return linear_recurrence({t[0], t[1], t[2], t[3], t[4]}, chunk).first;
  }
};

struct Rwkv6Op {
  static constexpr const char* name = "rwkv6";
  static constexpr const char* arguments =
      "Tensor r, Tensor k, Tensor v, Tensor log_decay, Tensor bonus, int chunk";
  static constexpr size_t count = 5, like = 2;
  /// r, k and log_decay [B, T, H, K], v [B, T, H, V], bonus [H, K].
  static Tensor compute(const Tensors& t, int64_t chunk) {
    LinearRecurrence in{t[0], t[1], t[2], t[3]};
    in.u_HK = t[4];
    return linear_recurrence(in, chunk).first;
  }
};

struct Rwkv7Op {
  static constexpr const char* name = "rwkv7";
  static constexpr const char* arguments =
      "Tensor r, Tensor k, Tensor v, Tensor log_decay, Tensor a, Tensor b, int chunk";
  static constexpr size_t count = 6, like = 2;
  /// S <- exp(log_decay) o S + b (S^T a)^T + k v^T; all [B, T, H, K] but v [B, T, H, V].
  static Tensor compute(const Tensors& t, int64_t chunk) {
    LinearRecurrence in{t[0], t[1], t[2], t[3]};
    in.a_BTHK = t[4], in.b_BTHK = t[5];
    return linear_recurrence(in, chunk).first;
  }
};

struct Wkv4Op {
  static constexpr const char* name = "wkv4";
  static constexpr const char* arguments = "Tensor k, Tensor v, Tensor w, Tensor u, int chunk";
  static constexpr size_t count = 4, like = 1;
  /// k and v [B, T, C], w (negative) and u [C]; chunk is not used.
  static Tensor compute(const Tensors& t, int64_t) {
    return wkv4({rows(t[0]), rows(t[1]), t[2], t[3]}, lengths_of(t[0])).view_as(t[1]);
  }
};

struct RgLruOp {
  static constexpr const char* name = "rg_lru";
  static constexpr const char* arguments =
      "Tensor x, Tensor input_gate, Tensor recurrent_gate, Tensor lambda_, int chunk";
  static constexpr size_t count = 4, like = 0;
  /// x and the gates before their sigmoid [B, T, W], lambda_ [W].
  static Tensor compute(const Tensors& t, int64_t chunk) {
    const Tensor scale = 8 * ops::softplus(t[3].to(wide(t[0])));
    return rg_lru({rows(t[0]), rows(t[1]), rows(t[2]), scale}, lengths_of(t[0]), chunk)
        .view_as(t[0]);
  }
};

struct ShortConvOp {
  static constexpr const char* name = "short_conv_silu";
  static constexpr const char* arguments = "Tensor x, Tensor weight, Tensor bias, int chunk";
  static constexpr size_t count = 3, like = 0;
  /// x [B, T, C], weight [C, taps], bias [C]; chunk is not used.
  static Tensor compute(const Tensors& t, int64_t) {
    return short_conv(rows(t[0]), t[1], t[2], kernels::Activation::silu, lengths_of(t[0]))
        .view_as(t[0]);
  }
};

struct CausalAttentionOp {
  static constexpr const char* name = "causal_attention";
  static constexpr const char* arguments = "Tensor q, Tensor k, Tensor v, int window";
  static constexpr size_t count = 3, like = 0;
  /// q [B, T, H, D], k and v [B, T, G, D], G divides H; keys in the window, 0 = all.
  static Tensor compute(const Tensors& t, int64_t window) {
    const double scale = 1 / std::sqrt(static_cast<double>(t[0].size(3)));
    return attention_equal(t[0], t[1], t[2], {.scale = scale, .window = window});
  }
};

// --- registration

/// Autograd works inside while this lives, although an op is being called below it.
class AutogradInside {
 public:
  AutogradInside() : guard_(local().included_, local().excluded_ - c10::autograd_dispatch_keyset) {}

 private:
  static c10::impl::LocalDispatchKeySet local() { return c10::impl::tls_local_dispatch_key_set(); }
  c10::impl::ForceDispatchKeyGuard guard_;
  at::AutoGradMode grad_{true};
};

template <class Op, class Index = std::make_index_sequence<Op::count>>
struct Registered;

template <class Op, size_t... I>
struct Registered<Op, std::index_sequence<I...>> {
  template <size_t>
  using Arg = const Tensor&;

  static Tensor cpu(Arg<I>... t, int64_t n) {
    const at::NoGradGuard no_gradients;
    return Op::compute({t...}, n).contiguous();
  }
  static Tensor meta(Arg<I>... t, int64_t) {
    return at::empty_like(Tensors{t...}[Op::like], at::MemoryFormat::Contiguous);
  }
  static Tensors backward_cpu(const Tensor& gradient, Arg<I>... t, int64_t n) {
    const AutogradInside inside;
    Tensors inputs{t...};
    for (Tensor& x : inputs) x = x.detach().requires_grad_(true);
    const Tensor y = Op::compute(inputs, n);
    Tensors gradients = torch::autograd::grad({y}, inputs, {gradient}, false, false, true);
    for (size_t i = 0; i < inputs.size(); ++i)
      gradients[i] = gradients[i].defined()
                         ? gradients[i].to(inputs[i].scalar_type()).contiguous()
                         : at::zeros_like(inputs[i], at::MemoryFormat::Contiguous);
    return gradients;
  }
  static Tensors backward_meta(const Tensor&, Arg<I>... t, int64_t) {
    Tensors out;
    for (const Tensor& x : Tensors{t...})
      out.push_back(at::empty_like(x, at::MemoryFormat::Contiguous));
    return out;
  }

  struct Function : torch::autograd::Function<Function> {
    static Tensor forward(torch::autograd::AutogradContext* context,
                          at::TensorList inputs,
                          int64_t n) {
      const at::AutoDispatchBelowADInplaceOrView below;
      context->save_for_backward(inputs.vec());
      context->saved_data["n"] = n;
      static const auto op =
          c10::Dispatcher::singleton()
              .findSchemaOrThrow((std::string("tessera::") + Op::name).c_str(), "")
              .template typed<Tensor(Arg<I>..., int64_t)>();
      return op.call(inputs[I]..., n);
    }
    static Tensors backward(torch::autograd::AutogradContext* context, const Tensors& gradients) {
      const Tensors inputs = context->get_saved_variables();
      static const auto op =
          c10::Dispatcher::singleton()
              .findSchemaOrThrow((std::string("tessera::") + Op::name + "_backward").c_str(), "")
              .template typed<Tensors(const Tensor&, Arg<I>..., int64_t)>();
      Tensors out = op.call(gradients[0], inputs[I]..., context->saved_data["n"].toInt());
      out.emplace_back();  // the integer has none
      return out;
    }
  };
  static Tensor autograd(Arg<I>... t, int64_t n) {
    const Tensors inputs{t...};
    return Function::apply(at::TensorList(inputs), n);
  }
};

template <class... Ops>
struct All {
  static void define(torch::Library& m) {
    const auto one = [&]<class Op>() {
      const std::string name = Op::name, arguments = Op::arguments;
      m.def((name + "(" + arguments + ") -> Tensor").c_str());
      m.def((name + "_backward(Tensor grad, " + arguments + ") -> Tensor[]").c_str());
    };
    (one.template operator()<Ops>(), ...);
  }
  static void cpu(torch::Library& m) {
    const auto one = [&]<class Op>() {
      m.impl(Op::name, &Registered<Op>::cpu);
      m.impl((std::string(Op::name) + "_backward").c_str(), &Registered<Op>::backward_cpu);
    };
    (one.template operator()<Ops>(), ...);
  }
  static void meta(torch::Library& m) {
    const auto one = [&]<class Op>() {
      m.impl(Op::name, &Registered<Op>::meta);
      m.impl((std::string(Op::name) + "_backward").c_str(), &Registered<Op>::backward_meta);
    };
    (one.template operator()<Ops>(), ...);
  }
  static void autograd(torch::Library& m) { (m.impl(Ops::name, &Registered<Ops>::autograd), ...); }
};

using Every = All<SelectiveScanOp,
                  SsdOp,
                  LinearAttentionOp,
                  DeltaRuleOp,
                  Rwkv6Op,
                  Rwkv7Op,
                  Wkv4Op,
                  RgLruOp,
                  ShortConvOp,
                  CausalAttentionOp>;

}  // namespace

TORCH_LIBRARY(tessera, m) {
  Every::define(m);
}
TORCH_LIBRARY_IMPL(tessera, CPU, m) {
  Every::cpu(m);
}
TORCH_LIBRARY_IMPL(tessera, Meta, m) {
  Every::meta(m);
}
TORCH_LIBRARY_IMPL(tessera, Autograd, m) {
  Every::autograd(m);
}

}  // namespace tessera::ops
