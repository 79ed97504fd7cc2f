// --device and TESSERA_DEVICE of every verb, on the test device (preload.cpp): the CPU's results.
// Device memory that the host accesses ends the program with code 86.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
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

TEST_F(CliOnDevice, DeterministicTrainingRepeats) {
  const std::string recipe = write("recipe.json", R"({
    "spec": {"tessera": 1, "arch": "decoder", "vocab": 256, "d_model": 16, "head": "tied",
             "layers": [{"mixer": {"type": "attention", "n_heads": 2}}],
             "ffn": {"type": "glu", "d_hidden": 32}},
    "data": {"train": [")" + write("text.txt", std::string(3000, 'a')) +
                                                      R"("]},
    "train": {"steps": 6, "batch": 2, "length": 16, "log_every": 1}, "optimizer": {"lr": 0.01}})");
  const auto weights = [&](const std::string& name, const std::string& flag) {
    const Outcome outcome =
        run("train " + recipe + " --device fake " + flag + " --out " + path(name),
            std::string("TESSERA_FAKE_UNORDERED=1 ") + kPreload);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return read_text_file(path(name + "/latest/model.safetensors"));
  };
  const std::string own = weights("own", "--deterministic");
  EXPECT_TRUE(own == weights("again", "--deterministic"));
  EXPECT_FALSE(weights("one", "") == weights("other", ""));
  EXPECT_NE(read_text_file(path("own/recipe.json")).find("\"deterministic\": true"),
            std::string::npos);
}

TEST_F(CliOnDevice, FilesOfExamples) {
  std::string lines, pairs;
  for (int i = 0; i < 40; ++i) {
    const std::string word(static_cast<size_t>(1 + i % 3), static_cast<char>('a' + i % 7));
    lines += "{\"text\": \"" + word + (i % 2 == 0 ? "x" : "y") + "\", \"mood\": \"" +
             (i % 2 == 0 ? "good" : "bad") + "\"}\n";
    pairs += "{\"text\": \"" + word + "\", \"positive\": \"" + word + word + "\"}\n";
  }
  const std::string data = write("data.jsonl", lines), out = path("labels");
  const std::string encoder = (kSource / "tests/golden/sentence/base").string();
  const Outcome tuned = run("finetune " + encoder + " --data " + data +
                            " --label mood --steps 3 --batch 4 --length 16 --out " + out);
  ASSERT_EQ(tuned.code, 0) << tuned.err;
  expect_same_run("eval " + out + " --data " + data + " --label-key mood --json");
  expect_same_run("eval " + encoder + " --data " + write("pairs.jsonl", pairs) + " --json");
}

TEST_F(CliOnDevice, ABatchThatFitsTheDevice) {
  const std::string recipe = write("recipe.json", R"({
    "spec": {"tessera": 1, "arch": "decoder", "vocab": 256, "d_model": 16, "head": "tied",
             "layers": [{"mixer": {"type": "attention", "n_heads": 2}}],
             "ffn": {"type": "glu", "d_hidden": 32}},
    "data": {"train": [")" + write("text.txt", std::string(3000, 'a')) +
                                                      R"("]},
    "train": {"steps": 2, "batch": 4, "length": 16}})");
  const Outcome found = on_device("train " + recipe + " --find-batch");
  EXPECT_EQ(found.code, 0) << found.err;
  EXPECT_EQ(found.out, "--set train.batch=4 --set train.accumulate=1\n");
  // four fifths of the test device's 4 GiB
  EXPECT_NE(found.err.find("memory limit 34"), std::string::npos) << found.err;
  const Outcome small = on_device("train " + recipe + " --find-batch --memory 1K");
  EXPECT_EQ(small.code, 1) << small.err;
  EXPECT_NE(small.err.find("one sequence of 16 tokens takes"), std::string::npos) << small.err;
}

