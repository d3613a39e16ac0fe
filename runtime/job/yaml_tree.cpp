#include "runtime/job/yaml_tree.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <new>
#include <sstream>
#include <unordered_map>

#include "runtime/base/lower_case.h"

namespace penstock {
namespace {

struct StopReading {};  // thrown through yaml-cpp once a complaint says that reading on makes no sense

std::string depth_message() {
  return "nested deeper than " + std::to_string(kYamlMaxDepth) + " levels";
}

// yaml-cpp's parser recurses per level, so the text is looked at before: open brackets, and the dashes, question marks
// and colons that open several levels on one line. Quotes and comments are not understood here, which can only
// overcount brackets nobody closes; 32 of those in a job file are no accident. Levels missed here meet the event
// handler.
bool too_deep(std::string_view text, size_t& offset) {
  size_t open = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '[' || c == '{') {
      if (++open > kYamlMaxDepth) return offset = i, true;
    } else if (c == ']' || c == '}') {
      open -= open > 0 ? 1 : 0;
    } else if (i == 0 || text[i - 1] == '\n') {
      size_t levels = 0;
      for (size_t j = i; j < text.size() && (text[j] == '-' || text[j] == '?' || text[j] == ':' || text[j] == ' ');) {
        if (text[j] == ' ') {
          ++j;
        } else if (j + 1 < text.size() && (text[j + 1] == ' ' || text[j + 1] == '\n')) {
          if (++levels > kYamlMaxDepth) return offset = j, true;
          j += 2;
        } else {
          break;
        }
      }
    }
  }
  return false;
}

class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(const SourceText& source, size_t begin, Complaints& complaints)
      : source_(source), begin_(begin), complaints_(complaints) {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    refuse_anchor(mark, anchor);
    YamlNode node;
    node.span = at(mark);
    // "key:" has nothing to point at (the mark is somewhere behind); "key: null" and "key: ~" have.
    const std::string_view rest = std::string_view(source_.text()).substr(node.span.offset);
    if (rest.starts_with("~")) {
      node.span.length = 1;
    } else if (lower_case(rest.substr(0, 4)) == "null") {
      node.span.length = 4;
    }
    place(std::move(node), false);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    Span span = at(mark);
    span.length = plain_length(span.offset);
    complaints_.add(span, "aliases are not supported in job files", "write the value again");
    YamlNode node;
    node.kind = YamlNode::Kind::unknown;
    node.span = span;
    place(std::move(node), false);
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    refuse_anchor(mark, anchor);
    refuse_tag(mark, tag);
    YamlNode node;
    node.kind = YamlNode::Kind::scalar;
    node.text = value;
    node.quoted = tag != "?";
    node.span = at(mark);
    node.span.length = scalar_length(node.span.offset, value);
    if (unclosed_quote(node.span.offset)) {
      complaints_.add({&source_, node.span.offset, 1}, "not valid YAML: this quote is never closed");
      throw StopReading{};
    }
    place(std::move(node), false);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, YamlNode::Kind::sequence);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, YamlNode::Kind::mapping);
  }
  void OnMapEnd() override { close(); }

  // For a syntax error: yaml-cpp says where it noticed, which is often lines below the cause.
  std::string likely_cause(size_t noticed) const {
    const std::string_view line = source_.line(source_.line_of(noticed));
    const size_t indent = line.find_first_not_of(" \t");
    if (line.substr(0, indent).find('\t') != std::string_view::npos)
      return "indent with spaces: YAML allows no tabs there";
    if (stack_.empty()) return {};
    const size_t begun = stack_.back().node.span.offset;
    const char opening = begun < source_.text().size() ? source_.text()[begun] : ' ';
    if (opening != '[' && opening != '{') return {};
    return std::string("inside '") + opening + "' of line " + std::to_string(source_.line_of(begun) + 1);
  }

  YamlNode take_root() { return std::move(root_); }
  Span at(const YAML::Mark& mark) const {
    const size_t offset = mark.pos < 0 ? begin_ : begin_ + static_cast<size_t>(mark.pos);
    return {&source_, std::min(offset, source_.text().size()), 0};
  }

 private:
  // A collection being built. Keys arrive as nodes of their own, before their value.
  struct Open {
    YamlNode node;
    bool have_key = false;
    bool drop_value = false;  // the key was a duplicate or no text
    std::string key;
    Span key_span;
    std::unordered_map<std::string, size_t> seen;  // key to its line
  };

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, YamlNode::Kind kind) {
    refuse_anchor(mark, anchor);
    refuse_tag(mark, tag);
    Open level;
    level.node.kind = kind;
    level.node.span = at(mark);
    level.node.span.length = collection_length(level.node.span.offset);
    if (stack_.size() >= kYamlMaxDepth) {
      complaints_.add({&source_, level.node.span.offset, 1}, depth_message());
      throw StopReading{};
    }
    stack_.push_back(std::move(level));
  }

  void close() {
    YamlNode node = std::move(stack_.back().node);
    stack_.pop_back();
    place(std::move(node), true);
  }

  void place(YamlNode node, bool collection) {
    if (stack_.empty()) {
      root_ = std::move(node);
      return;
    }
    Open& level = stack_.back();
    if (level.node.is_sequence()) {
      level.node.items.push_back(std::move(node));
      return;
    }
    if (!level.have_key) {
      level.have_key = true;
      level.drop_value = false;
      level.key = node.text;
      level.key_span = node.span;
      if (collection || !node.is_scalar()) {
        if (node.kind != YamlNode::Kind::unknown) complaints_.add(node.span, "a key must be text");
        level.drop_value = true;
      } else {
        const size_t line = source_.line_of(node.span.offset);
        const auto [found, fresh] = level.seen.emplace(level.key, line);
        if (!fresh) {
          const std::string first = source_.kind() == SourceText::Kind::file
                                        ? "first given on line " + std::to_string(found->second + 1)
                                        : "it is given twice";
          complaints_.add(node.span, "duplicate key " + in_quotes(level.key), first);
          level.drop_value = true;
        }
      }
      return;
    }
    level.have_key = false;
    if (level.drop_value) return;
    if (node.is_null() && node.span.length == 0) node.span = level.key_span;
    level.node.entries.push_back({std::move(level.key), level.key_span, std::move(node)});
  }

  void refuse_anchor(const YAML::Mark& mark, YAML::anchor_t anchor) {
    if (anchor == 0) return;
    Span span = at(mark);
    span.length = plain_length(span.offset);
    complaints_.add(span, "anchors are not supported in job files", "write the value where it is needed");
  }

  void refuse_tag(const YAML::Mark& mark, const std::string& tag) {
    if (tag.empty() || tag == "?" || tag == "!") return;
    Span span = at(mark);
    span.length = plain_length(span.offset);
    complaints_.add(span, "tags are not supported in job files", "put text in quotes instead");
  }

  size_t plain_length(size_t offset) const {
    const std::string& text = source_.text();
    size_t end = offset;
    while (end < text.size() && std::string_view(" \t\r\n,[]{}").find(text[end]) == std::string_view::npos) ++end;
    return std::max<size_t>(end - offset, 1);
  }

  // yaml-cpp takes the end of the text for the closing quote, and so swallows everything behind a forgotten one.
  bool unclosed_quote(size_t offset) const {
    const std::string& text = source_.text();
    if (offset >= text.size() || (text[offset] != '"' && text[offset] != '\'')) return false;
    for (size_t i = offset + 1; i < text.size(); ++i) {
      if (text[offset] == '"' && text[i] == '\\') {
        ++i;
      } else if (text[i] == text[offset]) {
        if (text[offset] == '"' || i + 1 == text.size() || text[i + 1] != '\'') return false;
        ++i;  // '' stands for one quote
      }
    }
    return true;
  }

  // How much of its first line a scalar covers.
  size_t scalar_length(size_t offset, const std::string& value) const {
    const std::string& text = source_.text();
    if (offset >= text.size()) return 0;
    const char quote = text[offset];
    if (quote == '"' || quote == '\'') {
      for (size_t i = offset + 1; i < text.size() && text[i] != '\n'; ++i) {
        if (quote == '"' && text[i] == '\\') {
          ++i;
        } else if (text[i] == quote) {
          return i + 1 - offset;
        }
      }
      return 1;
    }
    return text.compare(offset, value.size(), value) == 0 ? value.size() : plain_length(offset);
  }

  // "[...]" and "{...}" as far as they go on one line; block collections are shown by their first character.
  size_t collection_length(size_t offset) const {
    const std::string& text = source_.text();
    if (offset >= text.size() || (text[offset] != '[' && text[offset] != '{')) return 0;
    size_t depth = 0;
    const size_t far = std::min(text.size(), offset + 200);  // a caret line is never longer than that
    for (size_t i = offset; i < far && text[i] != '\n'; ++i) {
      if (text[i] == '[' || text[i] == '{') ++depth;
      if ((text[i] == ']' || text[i] == '}') && --depth == 0) return i + 1 - offset;
    }
    return 1;
  }

  const SourceText& source_;
  size_t begin_;
  Complaints& complaints_;
  std::vector<Open> stack_;
  YamlNode root_;
};

}  // namespace

