#include "runtime/datasets/file_pattern.h"

#include <fnmatch.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string_view>

#include "runtime/base/error.h"

namespace penstock {
namespace {

constexpr size_t kMaxNames = 100'000;

[[noreturn]] void refuse(const std::string& pattern, const std::string& why, const std::string& remedy) {
  throw Error(ErrorKind::dataset, "'" + pattern + "': " + why, remedy);
}

// As a pattern of fnmatch(), which knows more than '*' and '?'.
std::string stars_and_marks_alone(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (c == '[' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

bool number_of(std::string_view text, int64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() && value > -1'000'000'000'000 &&
         value < 1'000'000'000'000;
}

std::string padded(int64_t value, size_t width) {
  const bool negative = value < 0;
  std::string digits = std::to_string(negative ? -value : value);
  const size_t sign = negative ? 1 : 0;
  if (digits.size() + sign < width) digits.insert(0, width - digits.size() - sign, '0');
  return negative ? "-" + digits : digits;
}

bool starts_with_zero(std::string_view text) {
  if (!text.empty() && text[0] == '-') text.remove_prefix(1);
  return text.size() > 1 && text[0] == '0';
}

// What stands between two braces.
std::vector<std::string> alternatives(const std::string& pattern, std::string_view body) {
  const char* remedy = "write {000..012}, {0..8..2} or {a,b,c}";
  std::vector<std::string> out;
  if (body.find(',') != std::string_view::npos) {
    for (size_t begin = 0; begin <= body.size();) {
      const size_t end = std::min(body.find(',', begin), body.size());
      out.emplace_back(body.substr(begin, end - begin));
      begin = end + 1;
    }
    return out;
  }
  const size_t dots = body.find("..");
  if (dots == std::string_view::npos)
    refuse(pattern, "'{" + std::string(body) + "}' is neither a range nor a list", remedy);
  const std::string_view first = body.substr(0, dots);
  std::string_view last = body.substr(dots + 2);
  int64_t step = 1;
  if (const size_t more = last.find(".."); more != std::string_view::npos) {
    if (!number_of(last.substr(more + 2), step) || step == 0)
      refuse(pattern, "the step of '{" + std::string(body) + "}' is no number", remedy);
    step = step < 0 ? -step : step;
    last = last.substr(0, more);
  }
  int64_t from = 0;
  int64_t to = 0;
  if (!number_of(first, from) || !number_of(last, to)) {
    refuse(pattern, "'{" + std::string(body) + "}' is no range of numbers", remedy);
  }
  const size_t width = starts_with_zero(first) || starts_with_zero(last) ? std::max(first.size(), last.size()) : 0;
  const int64_t count = (from < to ? to - from : from - to) / step + 1;
  if (count > static_cast<int64_t>(kMaxNames)) refuse(pattern, "it stands for more than 100,000 files", remedy);
  for (int64_t i = 0; i < count; ++i) out.push_back(padded(from < to ? from + i * step : from - i * step, width));
  return out;
}

}  // namespace

std::vector<std::string> expand_braces(const std::string& pattern) {
  std::vector<std::string> out = {""};
  std::string_view rest = pattern;
  while (!rest.empty()) {
    const size_t open = rest.find_first_of("{}");
    const std::string_view plain = rest.substr(0, open);
    std::vector<std::string> choices = {std::string(plain)};
    rest.remove_prefix(plain.size());
    if (!rest.empty()) {
      const size_t close = rest.find_first_of("{}", 1);
      if (rest[0] != '{' || close == std::string_view::npos || rest[close] != '}') {
        refuse(pattern, "its braces do not match, or are nested", "write {000..012} or {a,b,c}, each brace closed");
      }
      choices = alternatives(pattern, rest.substr(1, close - 1));
      for (std::string& choice : choices) choice.insert(0, plain);
      rest.remove_prefix(close + 1);
    }
    if (out.size() * choices.size() > kMaxNames)
      refuse(pattern, "it stands for more than 100,000 files", "use fewer braces");
    std::vector<std::string> longer;
    longer.reserve(out.size() * choices.size());
    for (const std::string& begin : out) {
      for (const std::string& choice : choices) longer.push_back(begin + choice);
    }
    out = std::move(longer);
  }
  return out;
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

std::vector<std::string> find_files(const std::string& pattern, FileSystem& files) {
  std::vector<std::string> out;
  for (const std::string& path : expand_braces(pattern)) {
    const size_t slash = path.rfind('/');
    const std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
    if (path.find_first_of("*?") == std::string::npos) {
      out.push_back(path);
      continue;
    }
    if (path.find_first_of("*?") < path.size() - name.size()) {
      refuse(pattern, "'*' and '?' may stand for part of a file's name, not of a folder's", "name the folder");
    }
    const std::string folder = folder_of(path);
    const std::string stars = stars_and_marks_alone(name);
    std::vector<std::string> found;
    try {
      for (const DirectoryEntry& entry : files.list_directory(folder).entries) {
        if (!entry.is_directory && ::fnmatch(stars.c_str(), entry.name.c_str(), FNM_PERIOD) == 0) {
          found.push_back(folder + "/" + entry.name);
        }
      }
    } catch (const FileError& error) {
      throw Error(ErrorKind::dataset, error.message(), "check the path and its permissions");
    }
    if (found.empty()) refuse(pattern, "no file of that name in '" + folder + "'", "check the pattern");
    std::sort(found.begin(), found.end());
    out.insert(out.end(), found.begin(), found.end());
  }
  return out;
}

}  // namespace penstock
