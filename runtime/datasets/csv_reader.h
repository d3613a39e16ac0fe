// CSV by RFC 4180, row by row.
//
//   CsvReader reader(text);
//   while (reader.next(cells)) use(cells, reader.line());      // the line that the row begins in, from 1
//   if (!reader.why().empty()) complain(reader.line(), reader.why());
//
// Cells are separated by commas; quoted cells may hold commas, line ends and doubled quotes; lines end in LF or CR LF;
// a byte order mark and empty lines are passed over. A quote inside an unquoted cell, text after a closing quote and a
// quote that never closes are mistakes. Cells are at most 1 MiB, rows at most 4,096 cells.
// A pure function of the text, which must outlive the reader. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

class CsvReader {
 public:
  explicit CsvReader(std::string_view text);

  // False: the end, or a mistake.
  bool next(std::vector<std::string>& cells);
  int64_t line() const noexcept { return line_; }
  const std::string& why() const noexcept { return why_; }

 private:
  bool cell(std::string& out);
  bool mistake(const char* why);

  std::string_view rest_;
  int64_t line_ = 0;
  int64_t next_line_ = 1;
  std::string why_;
};

}  // namespace penstock