TEST_F(CliOnDevice, AutoChoosesADeviceThatTheModelFits) {
  const std::string generate = "generate " + gguf_ + " --prompt '!' -n 4 --temperature 0";
  const Outcome want = run(generate), got = run(generate + " --device auto", kPreload);
  EXPECT_EQ(got.code, 0) << got.err;
  EXPECT_EQ(got.out, want.out);
  EXPECT_NE(got.err.find("tessera: device auto: fake:0, since the model takes 0.00 GiB there and "
                         "fake:0 has 4.00 GiB free\n"),
            std::string::npos)
      << got.err;
  const Outcome experts = run(generate + " --device auto --expert-memory 9", kPreload);
  EXPECT_NE(experts.err.find("device auto: cpu, since --expert-memory is given"), std::string::npos)
      << experts.err;
  const std::string large = write("large.json", R"({
    "spec": {"tessera": 1, "arch": "decoder", "vocab": 50000, "d_model": 4096, "head": "tied",
             "layers": [{"mixer": {"type": "retention", "n_heads": 32}}],
             "ffn": {"type": "glu", "d_hidden": 8192}},
    "data": {"train": ["none.txt"]}, "train": {"steps": 1, "batch": 1, "length": 16}})");
  // its sequences cannot be split, which ends the command before there is a model
  const Outcome trained = run(
      "train " + large + " --device auto --sequence-parallel 2 --out " + path("large"), kPreload);
  EXPECT_NE(trained.err.find("device auto: cpu, since the model takes "), std::string::npos)
      << trained.err;
  const Outcome study =
      run("compare " + large + " " + large + " --device auto --out " + path("study"), kPreload);
  EXPECT_EQ(study.code, 2);
  EXPECT_NE(study.err.find("[device] auto is not available here"), std::string::npos) << study.err;
}

TEST_F(CliOnDevice, PlanSaysWhetherItFits) {
  const auto text_of = [&](const std::string& changes) {
    return write("plan.json", R"({
      "spec": {"tessera": 1, "arch": "decoder", "vocab": 256, "d_model": 64, "head": "tied",
               "layers": [{"repeat": 8, "mixer": {"type": "attention", "n_heads": 4}}],
               "ffn": {"type": "glu", "d_hidden": 256}},
      "data": {"train": ["not there.txt"]},
      "train": {"steps": 1, "batch": 8, "length": 256)" +
                                  changes + R"(}, "optimizer": {"lr": 0.01}})");
  };
  const auto fit_of = [&](const std::string& arguments, const std::string& device) {
    const Outcome outcome = run("plan " + arguments + " --json", device);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return spec::parse_json(outcome.out, "plan").at("memory");
  };
  const std::string recipe = text_of("");
  // half a million parameters; the test device has 4 GiB
  const spec::Json fits = fit_of(recipe + " --device fake", kPreload);
  EXPECT_EQ(fits["fits"], true) << fits.dump();
  EXPECT_EQ(fits["memory_bytes"], int64_t{4} << 30);
  EXPECT_EQ(fits["optimizer_bytes"], 2 * fits["weight_bytes"].get<int64_t>());
  const int64_t total = fits["total_bytes"];
  EXPECT_EQ(total, fits["weight_bytes"].get<int64_t>() + fits["gradient_bytes"].get<int64_t>() +
                       fits["optimizer_bytes"].get<int64_t>() +
                       fits["activation_bytes"].get<int64_t>());
  EXPECT_TRUE(fits["remedies"].empty());
  // a GPU that is not there, with half of it; what is proposed fits, and runs as proposed
  const auto on = [&](int64_t bytes) { return fmt::format(" --device fake --memory {}", bytes); };
  const spec::Json not_fits = fit_of(recipe + on(total / 2 * 5 / 4), kPreload);
  EXPECT_EQ(not_fits["fits"], false) << not_fits.dump();
  ASSERT_FALSE(not_fits["remedies"].empty()) << not_fits.dump();
  for (const spec::Json& remedy : not_fits["remedies"]) {
    const spec::Json again = fit_of(
        recipe + " " + remedy["change"].get<std::string>() + on(total / 2 * 5 / 4), kPreload);
    EXPECT_EQ(again["fits"], true) << remedy.dump() << again.dump();
    EXPECT_EQ(again["total_bytes"], remedy["total_bytes"]);
  }
  const Outcome said = run("plan " + recipe + on(total / 2 * 5 / 4), kPreload);
  EXPECT_NE(said.out.find("\ndoes not fit: needs "), std::string::npos) << said.out;
  EXPECT_NE(said.out.find("\n  fits with --set 'train.batch="), std::string::npos) << said.out;
  // four fifths of the memory are enough for it, less are not
  EXPECT_EQ(fit_of(recipe + on(total / 4 * 5 + 8), kPreload)["fits"], true);
  EXPECT_EQ(fit_of(recipe + on(total / 4 * 5 - 40), kPreload)["fits"], false);
  // without a device: fused attention, and no file of data is read
  const spec::Json gpu = fit_of(recipe + " --memory 24GiB", "");
  EXPECT_EQ(gpu["memory_bytes"], int64_t{24} << 30);
  EXPECT_EQ(gpu["weight_bytes"], fits["weight_bytes"]);
  EXPECT_LT(gpu["activation_bytes"], fits["activation_bytes"]);
  expect_refused("plan " + recipe + " --memory much", 2, "expected a size such as 24GiB");
  // a model: its weights as they are on a device, and the states of its sequences
  const spec::Json model = fit_of(gguf_ + " --memory 1GiB --context 64 --sequences 3", "");
  const spec::Json one = fit_of(gguf_ + " --memory 1GiB --context 64", "");
  EXPECT_EQ(model["state_bytes"], 3 * one["state_bytes"].get<int64_t>());
  EXPECT_EQ(model["fits"], true) << model.dump();
  EXPECT_EQ(model["gradient_bytes"], 0);
  const spec::Json small = fit_of(gguf_ + fmt::format(" --memory {} --context 64 --sequences 64",
                                                      one["total_bytes"].get<int64_t>() +
                                                          48 * one["state_bytes"].get<int64_t>()),
                                  "");
  EXPECT_EQ(small["fits"], false) << small.dump();
  ASSERT_FALSE(small["remedies"].empty()) << small.dump();
  EXPECT_EQ(small["remedies"][0]["change"], "--kv-type f16");
}

