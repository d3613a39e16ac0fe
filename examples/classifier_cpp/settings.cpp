#include "settings.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "runtime/base/error.h"

namespace {

namespace files = std::filesystem;

[[noreturn]] void wrong(const std::string& what, const std::string& remedy = {}) {
  throw penstock::Error(penstock::ErrorKind::config, what, remedy);
}

void place_paths(YAML::Node settings, const files::path& folder) {
  for (const auto& [section, key] : {std::pair("data", "job"), std::pair("data", "folder"), std::pair("data", "lists"),
                                     std::pair("network", "weights"), std::pair("network", "checkpoint")}) {
    YAML::Node inner = settings[section];
    if (!inner.IsMap() || !inner[key] || !inner[key].IsScalar() || inner[key].Scalar().empty()) continue;
    std::string path = inner[key].Scalar();
    const char* const home = std::getenv("HOME");
    if (home && path.starts_with("~/")) path = home + path.substr(1);
    inner[key] = (folder / path).lexically_normal().string();
  }
}

// Mappings are merged, everything else is replaced.
YAML::Node merged(const YAML::Node& below, const YAML::Node& above) {
  YAML::Node both = YAML::Clone(below);
  for (const auto& entry : above) {
    const std::string key = entry.first.Scalar();
    const bool maps = entry.second.IsMap() && both[key] && both[key].IsMap();
    both[key] = maps ? merged(both[key], entry.second) : YAML::Clone(entry.second);
  }
  return both;
}

YAML::Node load(const files::path& given, std::vector<files::path> including) {
  const files::path path = files::absolute(given).lexically_normal();
  if (std::find(including.begin(), including.end(), path) != including.end()) {
    wrong("'" + path.string() + "' includes itself");
  }
  including.push_back(path);
  YAML::Node own;
  try {
    own = YAML::LoadFile(path.string());
  } catch (const YAML::Exception& problem) {
    wrong("cannot read the settings '" + path.string() + "': " + problem.what());
  }
  if (!own.IsMap()) wrong("'" + path.string() + "': expected keys and values");
  YAML::Node all(YAML::NodeType::Map);
  if (const YAML::Node include = own["include"]) {
    const YAML::Node names = include.IsScalar() ? YAML::Load("[" + include.Scalar() + "]") : include;
    for (const auto& name : names) all = merged(all, load(path.parent_path() / name.Scalar(), including));
  }
  own.remove("include");
  place_paths(own, path.parent_path());
  return merged(all, own);
}

// key.sub=value, a number being a place in a list.
void change(YAML::Node settings, const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos) wrong("--set " + text + ": write KEY=VALUE");
  const std::string path = text.substr(0, equals);
  YAML::Node at = settings;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string key = path.substr(begin, end - begin);
    begin = end + 1;
    if (at.IsSequence()) {
      char* rest = nullptr;
      const unsigned long place = std::strtoul(key.c_str(), &rest, 10);
      if (key.empty() || *rest || place >= at.size()) wrong("--set " + text + ": there is no such place");
      at.reset(at[place]);
    } else if (at.IsScalar()) {
      wrong("--set " + text + ": there is no such place");
    } else {
      at.reset(at[key]);
    }
  }
  try {
    at = YAML::Load(text.substr(equals + 1));
  } catch (const YAML::Exception& problem) {
    wrong("--set " + text + ": " + problem.what());
  }
}

// A mapping whose keys are all known; a missing one is empty.
class Section {
 public:
  Section(const YAML::Node& node, std::string where, const std::vector<std::string>& known)
      : node_(node), where_(std::move(where)) {
    if (!node_ || node_.IsNull()) return;
    if (!node_.IsMap()) wrong((where_.empty() ? "the settings" : where_) + ": expected keys and values");
    for (const auto& entry : node_) {
      const std::string key = entry.first.Scalar();
      if (std::find(known.begin(), known.end(), key) != known.end()) continue;
      std::string all;
      for (const std::string& one : known) all += (all.empty() ? "" : ", ") + one;
      wrong("'" + where_ + key + "' is not known; there are " + all);
    }
  }

  YAML::Node operator[](const std::string& key) const { return node_ && node_.IsMap() ? node_[key] : YAML::Node(); }
  bool has(const std::string& key) const { return node_ && node_.IsMap() && node_[key] && !node_[key].IsNull(); }

