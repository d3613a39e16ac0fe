#include "runtime/datasets/csv_reader.h"

#include <algorithm>

namespace penstock {
namespace {

constexpr size_t kMaxCell = size_t{1} << 20;
constexpr size_t kMaxCells = 4096;

}  // namespace

CsvReader::CsvReader(std::string_view text) : rest_(text) {
  if (rest_.starts_with("\xEF\xBB\xBF")) rest_.remove_prefix(3);
}

bool CsvReader::mistake(const char* why) {
  why_ = why;
  rest_ = {};
  return false;
}

// One cell; what follows it, a comma, a line end or nothing, stays.
bool CsvReader::cell(std::string& out) {
  out.clear();
  if (!rest_.starts_with('"')) {
    const size_t end = std::min(rest_.find_first_of(",\n\""), rest_.size());
    if (end < rest_.size() && rest_[end] == '"')
      return mistake("a quote in the middle of a cell; quote the whole cell, and double the quotes in it");
    if (end > kMaxCell) return mistake("a cell of more than 1 MiB");
    out = rest_.substr(0, end);
    rest_.remove_prefix(end);
    if (out.ends_with('\r') && (rest_.empty() || rest_[0] == '\n')) out.pop_back();
    return true;
  }
  rest_.remove_prefix(1);
  for (;;) {
    const size_t quote = rest_.find('"');
    if (quote == std::string_view::npos) return mistake("a quote that is never closed");
    if (out.size() + quote > kMaxCell) return mistake("a cell of more than 1 MiB");
    const std::string_view part = rest_.substr(0, quote);
    out += part;
    next_line_ += std::count(part.begin(), part.end(), '\n');
    rest_.remove_prefix(quote + 1);
    if (!rest_.starts_with('"')) break;
    out += '"';
    rest_.remove_prefix(1);
  }
  if (rest_.starts_with("\r\n") || rest_ == "\r") rest_.remove_prefix(1);
  if (!rest_.empty() && rest_[0] != ',' && rest_[0] != '\n') return mistake("text after a closing quote");
  return true;
}

bool CsvReader::next(std::vector<std::string>& cells) {
  while (rest_.starts_with('\n') || rest_.starts_with("\r\n")) {
    rest_.remove_prefix(rest_[0] == '\n' ? 1 : 2);
    ++next_line_;
  }
  if (rest_.empty()) return false;
  line_ = next_line_;
  size_t count = 0;
  for (;;) {
    if (count == kMaxCells) return mistake("more than 4096 cells in a row");
    if (cells.size() <= count) cells.emplace_back();
    if (!cell(cells[count])) return false;
    ++count;
    if (!rest_.starts_with(',')) break;
    rest_.remove_prefix(1);
  }
  cells.resize(count);
  if (rest_.starts_with('\n')) {
    rest_.remove_prefix(1);
    ++next_line_;
  }
  return true;
}

}  // namespace penstock
