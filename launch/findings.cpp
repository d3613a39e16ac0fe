#include "launch/findings.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "runtime/base/json_text.h"

namespace penstock {
namespace {

const char* name_of(FindingLevel level) {
  switch (level) {
    case FindingLevel::note:
      return "note";
    case FindingLevel::problem:
      return "problem";
    default:
      return "fine";
  }
}

}  // namespace

std::string findings_text(const Findings& findings) {
  size_t width = 0;
  for (const Finding& finding : findings) width = std::max(width, finding.topic.size());
  std::string text;
  for (const Finding& finding : findings) {
    text += finding.topic + std::string(width + 2 - finding.topic.size(), ' ');
    if (finding.level != FindingLevel::fine) text += std::string(name_of(finding.level)) + ": ";
    text += finding.text + "\n";
    if (!finding.remedy.empty()) text += std::string(width + 2, ' ') + finding.remedy + "\n";
  }
  return text;
}

std::string findings_json(const Findings& findings) {
  auto list = nlohmann::json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"topic", finding.topic},
                    {"text", finding.text},
                    {"level", name_of(finding.level)},
                    {"remedy", finding.remedy}});
  }
  return json_text(list, 2) + "\n";
}

long long least_limit(const std::vector<std::string>& limits) {
  long long least = -1;
  for (const std::string& text : limits) {
    long long bytes = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bytes);
    if (error == std::errc() && bytes >= 0 && (least < 0 || bytes < least)) least = bytes;
  }
  return least;
}

}  // namespace penstock