TEST_F(CliOnDevice, AutoCountsActivations) {
  // 32 MiB hold its 0.5 M parameters with moments, and not the activations of 64 x 256 tokens
  const std::string recipe = write("auto.json", R"({
    "spec": {"tessera": 1, "arch": "decoder", "vocab": 256, "d_model": 64, "head": "tied",
             "layers": [{"repeat": 8, "mixer": {"type": "attention", "n_heads": 4}}],
             "ffn": {"type": "glu", "d_hidden": 256}},
    "data": {"train": ["none.txt"]},
    "train": {"steps": 1, "batch": 64, "length": 256}})");
  const std::string device = std::string("TESSERA_FAKE_MIB=32 ") + kPreload,
                    out = " --device auto --out " + path("auto");
  EXPECT_NE(
      run("train " + recipe + out, device).err.find("device auto: cpu, since the model takes "),
      std::string::npos);
  EXPECT_NE(run("train " + recipe + " --set train.batch=1 --set train.length=8" + out, device)
                .err.find("device auto: fake:0, since"),
            std::string::npos);
  // chosen all the same
  const std::string text = write("text.txt", std::string(60000, 'a'));
  const Outcome full = run("train " + recipe + " --set data.train='[\"" + text +
                               "\"]' --device fake --out " + path("full"),
                           device);
  EXPECT_EQ(full.code, 1) << full.err;
  EXPECT_NE(full.err.find("[device] [fake:0] out of memory"), std::string::npos) << full.err;
  EXPECT_NE(full.err.find("--device auto"), std::string::npos) << full.err;
}

