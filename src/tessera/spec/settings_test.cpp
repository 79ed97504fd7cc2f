#include "tessera/spec/settings.h"

#include <gtest/gtest.h>

#include "tessera/base/testing.h"

namespace tessera::spec {
namespace {

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

TEST(Settings, AreReadByName) {
  Settings settings(
      R"({"a": true, "b": "x", "c": 3, "d": 0.5, "e": ["p", "q"], "f": "p", "g": null})", "call");
  EXPECT_EQ(settings.flag("a"), true);
  EXPECT_EQ(settings.text("b"), "x");
  EXPECT_EQ(settings.whole("c", 1), 3);
  EXPECT_EQ(settings.number("d", 0, 1, "between 0 and 1"), 0.5);
  EXPECT_EQ(settings.texts("e"), (std::vector<std::string>{"p", "q"}));
  EXPECT_EQ(settings.texts("f"), std::vector<std::string>{"p"});
  EXPECT_EQ(settings.text("g"), std::nullopt);
  EXPECT_EQ(settings.flag("absent"), std::nullopt);
  settings.done();
  Settings("", "call").done();
}

TEST(Settings, WhatIsWrongIsNamed) {
  EXPECT_EQ(error_of([] { Settings("[1]", "call"); }),
            "[call] the settings are an array; expected a JSON object");
  EXPECT_EQ(error_of([] { Settings(R"({"a": 1})", "call").flag("a"); }),
            "[call] a: 1; expected true or false");
  EXPECT_EQ(error_of([] { Settings(R"({"a": 1.5})", "call").whole("a", 0); }),
            "[call] a: 1.5; expected a whole number of at least 0");
  EXPECT_EQ(error_of([] { Settings(R"({"a": -1})", "call").whole("a", 0); }),
            "[call] a: -1; expected a whole number of at least 0");
  EXPECT_EQ(error_of([] { Settings(R"({"a": 18446744073709551615})", "call").whole("a", 0); }),
            "[call] a: 18446744073709551615; expected a smaller number");
  EXPECT_EQ(error_of([] { Settings(R"({"a": 2})", "call").number("a", 0, 1, "between 0 and 1"); }),
            "[call] a: 2; expected between 0 and 1");
  EXPECT_EQ(error_of([] { Settings(R"({"a": [1]})", "call").texts("a"); }),
            "[call] a: [1]; expected a string or a list of strings");
  EXPECT_EQ(error_of([] {
              Settings(R"({"a": "z"})", "call").one_of("a", {"x", "y"});
            }),
            "[call] a: \"z\"; expected x, y");
  EXPECT_EQ(error_of([] {
              Settings settings(R"({"temprature": 1})", "call");
              settings.number("temperature", 0, 2, "");
              settings.done();
            }),
            "[call] unknown setting \"temprature\"; expected \"temperature\"?");
}

}  // namespace
}  // namespace tessera::spec
