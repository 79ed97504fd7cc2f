// --device and TESSERA_DEVICE of every verb, on the test device (preload.cpp): the CPU's results.
// Device memory that the host accesses ends the program with code 86.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include <fmt/format.h>

#include "cli_testing.h"
#include "tessera/base/mapped_file.h"
#include "tessera/spec/json.h"

namespace tessera::cli {
namespace {

class CliOnDevice : public CliRunner {
 protected:
  static constexpr const char* kPreload = "LD_PRELOAD='" TESSERA_TEST_DEVICE "' ";
  Outcome on_device(const std::string& arguments) {
    return run(arguments, std::string(kPreload) + "TESSERA_DEVICE=fake ");
  }
  /// The same output, and numbers within 1e-3 of each other.
  static void expect_same(const std::string& got, const std::string& want) {
    std::istringstream a(got), b(want);
    for (std::string x, y; a >> x;) {
      ASSERT_TRUE(b >> y) << got << "\n" << want;
      char *x_end = nullptr, *y_end = nullptr;
      const double u = std::strtod(x.c_str(), &x_end), v = std::strtod(y.c_str(), &y_end);
      if (x_end == x.c_str() || y_end == y.c_str())
        EXPECT_EQ(x, y) << got << "\n" << want;
      else
        EXPECT_NEAR(u, v, 1e-3 * std::max(1.0, std::abs(v))) << got << "\n" << want;
    }
    std::string rest;
    EXPECT_FALSE(b >> rest) << got << "\n" << want;
  }
  void expect_same_run(const std::string& arguments) {
    SCOPED_TRACE(arguments);
    const Outcome want = run(arguments), got = on_device(arguments);
    ASSERT_EQ(want.code, 0) << want.err;
    ASSERT_EQ(got.code, 0) << got.err;
    expect_same(got.out, want.out);
  }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  const std::string gguf_ = kGoldens + "/llama/gguf/base.gguf";
};

TEST_F(CliOnDevice, TextAndPerplexity) {
  const std::string text = write("text.txt", "!!\"!#!!$!%&!!'!(!!)!*");
  expect_same_run("generate " + gguf_ + " --prompt '!' -n 8 --temperature 0");
  expect_same_run("generate " + gguf_ + " --prompt '!' -n 8 --temperature 0 --draft " + gguf_);
  const std::string eval = "eval " + gguf_ + " --text " + text + " --window 8 --json";
  const Outcome want = run(eval), got = on_device(eval);
  ASSERT_EQ(want.code, 0) << want.err;
  ASSERT_EQ(got.code, 0) << got.err;
  EXPECT_NEAR(spec::parse_json(got.out, "eval")["nll"].get<double>(),
              spec::parse_json(want.out, "eval")["nll"].get<double>(), 1e-5);
  const Outcome verified = on_device("verify " + gguf_ + " --tokens 12");
  EXPECT_EQ(verified.code, 0) << verified.out << verified.err;
  const Outcome named =
      run("generate " + gguf_ + " --prompt '!' -n 8 --temperature 0 --device fake", kPreload);
  EXPECT_EQ(named.code, 0) << named.err;
  const Outcome bench = on_device("bench " + gguf_ + " --prefill 8 --decode 4 --json");
  EXPECT_EQ(bench.code, 0) << bench.err;
  EXPECT_NE(bench.out.find("\"fake:0\""), std::string::npos) << bench.out;
}

TEST_F(CliOnDevice, Encoders) {
  expect_same_run("embed " + (kSource / "tests/golden/sentence/base").string() +
                  " --text 'the cat' --text 'sun'");
  for (const std::vector<std::string>& inputs : {std::vector<std::string>{"llama", "input_ids"},
                                                 {"bert", "input_ids"},
                                                 {"t5", "input_ids", "decoder_input_ids"}}) {
    const std::string from = kGoldens + "/" + inputs[0] + "/base";
    spec::Json header;
    std::string bytes;
    for (size_t i = 1; i < inputs.size(); ++i) {
      const size_t begin = bytes.size();
      for (const int64_t id : {5, 7, 3, 9})
        bytes.append(reinterpret_cast<const char*>(&id), sizeof id);
      header[inputs[i]] = {
          {"dtype", "I64"}, {"shape", {1, 4}}, {"data_offsets", {begin, bytes.size()}}};
    }
    const std::string head = header.dump();
    const uint64_t size = head.size();
    const std::string in =
        write("in.safetensors",
              std::string(reinterpret_cast<const char*>(&size), sizeof size) + head + bytes);
    const auto numbers = [&](bool there) {
      const std::string out = path("out.safetensors"),
                        arguments = "forward " + from + " --input " + in + " --force --out " + out +
                                    (inputs.size() == 2 ? " --probe layers.0.mixer.out" : "");
      std::filesystem::remove(out);
      const Outcome outcome = there ? on_device(arguments) : run(arguments);
      EXPECT_EQ(outcome.code, 0) << outcome.err;
      std::string all = read_text_file(out);
      std::vector<float> values((all.size() - 8) / sizeof(float));
      uint64_t begin = 0;
      std::memcpy(&begin, all.data(), sizeof begin);
      all = all.substr(8 + begin);
      values.resize(all.size() / sizeof(float));
      std::memcpy(values.data(), all.data(), values.size() * sizeof(float));
      return values;
    };
    const std::vector<float> want = numbers(false), got = numbers(true);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-4) << from;
  }
}

TEST_F(CliOnDevice, Training) {
  std::string text;
  for (int i = 0; i < 800; ++i) text += std::to_string(i % 100) + " ";
  const std::string recipe = write("recipe.json", R"({
    "spec": {"tessera": 1, "arch": "decoder", "vocab": 256, "d_model": 16, "head": "tied",
             "layers": [{"mixer": {"type": "attention", "n_heads": 2}}],
             "ffn": {"type": "glu", "d_hidden": 32}},
    "data": {"train": [")" + write("text.txt", text) + R"("], "valid_fraction": 0.1},
    "train": {"steps": 4, "batch": 2, "length": 16, "eval_every": 4},
    "optimizer": {"lr": 0.01}})");
  const auto loss = [&](const Outcome& outcome) {
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return spec::parse_json(outcome.out, "result").at("valid_loss").get<double>();
  };
  const double want = loss(run("train " + recipe + " --json --out " + path("cpu")));
  EXPECT_NEAR(loss(on_device("train " + recipe + " --json --out " + path("device"))), want, 1e-5);
  for (const std::string verb :
       {"sweep " + recipe + " --grid optimizer.lr=0.01,0.02 --json --out " + path("sweep"),
        "finetune " + path("cpu") + "/latest --data " + path("text.txt") +
            " --steps 3 --batch 2 --length 16 --lora 2 --json --out " + path("tuned"),
        "compare " + recipe + " " + write("other.json", read_text_file(recipe)) +
            " --steps 2 --seeds 2 --learning-rates 0.01 --json --out " + path("study")}) {
    const Outcome outcome = on_device(verb);
    EXPECT_TRUE(outcome.code == 0 || outcome.code == 3) << verb << "\n" << outcome.err;
  }
}

