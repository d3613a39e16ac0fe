// `penstock config show`: the job as it is understood, as YAML that reads back to the same job.
#include <nlohmann/json.hpp>

#include "runtime/base/json_text.h"
#include "runtime/job/job.h"
#include "runtime/job/job_reader.h"
#include "runtime/job/json_value.h"
#include "runtime/job/key_table.h"
#include "runtime/job/value_reader.h"

namespace penstock {
namespace {

std::string yaml_text(const std::string& text) {
  YamlNode plain;
  plain.kind = YamlNode::Kind::scalar;
  plain.text = text;
  const bool safe = !text.empty() && text.find_first_not_of(
                                         "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                         "0123456789_./-") == std::string::npos;
  const bool word = safe && text[0] != '-' && text[0] != '.' && !as_number(plain) && !as_boolean(plain) &&
                    text != "null" && text != "Null" && text != "NULL";
  // JSON's quoted text is YAML's, too.
  return word ? text : json_text(nlohmann::json(text));
}

// A mapping or list in YAML's flow form.
std::string yaml_flow(const nlohmann::json& value) {
  if (!value.is_object() && !value.is_array()) return json_text(value);
  std::string out;
  for (const auto& item : value.items()) {
    out += out.empty() ? "" : ", ";
    if (value.is_object()) out += json_text(nlohmann::json(item.key())) + ": ";
    out += yaml_flow(item.value());
  }
  return value.is_object() ? "{" + out + "}" : "[" + out + "]";
}

std::string yaml_value(const ParamValue& value) {
  struct Writer {
    std::string operator()(std::monostate) const { return "null"; }
    std::string operator()(int64_t number) const { return std::to_string(number); }
    std::string operator()(double number) const { return number_text(number); }
    std::string operator()(bool truth) const { return truth ? "true" : "false"; }
    std::string operator()(const std::string& text) const { return yaml_text(text); }
    std::string operator()(const std::vector<double>& list) const {
      if (list.size() == 1) return number_text(list.front());
      std::string out = "[";
      for (const double number : list) out += (out.size() > 1 ? ", " : "") + number_text(number);
      return out + "]";
    }
    std::string operator()(const std::vector<std::string>& list) const {
      return yaml_flow(json_value(list, ParamKind::texts));
    }
    std::string operator()(const std::vector<TransformSpec>& list) const {
      return yaml_flow(json_value(list, ParamKind::transforms));
    }
  };
  return std::visit(Writer{}, value);
}

std::string yaml_value(const ParamValue& value, ParamKind kind) {
  return kind == ParamKind::mapping ? yaml_flow(parse_json(std::get<std::string>(value))) : yaml_value(value);
}

class JobPrinter {
 public:
  JobPrinter(const JobWithOrigins& read, bool with_origin) : read_(read), with_origin_(with_origin) {}

  std::string print() {
    level(job_sections(), read_.job, "", 0);
    line(0, "splits:", "");
    for (const auto& [name, split] : read_.job.splits) {
      const std::string path = "splits." + name + ".";
      line(1, yaml_text(name) + ":", "");
      level(split_sections(), split, path, 2);
      pipeline("pipeline", split.pipeline, path);
      if (!split.gpu_pipeline.empty()) pipeline("gpu_pipeline", split.gpu_pipeline, path);
    }
    return out_;
  }

 private:
  // `path` empty: a line without a value of its own.
  void line(int indent, const std::string& text, const std::string& path) {
    std::string full(static_cast<size_t>(indent) * 2, ' ');
    full += text;
    if (with_origin_ && !path.empty()) {
      const auto origin = read_.origins.find(path);
      full.append(full.size() < 40 ? 40 - full.size() : 2, ' ');
      full += "# " + (origin == read_.origins.end() ? "default" : origin->second);
    }
    out_ += full + "\n";
  }

  template <class T>
  void level(const std::vector<Section<T>>& sections, const T& values, const std::string& prefix, int indent) {
    for (const Section<T>& section : sections) {
      const bool named = !section.name.empty();
      if (named) line(indent, section.name + ":", "");
      for (const Key<T>& key : section.keys) {
        if (key.left_out(values)) continue;
        const std::string path = prefix + (named ? section.name + "." : "") + key.info.name;
        line(indent + (named ? 1 : 0), key.info.name + ": " + yaml_value(key.get(values), key.info.kind), path);
      }
    }
  }

  void pipeline(const std::string& key, const std::vector<TransformSpec>& transforms, const std::string& prefix) {
    const std::string path = prefix + key;
    line(2, key + ":", path);
    for (size_t i = 0; i < transforms.size(); ++i) {
      const TransformSpec& spec = transforms[i];
      const std::string here = path + "." + std::to_string(i);
      line(3, "- " + spec.name + ":" + (spec.params.empty() ? " {}" : ""), here);
      for (const auto& [name, value] : spec.params) {
        line(5, name + ": " + yaml_value(value), here + "." + spec.name + "." + name);
      }
    }
  }

  const JobWithOrigins& read_;
  bool with_origin_;
  std::string out_;
};

}  // namespace

std::string show_job_text(const std::string& text, const std::string& path, const std::vector<std::string>& overrides,
                          const std::map<std::string, std::string>& environment, bool with_origin) {
  const JobWithOrigins read = parse_with_origins(text, path, overrides, environment);
  return JobPrinter(read, with_origin).print();
}

std::string show_job(const std::string& path, const std::vector<std::string>& overrides, bool with_origin) {
  return show_job_text(read_job_file(path), path, overrides, job_environment(), with_origin);
}

}  // namespace penstock