TEST_F(CliOnDevice, AServerTakesItsMemoryFromTheDevice) {
  const std::string script = write("serve.sh", R"(
    LD_PRELOAD="$DEVICE" "$@" --port 18473 --log none >/dev/null 2>"$0.err" & server=$!
    for i in $(seq 100); do
      curl -s http://127.0.0.1:18473/metrics | grep '^tessera_state_limit_bytes' && break
      sleep 0.1
    done
    kill $server; wait $server)");
  const Outcome served = [&] {
    Outcome out;
    const std::string command = "DEVICE='" TESSERA_TEST_DEVICE "' sh '" + script +
                                "' '" TESSERA_PROGRAM "' serve " + gguf_ + " --device fake";
    FILE* pipe = popen(command.c_str(), "r");
    std::array<char, 512> buffer{};
    while (fgets(buffer.data(), buffer.size(), pipe) != nullptr) out.out += buffer.data();
    pclose(pipe);
    out.err = read_text_file(script + ".err");
    return out;
  }();
  // a quarter of its 4 GiB
  const size_t value = served.out.find(' ');
  ASSERT_NE(value, std::string::npos) << served.out << served.err;
  EXPECT_NEAR(std::strtod(served.out.c_str() + value, nullptr), 1 << 30, 1 << 21) << served.err;
}

TEST_F(CliOnDevice, PythonComputesThere) {
  const std::string script = write("device.py", R"(
import sys, tessera
path, folder = sys.argv[1:3]
cpu, device = tessera.load(path), tessera.load(path, device="fake")
ids = cpu.tokenize("!!")
texts = [model.generate("!", max_new_tokens=8, temperature=0).text for model in (cpu, device)]
assert texts[0] == texts[1], texts
for a, b in zip(cpu.logits(ids).tolist(), device.logits(ids).tolist()):
    assert max(abs(x - y) for x, y in zip(a, b)) < 1e-4
losses = {}
for name in ("cpu", "fake"):
    losses[name] = []
    tessera.train(folder + "/recipe.json", folder + "/" + name, device=name,
                  on_step=lambda line, steps: losses[name].append(line["loss"]))
assert len(losses["cpu"]) == 4 and all(abs(a - b) < 1e-5 for a, b in zip(losses["cpu"], losses["fake"])), losses
try:
    tessera.load(path, device="tpu")
except tessera.Error as error:
    assert error.code == "usage" and "expected cpu, cuda" in str(error), error
else:
    raise AssertionError("a device that does not exist")
print("same")
)");
  write("recipe.json", R"({
    "spec": {"tessera": 1, "arch": "decoder", "vocab": 256, "d_model": 16, "head": "tied",
             "layers": [{"mixer": {"type": "attention", "n_heads": 2}}],
             "ffn": {"type": "glu", "d_hidden": 32}},
    "data": {"train": [")" +
                           write("text.txt", std::string(3000, 'a')) + R"("]},
    "train": {"steps": 4, "batch": 2, "length": 16}})");
  const std::string command = std::string(kPreload) + "PYTHONPATH='" +
                              (kSource / "python").string() +
                              "' TESSERA_LIBRARY='" TESSERA_LIBRARY "' python3 '" + script + "' '" +
                              gguf_ + "' '" + folder_.path().string() + "' 2>&1";
  std::string said;
  FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 512> buffer{};
  while (fgets(buffer.data(), buffer.size(), pipe) != nullptr) said += buffer.data();
  EXPECT_EQ(pclose(pipe), 0) << said;
  EXPECT_EQ(said, "same\n");
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
  for (const char* verb :
       {"quantize m --type q8_0 --out x", "search x y", "convert m --to hf", "bench mixers"})
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
  EXPECT_NE(unknown.err.find("[device] \"tpu\"; expected cpu, cuda, cuda:N or auto"),
            std::string::npos);
  const Outcome counted =
      run("eval --ngram 3 --train-fraction 0.5 --text " + gguf_, "TESSERA_DEVICE=cuda ");
  EXPECT_EQ(counted.code, 0) << counted.err;
  EXPECT_NE(counted.err.find("eval --ngram computes on the CPU; TESSERA_DEVICE=cuda has no effect"),
            std::string::npos)
      << counted.err;
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