  template <class T>
  T get(const std::string& key, const std::optional<T>& otherwise = {}) const {
    if (!has(key)) {
      if (!otherwise) wrong("'" + where_ + key + "' is missing");
      return *otherwise;
    }
    try {
      return node_[key].as<T>();
    } catch (const YAML::Exception&) {
      wrong("'" + where_ + key + "' is " + YAML::Dump(node_[key]) + ", which is of another kind than it should be");
    }
  }

 private:
  YAML::Node node_;
  std::string where_;
};

Stage stage_of(const YAML::Node& node, const std::string& where) {
  const Section section(node, where, {"epochs", "freeze", "lr", "momentum", "name", "optimizer", "weight_decay"});
  Stage stage;
  stage.name = section.get<std::string>("name");
  stage.epochs = section.get<int64_t>("epochs");
  stage.freeze = section.get<std::vector<std::string>>("freeze", std::vector<std::string>{});
  stage.optimizer = section.get<std::string>("optimizer", "sgd");
  stage.momentum = section.get<double>("momentum", 0.9);
  stage.weight_decay = section.get<double>("weight_decay", 0.0005);
  if (section.has("lr") && section["lr"].IsSequence()) {
    stage.rates = section.get<std::vector<double>>("lr");
    if (stage.rates.empty()) wrong("'" + where + "lr' is [], and should be a number or numbers");
  } else {
    stage.falling_rate = section.get<double>("lr", 0.01);
  }
  if (stage.optimizer != "sgd" && stage.optimizer != "adamw") {
    wrong("'" + where + "optimizer': '" + stage.optimizer + "' is neither sgd nor adamw");
  }
  return stage;
}

Settings settings_of(const std::string& path, const std::vector<std::string>& changes) {
  YAML::Node all = load(path, {});
  for (const std::string& text : changes) change(all, text);
  place_paths(all, files::current_path());  // those of the changes, as in a shell
  const Section top(all, "", {"data", "evaluate", "keep", "loss", "network", "output", "seed", "stages"});
  const Section network(top["network"], "network.", {"checkpoint", "name", "weights"});
  const Section data(top["data"], "data.", {"batch_size", "folder", "image_size", "job", "lists", "overrides"});
  const Section loss(top["loss"], "loss.", {"label_smoothing", "name"});
  const Section evaluate(top["evaluate"], "evaluate.", {"top_k"});

  Settings settings;
  settings.output = top.get<std::string>("output");
  settings.seed = top.get<int64_t>("seed", 0);
  settings.network = network.get<std::string>("name", "resnet18");
  settings.weights = network.get<std::string>("weights", "");
  settings.checkpoint = network.get<std::string>("checkpoint", "");
  settings.job = data.get<std::string>("job");
  settings.folder = data.get<std::string>("folder", "");
  settings.lists = data.get<std::string>("lists", "");
  settings.batch_size = data.get<int64_t>("batch_size", 16);
  settings.image_size = data.get<int64_t>("image_size", 224);
  settings.overrides = data.get<std::vector<std::string>>("overrides", std::vector<std::string>{});
  settings.label_smoothing = loss.get<double>("label_smoothing", 0.0);
  settings.top_k = evaluate.get<std::vector<int64_t>>("top_k", std::vector<int64_t>{1, 5});
  if (const std::string name = loss.get<std::string>("name", "cross_entropy"); name != "cross_entropy") {
    wrong("'loss.name': '" + name + "' is not cross_entropy");
  }
  if (!top.has("stages") || !top["stages"].IsSequence() || top["stages"].size() == 0) {
    wrong("'stages' is empty or no list: nothing is to be trained");
  }
  for (const auto& node : top["stages"]) {
    settings.stages.push_back(stage_of(node, "stages." + std::to_string(settings.stages.size()) + "."));
  }
  return settings;
}

}  // namespace

double Stage::rate(int64_t epoch) const {
  if (!rates.empty()) return rates[std::min(static_cast<size_t>(epoch), rates.size() - 1)];
  const double share = static_cast<double>(epoch) / static_cast<double>(epochs);
  return falling_rate * (0.01 + 0.99 * (1 + std::cos(M_PI * share)) / 2);
}

Settings read_settings(const std::string& path, const std::vector<std::string>& changes) {
  try {
    return settings_of(path, changes);
  } catch (const YAML::Exception& problem) {  // a list where a name should be, say
    wrong("the settings '" + path + "': " + problem.what());
  }
}
