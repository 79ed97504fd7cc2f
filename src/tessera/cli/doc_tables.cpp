#include "tessera/cli/doc_tables.h"

#include <algorithm>
#include <set>
#include <variant>

#include "tessera/analysis/advice.h"
#include "tessera/analysis/run_check.h"
#include "tessera/base/error.h"
#include "tessera/cli/cli.h"
#include "tessera/cli/form_table.h"
#include "tessera/cli/help.h"
#include "tessera/cli/preset_tables.h"
#include "tessera/convert/family_show.h"
#include "tessera/convert/model_types.h"
#include "tessera/cuda/packed.h"
#include "tessera/format/gguf_types.h"
#include "tessera/infer/sampling/decoding_fields.h"
#include "tessera/serve/bodies.h"
#include "tessera/train/objective/objective_config.h"
#include "tessera/train/recipe/aliases.h"
#include "tessera/train/recipe/recipe.h"
#include "tessera/train/study/layout_search.h"
#include "tessera/train/study/scaling_study.h"

namespace tessera::cli {
namespace {

using Tables = std::vector<std::pair<std::string, std::string>>;

/// Text of a cell: marks of Markdown and HTML are characters, but for those of code.
std::string cell_of(const std::string& text) {
  std::string out;
  bool code = false;
  for (const char c : text) {
    if (c == '`') code = !code;
    if (c == '|' || (!code && (c == '*' || c == '[' || c == ']'))) out += '\\';
    if (c == '<' && !code)
      out += "&lt;";
    else if (c == '\n')
      out += ' ';
    else
      out += c;
  }
  return out;
}

std::string code_of(const std::string& text) {
  return text.empty() ? "" : "`" + cell_of("`" + text).substr(1) + "`";
}

// --- JSON schemas as tables ---

std::string number_text(const Json& number) {
  if (!number.is_number_float()) return number.dump();
  return fmt::format("{:g}", number.get<double>());
}

/// ">= 1", "0 to 1"; bounds beyond 2^30 are none that a reader has to know.
std::string range_of(const Json& schema) {
  const auto bound = [&](const char* key) -> const Json* {
    const auto at = schema.find(key);
    constexpr double kLarge = 0x1p30;
    return at == schema.end() || std::abs(at->get<double>()) >= kLarge ? nullptr : &*at;
  };
  const Json* least = bound("minimum");
  const Json* most = bound("maximum");
  if (least != nullptr && most != nullptr)
    return fmt::format(" {} to {}", number_text(*least), number_text(*most));
  if (least != nullptr) return " >= " + number_text(*least);
  return most != nullptr ? " <= " + number_text(*most) : "";
}

std::string type_of(const Json& schema) {
  std::string out;
  const auto add = [&](const std::string& one) { out += (out.empty() ? "" : " or ") + one; };
  if (schema.contains("const")) return code_of(schema["const"].dump());
  if (schema.contains("enum")) {
    for (const Json& value : schema["enum"]) add(code_of(value.dump()));
    return out;
  }
  if (schema.contains("anyOf")) {
    for (const Json& one : schema["anyOf"]) add(type_of(one));
    return out;
  }
  if (!schema.contains("type")) return "";
  const Json& type = schema["type"];
  if (type == "array")
    return "list" + (schema.contains("items") ? " of " + type_of(schema["items"]) : "");
  if (type.is_string()) return type.get<std::string>() + range_of(schema);
  for (const Json& one : type)  // null is no type for readers
    if (one != "null") add(one.get<std::string>());
  return out + range_of(schema);
}

const Json* member(const Json& object, const char* key) {
  const auto at = object.is_object() ? object.find(key) : object.end();
  return !object.is_object() || at == object.end() ? nullptr : &*at;
}

/// The object that a key holds, also where it may be null; null where it holds none.
const Json* object_in(const Json& schema) {
  if (schema.contains("properties")) return &schema;
  if (const Json* any = member(schema, "anyOf"))
    for (const Json& one : *any)
      if (one.contains("properties")) return &one;
  return nullptr;
}

/// A row for every key. Keys of objects within are rows with a dotted name, those of objects in
/// lists have "[]" in it.
void add_rows(std::string& out, const Json& schema, const Json& defaults, const std::string& path) {
  std::set<std::string> required;
  if (const Json* names = member(schema, "required"))
    for (const Json& name : *names) required.insert(name.get<std::string>());
  const Json& properties = schema.at("properties");
  for (const auto& [name, property] : properties.items()) {
    const Json* standard = member(defaults, name.c_str());
    const Json* description = member(property, "description");
    const Json* inner = object_in(property);
    const Json* items = member(property, "items");
    if (standard == nullptr) standard = member(property, "default");
    const bool says = inner == nullptr && standard != nullptr && !standard->is_null();
    const std::string key = path + name;
    out += fmt::format(
        "| `{}` | {} | {} | {} |\n", key, inner != nullptr ? "object" : type_of(property),
        required.contains(name) ? "required" : (says ? code_of(standard->dump()) : ""),
        description == nullptr ? "" : cell_of(description->get<std::string>()));
    if (inner != nullptr)
      add_rows(out, *inner, standard == nullptr ? Json() : *standard, key + ".");
    else if (items != nullptr && items->contains("properties"))
      add_rows(out, *items, Json(), key + "[].");
  }
}

std::string table_of(const Json& schema, const Json& defaults, const std::string& path = "") {
  std::string out = "| key | type | default | meaning |\n|---|---|---|---|\n";
  add_rows(out, schema, defaults, path);
  return out + "\n";
}

/// Of a struct with fields().
template <class C>
std::string table_of_struct(const std::string& title) {
  return fmt::format("### {}\n\n{}", title,
                     table_of(spec::struct_schema<C>(), spec::dump_struct(C{})));
}

// --- the tables ---

std::string sampling_table() {
  std::string out = "| option | default | range | effect |\n|---|---|---|---|\n";
  const infer::SamplingOptions defaults;
  for (const infer::DecodingField& field : infer::sampling_fields())
    out += fmt::format("| `{}` | {} | {} | {} |\n", field.flag(), field.get(defaults),
                       cell_of(field.expected), cell_of(field.doc));
  return out;
}

/// The names of every option of decoding where it is accepted.
std::string decoding_table() {
  std::string out =
      "| setting of the library | flag | field of requests | `generation_config.json` | "
      "`general.sampling.` |\n|---|---|---|---|---|\n";
  for (const infer::DecodingField& field : infer::decoding_fields()) {
    const auto names = [&](infer::Accepted where, std::string list) {
      if ((field.accepted & where) == 0) return std::string();
      for (size_t at = 0; (at = list.find(',', at)) != std::string::npos; at += 4)
        list.replace(at, 1, "`, `");
      return code_of(list);
    };
    out += fmt::format(
        "| {} | {} | {} | {} | {} |\n", names(infer::in_settings, field.name),
        names(infer::in_flags, field.flag_names()),
        names(infer::in_requests, fmt::format("{}{}{}", field.request_name(),
                                              *field.aliases != 0 ? "," : "", field.aliases)),
        code_of(field.config), code_of(field.gguf));
  }
  return out;
}

template <class Rule>
std::string optimizer_table() {
  Json schema = spec::struct_schema<Rule>(), defaults = spec::dump_struct(Rule{});
  Json properties = {
      {"lr", {{"type", "number"}, {"description", "base learning rate"}, {"minimum", 0}}},
      {"weight_decay",
       {{"type", "number"},
        {"description", "weight decay of matrices and embeddings"},
        {"minimum", 0}}}};
  properties.update(schema["properties"]);
  schema["properties"] = properties;
  defaults["lr"] = Rule::kRate;
  defaults["weight_decay"] = Rule::kDecay;
  return fmt::format("### `optimizer` of type `{}`\n\n{}", Rule::kName, table_of(schema, defaults));
}

/// A table for each type of a union.
template <class Union>
std::string tables_of_union(const std::string& section) {
  std::string out;
  spec::for_each_type<Union>([&]<class C>(const C&) {
    out += table_of_struct<C>(fmt::format("`{}` of type `{}`", section, C::kName));
  });
  return out;
}

std::string recipe_tables() {
  using namespace train;
  std::string out = table_of_struct<TextData>("`data`: files of text") +
                    tables_of_union<TaskRecipe>("data") +
                    table_of_struct<LabelData>("`data`: labelled examples") +
                    table_of_struct<TrainRecipe>("`train`");
  spec::for_each_type<RuleKeys>([&]<class Rule>(const Rule&) { out += optimizer_table<Rule>(); });
  out += table_of_struct<AverageRecipe>("`optimizer.average`") +
         table_of_struct<GroupRecipe>("`optimizer.groups`") +
         tables_of_union<Schedule>("schedule") + table_of_struct<CheckpointRecipe>("`checkpoint`") +
         table_of_struct<StopRecipe>("`stop`") + table_of_struct<WatchRecipe>("`watch`") +
         table_of_struct<InitRecipe>("`init`") + tables_of_union<AdapterRecipe>("adapter") +
         table_of_struct<ExpertsRecipe>("`experts`");
  const Json objectives = objective_schema();
  for (const Json& objective : objectives.at("anyOf"))
    out += fmt::format("### `objective` of type `{}`\n\n{}",
                       objective.at("properties").at("type").at("const").get<std::string>(),
                       table_of(objective, Json()));
  return out;
}

std::string study_tables() {
  using namespace train;
  return table_of_struct<EqualRecipe>("`equal`") + table_of_struct<BudgetRecipe>("`budget`") +
         table_of_struct<EvaluateRecipe>("`evaluate`") +
         table_of_struct<ClaimRecipe>("`claims`, each") +
         table_of_struct<ScalingRecipe>("`scaling`") + table_of_struct<SearchRecipe>("`search`");
}

std::string alias_table() {
  std::string out = "| name | read as |\n|---|---|\n";
  for (const train::RecipeAlias& name : train::recipe_aliases()) {
    const std::string section = *name.section == '\0' ? "" : std::string(name.section) + ".";
    if (*name.key == '\0')
      out += fmt::format("| `{0}{1}` | `{0}{2}` |\n", section, name.alias, name.kept);
    else
      out += fmt::format("| `{0}{3}`: `\"{1}\"` | `\"{2}\"` |\n", section, name.alias, name.kept,
                         name.key);
  }
  return out;
}

std::string request_tables() {
  using namespace serve;
  std::string out;
  const auto add = [&](const char* title, const auto& fields) {
    out += fmt::format("## Request fields of {}\n\n{}", title, table_of(fields.schema(), Json()));
  };
  add("`/v1/chat/completions`", chat_fields());
  add("`/v1/completions`", completion_fields());
  add("`/infill`", infill_fields());
  add("`/v1/embeddings`", embeddings_fields());
  add("`/v1/rerank`", rerank_fields());
  add("`/v1/classify`", classify_fields());
  add("`/v1/fill-mask`", fill_mask_fields());
  add("`/v1/translate`", translate_fields());
  add("`/tokenize`", tokenize_fields());
  add("`/detokenize`", detokenize_fields());
  return out;
}

void add_option_tables(std::string& out, const CLI::App& verb, const std::string& name) {
  out +=
      fmt::format("## Options of `tessera {}`\n\n{}.\n\n", name, cell_of(verb.get_description()));
  const auto add_group = [&](const std::string& title, std::vector<const CLI::Option*> options,
                             bool arguments) {
    options.erase(std::remove(options.begin(), options.end(), verb.get_help_ptr()), options.end());
    if (options.empty()) return;
    out += fmt::format("| {} | |\n|---|---|\n", title);
    for (const CLI::Option* option : options) {
      const OptionLine line = line_of(*option, arguments);
      out += fmt::format("| {} | {} |\n", code_of(line.names), cell_of(line.text));
    }
    out += "\n";
  };
  add_group("arguments",
            verb.get_options([](const CLI::Option* option) { return option->get_positional(); }),
            true);
  for (const std::string& group : verb.get_groups()) {
    if (group.empty()) continue;  // hidden
    add_group(cell_of(group), verb.get_options([&](const CLI::Option* option) {
      return option->get_group() == group && option->nonpositional();
    }),
              false);
  }
  for (const CLI::App* below : verb.get_subcommands([](const CLI::App*) { return true; }))
    add_option_tables(out, *below, name + " " + below->get_name());
}

std::string option_tables(const CLI::App& app) {
  std::string out;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; }))
    add_option_tables(out, *verb, verb->get_name());
  return out;
}