YamlNode::Entry* YamlNode::find(std::string_view key) {
  for (Entry& entry : entries) {
    if (entry.key == key) return &entry;
  }
  return nullptr;
}

const YamlNode::Entry* YamlNode::find(std::string_view key) const {
  return const_cast<YamlNode*>(this)->find(key);
}

bool parse_yaml(const SourceText& source, size_t begin, Complaints& complaints, YamlNode& root) {
  const std::string& whole = source.text();
  if (whole.size() > kYamlMaxBytes) {
    complaints.add({&source, 0, 0}, "larger than 1 MiB; this is no job file");
    return false;
  }
  const size_t bad = first_bad_byte(whole);
  if (bad < whole.size()) {
    const bool ascii = static_cast<unsigned char>(whole[bad]) < 0x80;
    complaints.add({&source, bad, 1}, ascii ? "a control character, which YAML does not allow" : "not UTF-8 text");
    return false;
  }
  if (begin == 0 && whole.starts_with("\xEF\xBB\xBF")) begin = 3;  // yaml-cpp would skip it and count from behind it
  size_t deep = 0;
  if (too_deep(std::string_view(whole).substr(begin), deep)) {
    complaints.add({&source, begin + deep, 1}, depth_message());
    return false;
  }

  TreeBuilder builder(source, begin, complaints);
  std::istringstream stream(whole.substr(begin));
  try {
    YAML::Parser parser(stream);
    if (parser.HandleNextDocument(builder)) {
      root = builder.take_root();
      TreeBuilder second(source, begin, complaints);
      if (parser.HandleNextDocument(second)) {
        const YamlNode more = second.take_root();
        if (!more.is_null()) complaints.add(more.span, "a second document", "a job file is one YAML document");
      }
    } else {
      root = YamlNode{};
    }
  } catch (const StopReading&) {
    return false;
  } catch (const YAML::Exception& error) {
    const Span where = builder.at(error.mark);
    complaints.add(where, "not valid YAML: " + error.msg, builder.likely_cause(where.offset));
    return false;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    complaints.add({&source, begin, 0}, std::string("not valid YAML: ") + error.what());
    return false;
  }
  if (root.span.source == nullptr) root.span = {&source, begin, 0};
  return true;
}

}  // namespace penstock
