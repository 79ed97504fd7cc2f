// Architectures as data, and the documents generated from the code: what stands in the tree is what
// the code says.
#include <gtest/gtest.h>

#include <ctime>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include <fmt/format.h>

#include "tessera/base/mapped_file.h"
#include "tessera/model/mechanism_pages.h"
#include "tessera/model/model_spec.h"
#include "tessera/model/plan.h"
#include "tessera/model/techniques.h"
#include "tessera/nn/registry.h"
#include "tessera/nn/residual/post_norm.h"
#include "tessera/spec/json.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using spec::Json;
const fs::path kSource = TESSERA_SOURCE_DIR;

TEST(Zoo, ResolvesToItsGoldenDump) {
  int checked = 0;
  for (const auto& entry : fs::recursive_directory_iterator(kSource / "zoo")) {
    if (entry.path().extension() != ".json") continue;
    fs::path golden = entry.path();
    golden.replace_extension(".resolved.txt");
    ASSERT_TRUE(fs::exists(golden))
        << "write it: tessera show " << entry.path() << " --resolved > " << golden;
    EXPECT_EQ(model::resolve(model::load_model_spec(entry.path())).dump(2) + "\n",
              read_text_file(golden))
        << entry.path() << ": a default moved, or the spec did";
    ++checked;
  }
  EXPECT_GE(checked, 15);
}

Json presets() {
  return spec::read_json_file(kSource / "src/tessera/cli/presets.json");
}

// Counts of the published files, or computed from the published sizes by formulas that do not use
// these specs; active ones without the experts that a token does not use.
TEST(Zoo, HasThePublishedParameterCounts) {
  int checked = 0;
  for (const Json& preset : presets()) {
    const std::string name = preset.at("spec").get<std::string>();
    const model::Plan plan =
        model::make_plan(model::load_model_spec(kSource / "zoo" / (name + ".json")), 1);
    const int64_t parameters = preset.at("parameters").get<int64_t>();
    EXPECT_EQ(plan.parameters, parameters) << name;
    EXPECT_EQ(plan.active_parameters, preset.value("active", parameters)) << name;
    ++checked;
  }
  EXPECT_GE(checked, 184);
}