// --- model types ---

std::string model_type_table() {
  std::string out = "| `model_type` | `AutoModelFor...` | status |\n|---|---|---|\n";
  constexpr std::string_view kPrefix = "AutoModelFor";
  for (const convert::ModelType& type : convert::model_types()) {
    std::string classes;
    for (const std::string& of : type.classes)
      classes += (classes.empty() ? "" : ", ") + of.substr(kPrefix.size());
    out += fmt::format("| `{}` | {} | {} |\n", type.name, classes,
                       type.refused.empty() ? "runs" : "refused: " + cell_of(type.refused));
  }
  return out;
}

// --- forms of operations ---

std::string form_table() {
  std::string out = "| operation | computes |", line = "|---|---|";
  for (const FormColumn& column : form_columns()) {
    out += fmt::format(" {} {} |", column.device, column.title);
    line += "---|";
  }
  out += "\n" + line + "\n";
  for (const ops::Operation& operation : ops::operations()) {
    out += fmt::format("| `{}` | {} |", operation.name, cell_of(std::string(operation.what)));
    for (const FormColumn& column : form_columns())
      out += fmt::format(" {} |", name_of(form_of(operation.op, column.setting)));
    out += "\n";
  }
  return out;
}

// --- storage types that stay packed on a GPU ---