TEST_F(CliOnDevice, TheCheckOfAGpuRunsDry) {
  const std::string out = path("check");
  const int status = std::system(fmt::format("'{}' --dry --build '{}' --out '{}' >'{}' 2>&1",
                                             (kSource / "scripts/device_check.sh").string(),
                                             TESSERA_BINARY_DIR, out, path("said"))
                                     .c_str());
  EXPECT_EQ(status, 0) << read_text_file(path("said"));
  const spec::Json report = spec::read_json_file(out + "/device_check.json");
  EXPECT_EQ(report["device"], "cpu");
  EXPECT_EQ(report["dry"], true);
  std::map<std::string, std::string> found;
  for (const spec::Json& row : report["rows"]) {
    EXPECT_NE(row["status"], "failed") << row.dump();
    if (row["status"] == "ok") {
      EXPECT_NE(row["value"], "") << row.dump();
    }
    found[row["name"]] = row["status"];
  }
  for (const char* name : {"doctor", "losses", "135m_device_prefill", "135m_device_decode",
                           "135m_cpu_decode", "1b_device_decode", "step_135m_float32"})
    EXPECT_EQ(found[name], "ok") << name;
}

TEST_F(CliOnDevice, WhatComputesOnTheCpuIsNamed) {
  expect_refused("index " + path("x") + " --with m --device cuda", 2,
                 "[index] --device: index computes on the CPU; leave it out");
  for (const char* verb : {"quantize m --type q8_0 --out x", "search x y", "convert m --to hf",
                           "plan m", "bench mixers"})
    expect_refused(std::string(verb) + " --device cuda", 2, "computes on the CPU; leave it out");
  expect_refused("bench mixers --device cuda", 2, "--device: bench mixers computes on the CPU");
  expect_refused("generate " + gguf_ + " --prompt '!' --device ''", 2,
                 "[device] --device is empty");
  const Outcome noted = on_device("bench sampling --vocab 1000");
  EXPECT_NE(noted.err.find("sampling computes on the CPU; TESSERA_DEVICE=fake has no effect on it"),
            std::string::npos)
      << noted.err;
  const Outcome unknown = run("generate " + gguf_ + " --prompt '!' -n 1", "TESSERA_DEVICE=tpu ");
  EXPECT_EQ(unknown.code, 2);
  EXPECT_NE(unknown.err.find("[device] \"tpu\"; expected cpu, cuda or cuda:N"), std::string::npos);
  const Outcome experts = on_device("generate " + gguf_ + " --prompt '!' -n 1 --expert-memory 9");
  EXPECT_EQ(experts.code, 2);
  EXPECT_NE(
      experts.err.find("[device] fake: --expert-memory is available on the CPU; leave it out, "
                       "or --device cpu"),
      std::string::npos)
      << experts.err;
}

}  // namespace
}  // namespace tessera::cli
