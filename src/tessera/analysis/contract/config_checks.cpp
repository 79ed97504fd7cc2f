#include <cmath>
#include <limits>
#include <set>

#include "tessera/analysis/contract/checks.h"
#include "tessera/analysis/contract/schema.h"
#include "tessera/ops/random.h"

namespace tessera::contract {
namespace {

const Json& schema_of_parts() {
  static const Json schema = model::spec_schema();
  return schema;
}

/// The same name with its last letter doubled: near, and never another field.
std::string misspelt(const std::string& name) {
  return name + name.back();
}

void check_documentation(const spec::Mechanism& mechanism, Report& report) {
  report.expect(!mechanism.info.summary.empty() && mechanism.info.summary.back() == '.',
                "the summary is not a sentence: \"{}\"", mechanism.info.summary);
  report.expect(!mechanism.info.paper.empty() && mechanism.info.year > 1900,
                "paper or year is missing");
  std::set<std::string> names;
  for (const spec::FieldDoc& field : mechanism.fields()) {
    report.expect(!field.doc.empty() && !field.type.empty(), "field {} has no documentation",
                  field.name);
    report.expect(names.insert(field.name).second, "field {} is listed twice", field.name);
    report.expect(field.required == field.fallback.empty(),
                  "field {} is {} but its default reads \"{}\"", field.name,
                  field.required ? "required" : "optional", field.fallback);
  }
}

void check_bad_values(const Case& c, Report& report) {
  const spec::Scope scope = scope_for(c);
  const Json schema = c.mechanism->schema();
  const auto read = [&](const Json& part) {
    return [&, part] { spec::read_part(c.mechanism->slot, part, scope); };
  };
  Json bad = c.part;
  bad["surely_unknown_key"] = 1;
  report.refuses(ErrorKind::spec, "surely_unknown_key", "an unknown key", read(bad));
  for (const auto& [name, property] : schema["properties"].items()) {
    bad = c.part;
    bad[misspelt(name)] = bad.contains(name) ? bad[name] : Json(1);
    report.refuses(ErrorKind::spec, fmt::format("did you mean \"{}\"?", name),
                   "the misspelt key " + misspelt(name), read(bad));
    const bool list = property.contains("items");
    const Json& bounded = list ? property["items"] : property;
    for (const auto& [bound, beyond] : {std::pair("minimum", -1.0),
                                        {"exclusiveMinimum", 0.0},
                                        {"maximum", 1.0},
                                        {"exclusiveMaximum", 0.0}}) {
      if (!bounded.contains(bound)) continue;
      Json value = bounded[bound].get<double>() + beyond;
      if (first_type(bounded) == "integer") value = static_cast<int64_t>(value.get<double>());
      bad = c.part;
      bad[name] = list ? Json::array({value}) : value;
      report.refuses(ErrorKind::spec, name,
                     fmt::format("{} beyond the {} of {}", value.dump(), bound, name), read(bad));
    }
    if (first_type(property) == "integer") {
      bad = c.part;
      bad[name] = std::numeric_limits<int64_t>::max();
      report.refuses(ErrorKind::spec, name, "the largest integer as " + name, read(bad));
    }
    bad = c.part;
    bad[name] = Json::object({{"no such", "thing"}});
    report.refuses(ErrorKind::spec, name, "an object of nonsense as " + name, read(bad));
  }
  for (const Json& required : schema["required"]) {
    bad = c.part;
    bad.erase(required.get<std::string>());
    report.refuses(ErrorKind::spec, required.get<std::string>(),
                   "a missing " + required.get<std::string>(), read(bad));
  }
}

/// Draws of this initialiser, many enough for their statistics.
void check_initialiser(const spec::ParamDecl& decl, Report& report) {
  using Kind = spec::Init::Kind;
  spec::ParamDecl large = decl;
  large.shape = {100, 100};
  const double n = 1e4;
  const Tensor values = ops::initial_values(large, RandomKey(3), at::kDouble);
  const auto moments = [&](const Tensor& v, double mean, double deviation) {
    const double got_mean = v.mean().item<double>(), got_deviation = v.std().item<double>();
    report.expect(std::abs(got_mean - mean) <= 5 * deviation / std::sqrt(n),
                  "{}: mean {}; expected {}", decl.name, got_mean, mean);
    report.expect(std::abs(got_deviation / deviation - 1) <= 5 / std::sqrt(2 * n),
                  "{}: deviation {}; expected {}", decl.name, got_deviation, deviation);
  };
  const auto within = [&](const Tensor& v, double low, double high) {
    report.expect(v.min().item<double>() >= low && v.max().item<double>() <= high,
                  "{}: values {} to {}; expected {} to {}", decl.name, v.min().item<double>(),
                  v.max().item<double>(), low, high);
  };
  const double a = decl.init.a, b = decl.init.b, c = decl.init.c, spread = std::sqrt(12.0);
  switch (decl.init.kind) {
    case Kind::constant:
      report.expect(at::all(values == a).item<bool>(), "{}: not constant", decl.name);
      break;
    case Kind::normal:
      moments(values, 0, a);
      break;
    case Kind::truncated_normal: {
      // variance of a standard normal within [-b, b]
      const double mass = std::erf(b / std::sqrt(2.0));
      const double density = std::exp(-b * b / 2) / std::sqrt(2 * M_PI);
      moments(values, 0, a * std::sqrt(1 - 2 * b * density / mass));
      within(values, -a * b, a * b);
      break;
    }
    case Kind::uniform:
      moments(values, (a + b) / 2, (b - a) / spread);
      within(values, a, b);
      break;
    case Kind::log_of_uniform:
      moments(values.exp(), (a + b) / 2, (b - a) / spread);
      within(values.exp(), a * (1 - 1e-12), b);
      break;
    case Kind::softplus_log_uniform: {
      const Tensor steps = at::softplus(values);
      within(steps, std::max(a, c) * (1 - 1e-9), b * (1 + 1e-9));
      if (c <= a)
        moments(steps.log(), (std::log(a) + std::log(b)) / 2, (std::log(b) - std::log(a)) / spread);
      break;
    }
    case Kind::sigmoid_root_of_uniform: {
      const Tensor squares = at::sigmoid(-values).square();
      moments(squares, (a + b) / 2, (b - a) / spread);
      within(squares, a * (1 - 1e-12), b * (1 + 1e-12));
      break;
    }
    case Kind::repeat: {
      const auto& expected = decl.init.values;
      const Tensor flat = values.reshape({-1});
      bool same = true;
      for (int64_t i = 0; i < flat.numel(); ++i)
        same = same &&
               flat.data_ptr<double>()[i] == expected[static_cast<size_t>(i) % expected.size()];
      report.expect(same, "{}: other values than the declared ones", decl.name);
      break;
    }
  }
}

/// A bias of the keys adds the same to all scores of a query, which a softmax does not see. These
/// mixers have no rotation and no cap that would show it, and declare it for the checkpoints that
/// hold it.
bool unseen(const Case& c, const std::string& parameter) {
  return c.mechanism != nullptr && c.mechanism->slot == Slot::mixer &&
         (c.mechanism->name == "bottleneck" || c.mechanism->name == "mixed_attention") &&
         parameter.ends_with(".mixer.k.bias");
}

}  // namespace

void check_config(const Case& c, Report& report) {
  // the whole spec: what is resolved reads back, and its schema accepts it
  for (const Json& json : {c.decoder, c.encoder}) {
    if (json.is_null()) continue;
    const Json resolved = model::resolve(model::read_model_spec(json));
    report.expect(model::resolve(model::read_model_spec(resolved)) == resolved,
                  "the resolved spec reads back differently: {}", resolved.dump());
    const std::string problem = violation(resolved, schema_of_parts(), schema_of_parts());
    report.expect(problem.empty(), "the schema refuses the resolved spec: {}", problem);
    const std::string given = violation(json, schema_of_parts(), schema_of_parts());
    report.expect(given.empty(), "the schema refuses the given spec: {}", given);
  }
  if (c.mechanism == nullptr) return;
  // the part alone: every field is dumped, with the value that was given
  const spec::Scope scope = scope_for(c);
  const Json dump = spec::dump_part(spec::read_part(c.mechanism->slot, c.part, scope));
  report.expect(spec::dump_part(spec::read_part(c.mechanism->slot, dump, scope)) == dump,
                "dump(read(dump)) differs from {}", dump.dump());
  for (const spec::FieldDoc& field : c.mechanism->fields())
    report.expect(dump.contains(field.name), "{} is not dumped", field.name);
  for (const auto& [key, value] : c.part.items())
    if (value.is_primitive() && dump.contains(key) &&
        !(dump[key].is_object() && dump[key]["type"] == value))
      report.expect(dump[key] == value, "{} was given as {} and is dumped as {}", key, value.dump(),
                    dump[key].dump());
  Json extra = dump;
  extra["surely_unknown_key"] = 1;
  const Json& slot_schema = schema_of_parts()["$defs"][name_of(c.mechanism->slot)];
  report.expect(!violation(extra, slot_schema, schema_of_parts()).empty(),
                "the schema accepts an unknown key");
  check_documentation(*c.mechanism, report);
  check_bad_values(c, report);
}

void check_parameters(const Case& c, Report& report) {
  for (const Json& json : {c.decoder, c.encoder}) {
    if (json.is_null()) continue;
    const Rig rig = make_rig(json, at::kDouble);
    // every declared parameter is used
    const auto grads = gradients(rig, [&] {
      return whole(rig, Rows{random_ids(9, 1), random_ids(5, 2)});
    });
    std::map<std::string, bool> trainable;
    for (const auto& [decl, weight] : rig.model.weights().all())
      trainable[decl.name] = decl.trainable;
    double largest = 0;
    for (const auto& [name, grad] : grads)
      if (grad.defined()) largest = std::max(largest, grad.abs().max().item<double>());
    for (const auto& [name, grad] : grads) {
      const double size = grad.defined() ? grad.abs().max().item<double>() : 0;
      if (!trainable.at(name)) {
        report.expect(size == 0, "{} is not trainable, but has a gradient of {}", name, size);
        continue;
      }
      report.expect(size > 1e-9 * largest || unseen(c, name),
                    "{} is declared but changes nothing (gradient {}, the largest is {})", name,
                    size, largest);
    }
    // exactly the declared ones are accepted
    std::map<std::string, ops::WeightPtr> weights;
    for (const auto& [decl, weight] : rig.model.weights().all()) weights[decl.name] = weight;
    const auto check = [&] {
      return [&rig, weights] { model::Weights::check(rig.spec(), weights); };
    };
    const auto [name, first] = *weights.begin();
    weights.erase(name);
    report.refuses(ErrorKind::file, name, "a missing " + name, check());
    weights[name] = std::make_shared<ops::Weight>(ops::Weight::dense(name, at::zeros({3, 1, 2})));
    report.refuses(ErrorKind::file, name, "a misshapen " + name, check());
    weights[name] = first;
    weights["surely.unknown"] = first;
    report.refuses(ErrorKind::file, "surely.unknown", "an undeclared tensor", check());
  }
}

void check_initial(const Case& c, Report& report) {
  const model::ModelSpec spec = model::read_model_spec(c.decoder);
  const model::Weights weights = model::Weights::initial(spec, 5),
                       again = model::Weights::initial(spec, 5),
                       other = model::Weights::initial(spec, 6);
  std::set<std::string> names;
  for (const auto& [decl, weight] : weights.all()) {
    report.expect(names.insert(decl.name).second, "{} is declared twice", decl.name);
    report.expect(weight->shape() == decl.shape && weight->dense_tensor().requires_grad(),
                  "{}: wrong shape, or not trainable", decl.name);
    report.expect(same_bits(weight->tensor(), again.find(decl.name)->tensor()),
                  "{}: the same seed gives other values", decl.name);
    const bool fixed = decl.init.fixed();
    report.expect(fixed == same_bits(weight->tensor(), other.find(decl.name)->tensor()),
                  "{}: another seed gives the same values", decl.name);
    check_initialiser(decl, report);
  }
}

void check_refusals(const Case& c, Report& report) {
  if (c.mechanism != nullptr && c.encoder_only && !c.asked_whole)
    report.refuses(ErrorKind::spec, "needs an encoder", "a decoder with it",
                   [&] { model::read_model_spec(host(*c.mechanism, c.part, "decoder")); });
  const model::ModelSpec spec = model::read_model_spec(c.decoder);
  // a model of limited length says so before it computes
  if (const int64_t limit = spec.max_positions(); limit > 0) {
    const Rig rig = make_rig(c.decoder, at::kFloat);
    const at::NoGradGuard no_gradients;
    whole(rig, {random_ids(limit, 1)});
    report.refuses(ErrorKind::input, "shorten the input", "a longer input than the positions allow",
                   [&] { whole(rig, {random_ids(limit + 1, 1)}); });
  }
  if (c.mechanism == nullptr || c.mechanism->slot != Slot::position ||
      c.mechanism->info.place == spec::Place::nowhere)
    return;
  // a position scheme in every other place: refused, and told where it belongs
  for (const spec::Place place :
       {spec::Place::embedding, spec::Place::rotation, spec::Place::score_bias}) {
    if (place == c.mechanism->info.place) continue;
    spec::Scope scope = scope_for(c);
    scope.places = {.embedding = place == spec::Place::embedding,
                    .rotation = place == spec::Place::rotation,
                    .score_bias = place == spec::Place::score_bias};
    const auto read = [&] { spec::read_part(Slot::position, c.part, scope); };
    report.refuses(ErrorKind::spec, name_of(c.mechanism->info.place),
                   "a position scheme in the wrong place", read);
    report.refuses(ErrorKind::spec, "; put it into \"", "a position scheme in the wrong place",
                   read);
  }
}

}  // namespace tessera::contract