std::string packed_type_table() {
  std::string out =
      "| storage type | numbers of a block | bytes of a block | bits per number |\n"
      "|---|---|---|---|\n";
  for (const DType type : cuda::kPackedTypes) {
    const DTypeLayout& layout = layout_of(type);
    const format::GgmlType* of_gguf = format::ggml_type_of(type);
    out += fmt::format("| `{}` | {} | {} | {:.4g} |\n",
                       of_gguf != nullptr ? of_gguf->name : layout.name, layout.block_elements,
                       layout.block_bytes, 8.0 * layout.block_bytes / layout.block_elements);
  }
  return out;
}

constexpr std::string_view kBegin = "<!-- table: ", kClose = " -->\n",
                           kEnd = "<!-- end of table -->\n";

}  // namespace

Tables doc_tables(const CLI::App& app) {
  const convert::FamilySet families = convert::FamilySet::load();
  Tables out = {{"sampling", sampling_table()},
                {"decoding", decoding_table()},
                {"recipe", recipe_tables()},
                {"study", study_tables()},
                {"aliases", alias_table()},
                {"requests", request_tables()},
                {"model_types", model_type_table()},
                {"family_values", convert::values_markdown(families)},
                {"family_fragments", convert::fragments_markdown(families)},
                {"options", option_tables(app)},
                {"forms", form_table()},
                {"packed_types", packed_type_table()},
                {"advice_rules", analysis::rules_markdown(analysis::advice_data())},
                {"run_checks", analysis::checks_markdown()},
                {"crossovers", analysis::crossovers_markdown(analysis::shipped_costs())}};
  for (auto& table : preset_tables()) out.push_back(std::move(table));
  return out;
}

