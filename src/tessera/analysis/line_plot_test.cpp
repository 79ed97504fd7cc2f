// The SVG is well-formed XML that shows every line where it belongs.
#include "tessera/analysis/line_plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <regex>

#include "tessera/base/error.h"

namespace tessera::analysis::line_plot_test {
namespace {

using ::testing::HasSubstr;

/// What keeps the text from being XML, "" when nothing: tags that open and close in order, quoted
/// attributes, no bare & or < in what lies between.
std::string xml_problem(const std::string& text) {
  static const std::regex tag(R"(^<(/?)([a-z]+)((?: [a-zA-Z:-]+="[^"<]*")*)(/?)>)");
  static const std::regex entity(R"(^&(amp|lt|gt|quot);)");
  std::vector<std::string> open;
  for (size_t i = 0; i < text.size();) {
    std::smatch match;
    const auto from = text.begin() + static_cast<std::ptrdiff_t>(i);
    if (text[i] == '<') {
      if (!std::regex_search(from, text.end(), match, tag)) return "at " + text.substr(i, 60);
      if (match[1].length() > 0) {
        if (open.empty() || open.back() != match[2]) return "closes " + match[2].str();
        open.pop_back();
      } else if (match[4].length() == 0) {
        open.push_back(match[2]);
      }
      i += static_cast<size_t>(match.length());
    } else if (text[i] == '&') {
      if (!std::regex_search(from, text.end(), match, entity)) return "at " + text.substr(i, 60);
      i += static_cast<size_t>(match.length());
    } else {
      if (open.empty() && std::isspace(static_cast<unsigned char>(text[i])) == 0)
        return "text outside";
      ++i;
    }
  }
  return open.empty() ? "" : open.back() + " is not closed";
}

LinePlot plot_of(std::vector<Panel> panels) {
  return {"a <title> & \"more\"", "tokens", "ms", std::move(panels), {1, 2}};
}

/// Centres of the dots, in order.
std::vector<std::pair<double, double>> dots(const std::string& svg) {
  static const std::regex circle(R"re(<circle cx="([0-9.]+)" cy="([0-9.]+)")re");
  std::vector<std::pair<double, double>> out;
  for (std::sregex_iterator i(svg.begin(), svg.end(), circle), end; i != end; ++i)
    out.emplace_back(std::stod((*i)[1]), std::stod((*i)[2]));
  return out;
}

TEST(LinePlot, IsWellFormed) {
  EXPECT_NE(xml_problem("<g><path d=\"M0 0\"></g>"), "");
  EXPECT_NE(xml_problem("<g>a & b</g>"), "");
  EXPECT_NE(xml_problem("<g x=1></g>"), "");
  const Line line{"mixer <&>", {{256, 0.5}, {1024, 3}, {16384, 900}}};
  std::vector<Panel> panels;
  for (int i = 0; i < 5; ++i) panels.push_back({"T & T^2", std::vector<Line>(kLinesOfPanel, line)});
  for (const LinePlot& plot :
       {plot_of(panels), plot_of({}), plot_of({{"one", {{"point", {{4, 4}}}}}}),
        plot_of({{"none", {{"empty", {}}}}})}) {
    const std::string svg = svg_of(plot);
    EXPECT_EQ(xml_problem(svg), "");
    EXPECT_THAT(svg, HasSubstr("a &lt;title&gt; &amp; &quot;more&quot;"));
    EXPECT_EQ(svg.find("nan"), std::string::npos);
    EXPECT_EQ(svg.find("inf"), std::string::npos);
  }
}

TEST(LinePlot, LogarithmsAreEvenlySpaced) {
  const auto at =
      dots(svg_of(plot_of({{"p", {{"l", {{256, 1}, {1024, 10}, {4096, 100}, {16384, 1000}}}}}})));
  ASSERT_EQ(at.size(), 4u);
  for (size_t i = 1; i < at.size(); ++i) {
    EXPECT_NEAR(at[i].first - at[i - 1].first, at[1].first - at[0].first, 0.11);
    EXPECT_NEAR(at[i].second - at[i - 1].second, at[1].second - at[0].second, 0.11);
    EXPECT_GT(at[i].first, at[i - 1].first);
    EXPECT_LT(at[i].second, at[i - 1].second) << "more is higher up";
  }
}

TEST(LinePlot, PanelsShareTheirAxes) {
  const auto at = dots(svg_of(
      plot_of({{"a", {{"l", {{1024, 10}}}}}, {"b", {{"l", {{1024, 10}, {16384, 10000}}}}}})));
  ASSERT_EQ(at.size(), 3u);
  EXPECT_EQ(at[0], at[1]) << "coordinates are those inside a panel";
}

TEST(LinePlot, EveryLineHasItsColourAndLegend) {
  std::vector<Line> lines;
  for (size_t i = 0; i < kLinesOfPanel; ++i)
    lines.push_back({"line" + std::to_string(i), {{256, 1}, {512, 2}}});
  const std::string svg = svg_of(plot_of({{"p", lines}}));
  static const std::regex stroke("stroke=\"(#[0-9a-f]{6})\" class=\"line\"");
  std::map<std::string, int> colours;
  for (std::sregex_iterator i(svg.begin(), svg.end(), stroke), end; i != end; ++i)
    ++colours[(*i)[1]];
  EXPECT_EQ(colours.size(), kLinesOfPanel);
  for (const auto& [colour, times] : colours) EXPECT_EQ(times, 2) << colour << ": line and legend";
  for (const Line& line : lines) EXPECT_THAT(svg, HasSubstr(">" + line.name + "</text>"));
  lines.push_back({"one more", {}});
  EXPECT_THROW(svg_of(plot_of({{"p", lines}})), Error);
}

TEST(LinePlot, RefusesWhatHasNoLogarithm) {
  EXPECT_THROW(svg_of(plot_of({{"p", {{"l", {{256, 0}}}}}})), Error);
  EXPECT_THROW(svg_of(plot_of({{"p", {{"l", {{-1, 1}}}}}})), Error);
  EXPECT_THROW(svg_of(plot_of({{"p", {{"l", {{1, INFINITY}}}}}})), Error);
}

}  // namespace
}  // namespace tessera::analysis::line_plot_test
