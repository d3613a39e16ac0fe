// Texts with positions, and complaints that point into them.
//
//   SourceText file(SourceText::Kind::file, "job.yaml", text);
//   Complaints complaints;
//   complaints.add({&file, offset, length}, "unknown key 'batchsize' in 'loader'", "did you mean 'batch_size'?");
//   complaints.throw_if_any();        // one Error(config) whose message shows all of them:
//
//   job.yaml:14:7: error: unknown key 'batchsize' in 'loader'
//      14 |       batchsize: 256
//         |       ^~~~~~~~~ did you mean 'batch_size'?
//
// Purpose: the user corrects everything in one go, so nothing that reads a job stops at the first mistake.
// A text is the job file, one override or one environment variable; places are byte offsets, turned into line and
//   column only when shown. Columns count characters; carets stay below their text with tabs, accents and wide letters.
// Bounds: an absurd file cannot make an absurd message: lines are cut around the caret, and at most `kMostShown`
//   complaints are shown (the rest are counted).
// Ownership: a Span does not own its text; SourceText must outlive the Complaints.
// Thread-safety: none; one reader per job.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

class SourceText {
 public:
  enum class Kind { file, environment, command_line, peer };

  SourceText(Kind kind, std::string name, std::string text);

  Kind kind() const noexcept { return kind_; }
  const std::string& name() const noexcept { return name_; }
  const std::string& text() const noexcept { return text_; }

  size_t line_of(size_t offset) const noexcept;         // from 0
  std::string_view line(size_t number) const noexcept;  // without its end
  size_t line_start(size_t number) const noexcept { return line_starts_[number]; }
  std::string origin(size_t offset) const;  // "job.yaml:14", "command line", "environment PENSTOCK_CFG__SEED"

 private:
  Kind kind_;
  std::string name_;
  std::string text_;
  std::vector<size_t> line_starts_;
};

// A piece of a text. Length 0 is shown as one caret; `source` nullptr: nothing to show.
struct Span {
  const SourceText* source = nullptr;
  size_t offset = 0;
  size_t length = 0;
};

class Complaints {
 public:
  static constexpr size_t kMostShown = 50;

  void add(const Span& where, std::string message, std::string hint = {});
  bool empty() const noexcept { return count_ == 0; }
  size_t count() const noexcept { return count_; }
  // Enough were found that further ones are only counted: costly hints need not be made any more.
  bool full() const noexcept { return entries_.size() >= kMostShown; }
  std::string text() const;  // file first, then environment, then command line; each in order of place
  void throw_if_any() const;

 private:
  struct Entry {
    Span where;
    std::string message;
    std::string hint;
  };
  std::vector<Entry> entries_;
  size_t count_ = 0;
};

// 'text' for a message: quoted, cut at 60 characters, control characters made harmless.
std::string in_quotes(std::string_view text);
// The offset of the first byte that is not well-formed UTF-8 or is a control character YAML does not allow;
// text.size() when there is none.
size_t first_bad_byte(std::string_view text);

}  // namespace penstock