TEST(Zoo, A405BIsPlannedInLessThanASecond) {
  const std::clock_t begin = std::clock();
  const model::ModelSpec spec = model::load_model_spec(kSource / "zoo/llama/llama3.1-405b.json");
  EXPECT_EQ(model::make_plan(spec, 131'072).parameters, 405'853'388'800);
  EXPECT_LT(std::clock() - begin, CLOCKS_PER_SEC);
}

std::string seat(const spec::Mechanism& mechanism) {
  return std::string(name_of(mechanism.slot)) + " " + mechanism.name;
}

/// A part and what stands inside of it.
void collect(const spec::AnyPart& part, std::set<std::string>& found) {
  if (!part) return;
  found.insert(seat(*part.mechanism));
  for (const spec::AnyPart* inner : part.mechanism->parts(*part.config)) collect(*inner, found);
}

void collect(const model::ModelSpec& spec, std::set<std::string>& found) {
  for (const spec::AnyPart* part :
       {&spec.init, &spec.embed, &spec.final_norm, &spec.head, &spec.pooler})
    collect(*part, found);
  for (const model::LayerSpec& layer : spec.layers) {
    collect(layer.depth, found);
    for (const model::GroupSpec& group : layer.groups) {
      collect(group.residual, found);
      for (const model::BranchSpec& branch : group.branches) {
        collect(branch.part, found);
        for (const spec::AnyPart& norm : branch.norms) collect(norm, found);
      }
    }
  }
  if (spec.encoder) collect(*spec.encoder, found);
}

// specification, additions 3.3: alpha = 160^{1/4} for all three kinds of branches
TEST(Zoo, MiniMaxWeighsTheStreamAsDeepNormDoes) {
  const auto spec =
      model::load_model_spec(kSource / "zoo/lightning_attention/minimax-text-01-dense.json");
  ASSERT_EQ(spec.layers.size(), 80U);
  for (size_t i = 0; i < spec.layers.size(); ++i)
    for (const model::GroupSpec& group : spec.layers[i].groups) {
      const auto& residual = group.residual.as<nn::PostNormConfig>();
      EXPECT_NEAR(residual.stream, 3.55655882, 5e-9);
      EXPECT_EQ(residual.scale, 1);
      if (group.branches[0].name != "mixer") continue;
      EXPECT_EQ(group.branches[0].part.type(), i % 8 == 7 ? "attention" : "lightning_attention");
    }
}

TEST(Zoo, HasAnExampleOfEveryMechanism) {
  nn::register_mechanisms();
  std::set<std::string> found;
  for (const auto& entry : fs::recursive_directory_iterator(kSource / "zoo"))
    if (entry.path().extension() == ".json") collect(model::load_model_spec(entry.path()), found);
  for (const spec::Mechanism& mechanism : spec::mechanisms())
    EXPECT_TRUE(found.contains(seat(mechanism)))
        << "no architecture in zoo/ has " << seat(mechanism) << ": add one, with its golden dump";
}

TEST(Docs, GeneratedPagesAreFresh) {
  for (const auto& [path, content] : model::generated_pages()) {
    ASSERT_TRUE(fs::exists(kSource / "docs" / path)) << path << ": run `tessera docs`";
    EXPECT_EQ(read_text_file(kSource / "docs" / path), content)
        << path << " is stale: run `tessera docs`";
  }
}

/// Seconds and bytes of the forward passes in docs/mechanisms/cost.csv, by "slot,mechanism,length".
std::map<std::string, std::pair<double, double>> forward_costs() {
  std::map<std::string, std::pair<double, double>> out;
  std::istringstream rows(read_text_file(kSource / "docs/mechanisms/cost.csv"));
  for (std::string row; std::getline(rows, row);) {
    std::istringstream cells(row);
    std::string slot, name, pass, length, seconds, bytes;
    for (std::string* cell : {&slot, &name, &pass, &length, &seconds, &bytes})
      std::getline(cells, *cell, ',');
    if (pass == "forward")
      out[slot + "," + name + "," + length] = {std::stod(seconds), std::stod(bytes)};
  }
  return out;
}

TEST(Docs, TheTableOfMixersShowsWhatWasMeasured) {
  const auto costs = forward_costs();
  const std::string guide = read_text_file(kSource / "docs/guide/mixer_costs.md");
  for (const auto& [label, mechanism] :
       {std::pair{"`attention`", "pattern,full"},
        std::pair{"`attention`, pattern `window`", "pattern,window"},
        std::pair{"`retention`", "mixer,retention"},
        std::pair{"`gated_delta_net`", "mixer,gated_delta_net"},
        std::pair{"`mamba2`", "mixer,mamba2"}}) {
    const auto& [short_seconds, short_bytes] = costs.at(mechanism + std::string(",1024"));
    const auto& [seconds, bytes] = costs.at(mechanism + std::string(",8192"));
    const std::string row = fmt::format("| {} | {:.3g} ms | {:.3g} ms | {:.3g} MB |\n", label,
                                        1e3 * short_seconds, 1e3 * seconds, bytes / 1e6);
    EXPECT_NE(guide.find(row), std::string::npos) << "mixer_costs.md wants " << row;
  }
}

// links of the guides and of the pages before them lead somewhere
TEST(Docs, LinksLeadToFiles) {
  const std::regex link(R"(\]\(([^)#:]+)(#[^)]*)?\))");
  int links = 0;
  for (const char* page : {"README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/README.md",
                           "docs/guide/README.md", "docs/mechanisms/README.md"}) {
    const std::string text = read_text_file(kSource / page);
    for (std::sregex_iterator m(text.begin(), text.end(), link), end; m != end; ++m, ++links)
      EXPECT_TRUE(fs::exists((kSource / page).parent_path() / (*m)[1].str()))
          << page << ": " << (*m)[1];
  }
  EXPECT_GT(links, 20);
}

TEST(Docs, TechniquesAreNamedWithTheirPapersAndUse) {
  std::set<std::string> names;
  std::string papers;
  for (const model::Technique& t : model::techniques()) {
    EXPECT_TRUE(names.insert(t.name).second) << t.name;
    EXPECT_TRUE(std::set<std::string>({"arrangement", "computation", "storage"}).contains(t.group));
    for (const char* text : {t.summary, t.paper, t.use}) EXPECT_NE(*text, '\0') << t.name;
    papers += t.paper;
  }
  for (const char* paper : {"2205.14135", "2307.08691", "2112.05682", "2309.06180", "2310.01889",
                            "2311.09431", "2211.17192"})
    EXPECT_NE(papers.find(paper), std::string::npos) << paper;
}

// every pattern has a folder that names it, the default among them
TEST(Zoo, ShowsThePatternThatIsTheDefault) {
  EXPECT_NE(read_text_file(kSource / "zoo/full/tiny-full.json").find("\"type\": \"full\""),
            std::string::npos);
}

}  // namespace
}  // namespace tessera
