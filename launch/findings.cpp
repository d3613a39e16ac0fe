#include "launch/findings.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "runtime/base/json_text.h"

namespace penstock {
namespace {

const char* name_of(FindingLevel level) {
  switch (level) {
    case FindingLevel::note: return "note";
    case FindingLevel::problem: return "problem";
    default: return "fine";
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

bool knows_localhost(const std::string& hosts, const std::string& nsswitch) {
  const auto has_word = [](std::istringstream& words, std::initializer_list<const char*> wanted) {
    for (std::string word; words >> word;) {
      if (std::find(wanted.begin(), wanted.end(), word) != wanted.end()) return true;
    }
    return false;
  };
  bool by_files = true;  // what the C library does where nothing is said
  std::istringstream services(nsswitch);
  for (std::string line; std::getline(services, line);) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string database;
    if (!(words >> database) || database != "hosts:") continue;
    const std::string rest(std::istreambuf_iterator<char>(words), {});
    std::istringstream own(rest);
    if (has_word(own, {"myhostname", "resolve"})) return true;  // systemd's, which need no file
    std::istringstream files(rest);
    by_files = has_word(files, {"files"});
  }
  if (!by_files) return false;
  std::istringstream lines(hosts);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string address;
    if (words >> address && has_word(words, {"localhost"})) return true;
  }
  return false;
}

}  // namespace penstock
