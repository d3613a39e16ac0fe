#include "runtime/job/suggest.h"

#include <algorithm>

#include "runtime/base/lower_case.h"

namespace penstock {
namespace {

constexpr size_t kLongestName = 64;

std::string folded(std::string_view text) {
  std::string out;
  for (const char c : lower_case(text)) {
    if (c != '_' && c != '-' && c != ' ') out += c;
  }
  return out;
}

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
  // Three rows of the usual table: the current one and, for swapped neighbours, the two before it.
  std::vector<size_t> two_back(b.size() + 1), back(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) back[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = back[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({change, back[j] + 1, row[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], two_back[j - 2] + 1);
    }
    std::swap(two_back, back);
    std::swap(back, row);
  }
  return back[b.size()];
}

std::string suggest(std::string_view name, const std::vector<std::string>& known) {
  if (name.empty() || name.size() > kLongestName) return {};
  const std::string wanted = folded(name);
  std::string best;
  size_t least = std::max<size_t>(1, wanted.size() / 3) + 1;
  for (const std::string& candidate : known) {
    const std::string other = folded(candidate);
    // A change of every letter is no typing mistake: 'x' is not meant to be 'p'.
    const size_t distance = edit_distance(wanted, other);
    if (distance < least && distance < std::max(wanted.size(), other.size())) {
      least = distance;
      best = candidate;
    }
  }
  if (!best.empty() || wanted.size() < 4) return best;
  // "HorizontalFlip" for "RandomHorizontalFlip": too many edits, yet plain to see.
  for (const std::string& candidate : known) {
    if (folded(candidate).find(wanted) != std::string::npos) return candidate;
  }
  return {};
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& known) {
  const std::string best = suggest(name, known);
  return best.empty() ? std::string() : "did you mean '" + best + "'?";
}

std::string list_of(const std::vector<std::string>& names, std::string_view conjunction) {
  std::string out;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) out += i + 1 == names.size() ? " " + std::string(conjunction) + " " : ", ";
    out += names[i];
  }
  return out;
}

}  // namespace penstock
