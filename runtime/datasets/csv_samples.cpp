// CSV files and lists of pictures: what their lines say becomes a table.
#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

#include "runtime/base/error.h"
#include "runtime/datasets/containers.h"
#include "runtime/datasets/csv_reader.h"
#include "runtime/datasets/label_column.h"

namespace penstock {
namespace {

constexpr int64_t kMaxListBytes = int64_t{4} << 30;

[[noreturn]] void refuse_line(const std::string& path, int64_t line, const std::string& why,
                              const std::string& remedy) {
  throw Error(ErrorKind::dataset, path + ":" + std::to_string(line) + ": " + why, remedy);
}

std::string text_of_file(const std::string& path, const ContainerInput& input, TableBuilder& table) {
  TableFile facts;
  const std::shared_ptr<const FileReader> file = input.shards.survey(path, facts);
  facts.path = relative_to(container_root(input.dataset), path);
  table.add_file(std::move(facts));
  if (file->size() > static_cast<uint64_t>(kMaxListBytes)) {
    throw Error(ErrorKind::dataset, "'" + path + "' is larger than 4 GiB", "split it");
  }
  std::string text(static_cast<size_t>(file->size()), '\0');
  if (!text.empty()) file->read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void check_path(const std::string& list, int64_t line, std::string_view path) {
  if (path.empty()) refuse_line(list, line, "the picture's path is empty", "every line names a file");
  if (path.size() > 4096 || path.find('\0') != std::string_view::npos) {
    refuse_line(list, line, "the picture's path is no possible one", "every line names a file");
  }
}

// A column of numbers: int64 where all are whole, float64 otherwise.
struct NumberColumn {
  std::string name;
  size_t cell = 0;
  size_t field = 0;
  std::vector<int64_t> whole;
  std::vector<double> numbers;

  std::string add(std::string_view text) {
    int64_t integer = 0;
    const bool is_whole = integer_of(text, integer);
    double number = static_cast<double>(integer);
    if (!is_whole) {
      while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
      while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
      if (text.empty() || error != std::errc{} || end != text.data() + text.size()) {
        return "'" + std::string(text.substr(0, 40)) + "' in column '" + name +
               "' is no number; a text is asked for as '" + name + ":text'";
      }
    }
    if (is_whole && whole.size() == numbers.size()) whole.push_back(integer);
    numbers.push_back(number);
    return {};
  }
  bool all_whole() const { return whole.size() == numbers.size(); }
};

}  // namespace

SampleTable list_csv(const ContainerInput& input) {
  const std::string& path = input.dataset.csv;
  TableBuilder table("csv");
  const std::string text = text_of_file(path, input, table);
  CsvReader reader(text);
  std::vector<std::string> header;
  const auto complain = [&] {
    if (!reader.why().empty())
      refuse_line(path, reader.line(), reader.why(), "write it by RFC 4180, as Python's csv.writer does");
  };
  if (!reader.next(header)) {
    complain();
    throw Error(ErrorKind::dataset, "'" + path + "' is empty", "its first line names the columns");
  }
  for (std::string& name : header) name = without_blanks(name);
  for (const std::string& name : header) {
    if (std::count(header.begin(), header.end(), name) > 1) {
      refuse_line(path, reader.line(), "two columns are named '" + name.substr(0, 60) + "'",
                  "the first line names the columns");
    }
  }
  const auto column = [&](const std::string& name) -> std::optional<size_t> {
    const auto found = std::find(header.begin(), header.end(), name);
    return found == header.end() ? std::nullopt : std::optional<size_t>(static_cast<size_t>(found - header.begin()));
  };
  const std::string image_name = input.dataset.image.empty() ? "image" : input.dataset.image;
  const std::optional<size_t> image = column(image_name);
  if (!image) no_such_name(path, "column", image_name, header);
  const std::optional<size_t> label = column(input.dataset.label.empty() ? "label" : input.dataset.label);
  if (!label && !input.dataset.label.empty()) no_such_name(path, "column", input.dataset.label, header);
  if (!label) refuse_near_label(path, "column", header);
  std::vector<NumberColumn> numbers;
  std::vector<std::pair<size_t, size_t>> texts;  // field, cell
  for (const FieldRequest& asked : field_requests(input.dataset)) {
    const std::optional<size_t> cell = column(asked.name);
    if (!cell) no_such_name(path, "column", asked.name, header);
    FieldSpec spec;
    spec.name = asked.name;
    spec.kind = asked.kind;
    spec.dtype = asked.has_kind ? DType::uint8 : DType::float64;
    const size_t field = table.add_field(std::move(spec));
    if (asked.has_kind) {
      texts.emplace_back(field, *cell);
    } else {
      numbers.push_back({asked.name, *cell, field, {}, {}});
    }
  }
  table.facts().labelled = label.has_value();
  LabelColumn labels;
  std::vector<std::string> cells;
  while (reader.next(cells)) {
    if (cells.size() != header.size()) {
      refuse_line(path, reader.line(),
                  std::to_string(cells.size()) + " cells instead of " + std::to_string(header.size()),
                  "every line has as many as the first");
    }
    check_path(path, reader.line(), cells[*image]);
    table.add(cells[*image], 0, kOwnFile, 0, 0);
    std::string why = label ? labels.add_text(cells[*label]) : std::string();
    for (NumberColumn& one : numbers) {
      if (why.empty()) why = one.add(cells[one.cell]);
    }
    for (const auto& [field, cell] : texts) table.value(field, std::as_bytes(std::span(cells[cell])));
    if (!why.empty())
      refuse_line(path, reader.line(), why,
                  "labels are integers in every line or names in every line; fields are numbers");
  }
  complain();
  if (table.size() == 0)
    throw Error(ErrorKind::dataset, "'" + path + "' has no line after its first", "each further line is a sample");
  if (label) labels.finish(table);
  for (const NumberColumn& one : numbers) {
    if (one.all_whole()) table.facts().fields[one.field].dtype = DType::int64;
    for (size_t i = 0; i < one.numbers.size(); ++i) {
      one.all_whole() ? table.value(one.field, std::as_bytes(std::span(&one.whole[i], 1)))
                      : table.value(one.field, std::as_bytes(std::span(&one.numbers[i], 1)));
    }
  }
  return table.finish();
}

SampleTable list_file_list(const ContainerInput& input) {
  const std::string& path = input.dataset.list;
  TableBuilder table("list");
  const std::string text = text_of_file(path, input, table);
  LabelColumn labels;
  std::string_view rest = text;
  for (int64_t number = 1; !rest.empty(); ++number) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ' || line.back() == '\t')) line.remove_suffix(1);
    if (line.empty()) continue;
    const size_t blank = line.find_last_of(" \t");
    int64_t label = 0;
    if (blank == std::string_view::npos || !integer_of(line.substr(blank), label)) {
      refuse_line(path, number, "no 'PATH LABEL' with an integer label: '" + std::string(line.substr(0, 80)) + "'",
                  "for class names, or without labels, use csv");
    }
    line = line.substr(0, blank);
    while (!line.empty() && (line.back() == ' ' || line.back() == '\t')) line.remove_suffix(1);
    check_path(path, number, line);
    table.add(line, label, kOwnFile, 0, 0);
  }
  if (table.size() == 0) throw Error(ErrorKind::dataset, "'" + path + "' is empty", "each line is 'PATH LABEL'");
  return table.finish();
}

}  // namespace penstock
