#include "runtime/job/source_text.h"

#include <algorithm>
#include <cstdint>

#include "runtime/base/error.h"
#include "runtime/base/utf8.h"

namespace penstock {
namespace {

bool is_control(uint32_t code) {
  return (code < 0x20 && code != '\t') || (code >= 0x7F && code < 0xA0);
}

// Columns a character takes on a terminal. Coarse ranges suffice: a caret that is off by one below rare letters still
// points into the right word.
size_t width_of(uint32_t code) {
  const bool combining = (code >= 0x0300 && code <= 0x036F) || (code >= 0x200B && code <= 0x200F) ||
                         (code >= 0x20D0 && code <= 0x20FF) || (code >= 0xFE00 && code <= 0xFE0F) || code == 0xFEFF;
  if (combining) return 0;
  const bool wide = (code >= 0x1100 && code <= 0x115F) || (code >= 0x2E80 && code <= 0xA4CF) ||
                    (code >= 0xAC00 && code <= 0xD7A3) || (code >= 0xF900 && code <= 0xFAFF) ||
                    (code >= 0xFE30 && code <= 0xFE6F) || (code >= 0xFF00 && code <= 0xFF60) ||
                    (code >= 0xFFE0 && code <= 0xFFE6) || (code >= 0x1F300 && code <= 0x1FAFF) ||
                    (code >= 0x20000 && code <= 0x3FFFD);
  return wide ? 2 : 1;
}

// `shown` is the text as printed, `blank` as many columns of nothing (tabs stay tabs), `mark` as many tildes.
struct Rendered {
  std::string shown;
  std::string blank;
  size_t columns = 0;
  size_t characters = 0;
};

Rendered render(std::string_view text) {
  Rendered out;
  for (size_t at = 0; at < text.size();) {
    const Character c = decode_utf8(text, at);
    const size_t bytes = std::max<size_t>(c.bytes, 1);
    ++out.characters;
    if (c.code == '\t' && c.bytes == 1) {
      out.shown += '\t';
      out.blank += '\t';
      out.columns += 1;
    } else if (c.bytes == 0 || is_control(c.code)) {  // never let a job file talk to the terminal
      out.shown += '?';
      out.blank += ' ';
      out.columns += 1;
    } else {
      out.shown += text.substr(at, bytes);
      out.blank.append(width_of(c.code), ' ');
      out.columns += width_of(c.code);
    }
    at += bytes;
  }
  return out;
}

constexpr size_t kLongestLine = 160;  // bytes; longer ones are cut around the caret
constexpr size_t kKeptBefore = 60;

bool continues_character(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

std::string snippet(const Span& where, const std::string& hint, bool numbered) {
  const SourceText& source = *where.source;
  const size_t number = source.line_of(where.offset);
  std::string_view line = source.line(number);
  size_t column = std::min(where.offset - source.line_start(number), line.size());
  std::string before_dots;
  std::string after_dots;
  if (line.size() > kLongestLine) {
    size_t from = column > kKeptBefore ? column - kKeptBefore : 0;
    // A character has three such bytes at most; a line of nothing else is no text, and is cut anywhere.
    for (int i = 0; i < 3 && from > 0 && continues_character(line[from]); ++i) --from;
    size_t to = std::min(line.size(), from + kLongestLine);
    for (int i = 0; i < 3 && to < line.size() && to > column && continues_character(line[to]); ++i) --to;
    if (from > 0) before_dots = "...";
    if (to < line.size()) after_dots = "...";
    line = line.substr(from, to - from);
    column -= from;
  }
  const size_t length = std::min(where.length, line.size() - column);
  const Rendered before = render(line.substr(0, column));
  const Rendered marked = render(line.substr(column, length));
  const Rendered after = render(line.substr(column + length));

  std::string gutter = numbered ? std::to_string(number + 1) : std::string();
  if (gutter.size() < 5) gutter.insert(0, 5 - gutter.size(), ' ');
  std::string out = gutter + " | " + before_dots + before.shown + marked.shown + after.shown + after_dots + "\n";
  out += std::string(gutter.size(), ' ') + " | " + std::string(before_dots.size(), ' ') + before.blank + "^";
  if (marked.columns > 1) out.append(marked.columns - 1, '~');
  if (!hint.empty()) out += " " + hint;
  return out;
}

int rank_of(const Span& where) {
  return where.source == nullptr ? -1 : static_cast<int>(where.source->kind());
}

}  // namespace

SourceText::SourceText(Kind kind, std::string name, std::string text)
    : kind_(kind), name_(std::move(name)), text_(std::move(text)) {
  line_starts_.push_back(0);
  for (size_t i = 0; i < text_.size(); ++i) {
    if (text_[i] == '\n') line_starts_.push_back(i + 1);
  }
}

size_t SourceText::line_of(size_t offset) const noexcept {
  const auto next = std::upper_bound(line_starts_.begin(), line_starts_.end(), std::min(offset, text_.size()));
  return static_cast<size_t>(next - line_starts_.begin()) - 1;
}

std::string_view SourceText::line(size_t number) const noexcept {
  const size_t from = line_starts_[number];
  size_t to = number + 1 < line_starts_.size() ? line_starts_[number + 1] - 1 : text_.size();
  if (to > from && text_[to - 1] == '\r') --to;
  return std::string_view(text_).substr(from, to - from);
}

std::string SourceText::origin(size_t offset) const {
  switch (kind_) {
    case Kind::file: return name_ + ":" + std::to_string(line_of(offset) + 1);
    case Kind::environment: return "environment " + name_;
    case Kind::command_line: return "command line";
    case Kind::peer: return name_;
  }
  return name_;
}

void Complaints::add(const Span& where, std::string message, std::string hint) {
  ++count_;
  if (!full()) entries_.push_back({where, std::move(message), std::move(hint)});
}

std::string Complaints::text() const {
  std::vector<Entry> entries = entries_;
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    if (rank_of(a.where) != rank_of(b.where)) return rank_of(a.where) < rank_of(b.where);
    // Overrides keep the order in which they were given.
    return a.where.source == b.where.source && a.where.offset < b.where.offset;
  });
  std::string out;
  for (const Entry& entry : entries) {
    if (!out.empty()) out += "\n";
    const SourceText* source = entry.where.source;
    const std::string plain_hint = entry.hint.empty() ? "" : " (" + entry.hint + ")";
    if (source == nullptr) {
      out += "error: " + entry.message + plain_hint;
      continue;
    }
    switch (source->kind()) {
      case SourceText::Kind::file: {
        const size_t number = source->line_of(entry.where.offset);
        const std::string_view line = source->line(number);
        const size_t column = std::min(entry.where.offset - source->line_start(number), line.size());
        out += source->name() + ":" + std::to_string(number + 1) + ":" +
               std::to_string(render(line.substr(0, column)).characters + 1) + ": error: " + entry.message + "\n" +
               snippet(entry.where, entry.hint, true);
        break;
      }
      case SourceText::Kind::environment:
        out += "environment: error: " + entry.message + "\n" + snippet(entry.where, entry.hint, false);
        break;
      case SourceText::Kind::command_line:
        out += "command line: error: " + entry.message + "\n" + snippet(entry.where, entry.hint, false);
        break;
      case SourceText::Kind::peer: out += source->name() + ": error: " + entry.message + plain_hint; break;
    }
  }
  if (count_ > entries_.size()) out += "\n... and " + std::to_string(count_ - entries_.size()) + " more";
  if (count_ > 1) out += "\n" + std::to_string(count_) + " errors";
  return out;
}

void Complaints::throw_if_any() const {
  if (!empty()) throw Error(ErrorKind::config, text());
}

std::string in_quotes(std::string_view text) {
  constexpr size_t longest = 60;
  std::string out = "'";
  size_t characters = 0;
  for (size_t at = 0; at < text.size();) {
    if (characters++ == longest) return out + "...'";
    const Character c = decode_utf8(text, at);
    if (c.bytes == 0 || is_control(c.code) || c.code == '\t') {
      out += c.code == '\n' || c.code == '\t' ? ' ' : '?';
    } else {
      out += text.substr(at, c.bytes);
    }
    at += std::max<size_t>(c.bytes, 1);
  }
  return out + "'";
}

size_t first_bad_byte(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Character c = decode_utf8(text, at);
    const bool allowed = c.code == '\n' || c.code == '\r' || c.code == 0x85 || !is_control(c.code);
    if (c.bytes == 0 || !allowed) return at;
    at += c.bytes;
  }
  return text.size();
}

}  // namespace penstock