std::string with_tables(const std::string& page,
                        const std::string& path,
                        const Tables& tables,
                        std::vector<std::string>& missing) {
  std::string out;
  size_t at = 0;
  for (size_t mark; (mark = page.find(kBegin, at)) != std::string::npos;) {
    const size_t close = page.find(kClose, mark);
    const size_t end = close == std::string::npos ? close : page.find(kEnd, close);
    if (end == std::string::npos)
      fail(ErrorKind::file, "docs", "{}: a table without its end; expected a line \"{}\"", path,
           kEnd.substr(0, kEnd.size() - 1));
    const size_t name_at = mark + kBegin.size();
    const std::string name = page.substr(name_at, close - name_at);
    const auto table = std::find_if(tables.begin(), tables.end(),
                                    [&](const auto& one) { return one.first == name; });
    if (table == tables.end())
      fail(ErrorKind::file, "docs", "{}: there is no table \"{}\"", path, name);
    missing.erase(std::remove(missing.begin(), missing.end(), name), missing.end());
    // lines of a table and of a comment need an empty one between them
    const std::string content = table->second.substr(0, table->second.find_last_not_of('\n') + 1);
    out += page.substr(at, close + kClose.size() - at) + "\n" + content + "\n\n";
    at = end;
  }
  return out + page.substr(at);
}

}  // namespace tessera::cli
