#include "runtime/config/job_reader.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "runtime/augment/catalog.h"
#include "runtime/base/field_list.h"
#include "runtime/config/key_table.h"
#include "runtime/config/suggest.h"
#include "runtime/config/value_reader.h"

namespace penstock {
namespace {

struct Reading {
  Origins& origins;
  Complaints& complaints;

  void note(const std::string& path, const YamlNode& node) {
    if (node.span.source != nullptr) origins[path] = node.span.source->origin(node.span.offset);
  }
};

std::string in_section(const std::string& prefix) {
  return prefix.empty() ? "at the top level" : "in " + in_quotes(prefix.substr(0, prefix.size() - 1));
}

void unknown_key(const YamlNode::Entry& entry, const std::string& prefix, const std::vector<std::string>& known,
                 Reading& reading) {
  std::string hint;
  if (!reading.complaints.full()) {
    hint = did_you_mean(entry.key, known);
    if (hint.empty()) {
      const std::string elsewhere = name_elsewhere(entry.key);
      const bool top = elsewhere.find('.') == std::string::npos;
      if (!elsewhere.empty()) hint = top ? "it stands at the top level" : "did you mean '" + elsewhere + "'?";
    }
    if (hint.empty()) hint = "known here: " + list_of(known, "and");
  }
  reading.complaints.add(entry.key_span, "unknown key " + in_quotes(entry.key) + " " + in_section(prefix), hint);
}

template <class T>
const Key<T>* find_key(const Section<T>& section, const std::string& name) {
  for (const Key<T>& key : section.keys) {
    if (key.info.name == name) return &key;
  }
  return nullptr;
}

template <class T>
void read_key(const Key<T>& key, const YamlNode::Entry& entry, const std::string& path, T& target, Reading& reading) {
  const std::optional<ParamValue> value = read_value(entry.value, key.info, path, reading.complaints);
  if (!value) return;
  key.set(target, *value);
  reading.note(path, entry.value);
}

// The keys of one named section, `node` being its value (nullptr: the section is not there at all).
template <class T>
void read_section(const Section<T>& section, const YamlNode* node, const Span& owner, const std::string& prefix,
                  T& target, Reading& reading) {
  std::vector<std::string> names;
  for (const Key<T>& key : section.keys) names.push_back(key.info.name);
  if (node != nullptr && node->kind == YamlNode::Kind::unknown) return;
  if (node != nullptr && !node->is_null() && !node->is_mapping()) {
    const std::string path = prefix.substr(0, prefix.size() - 1);
    reading.complaints.add(
        node->span, in_quotes(path) + ": expected a mapping of " + list_of(names, "and") + ", found " + describe(*node),
        node->is_scalar() ? "write {" + names.front() + ": " + node->text.substr(0, 60) + "}" : "");
    return;
  }
  if (node != nullptr) {
    for (const YamlNode::Entry& entry : node->entries) {
      if (const Key<T>* key = find_key(section, entry.key)) {
        read_key(*key, entry, prefix + entry.key, target, reading);
      } else {
        unknown_key(entry, prefix, names, reading);
      }
    }
  }
  for (const Key<T>& key : section.keys) {
    if (!key.info.default_value && (node == nullptr || node->find(key.info.name) == nullptr)) {
      reading.complaints.add(owner, "missing required key " + in_quotes(key.info.name) + " " + in_section(prefix));
    }
  }
}

// A level of keys and sections; `more` are names that the caller reads itself.
template <class T>
void read_level(const std::vector<Section<T>>& sections, const std::vector<std::string>& more, const YamlNode& node,
                const Span& owner, const std::string& prefix, T& target, Reading& reading) {
  for (const YamlNode::Entry& entry : node.entries) {
    bool known = std::find(more.begin(), more.end(), entry.key) != more.end();
    for (const Section<T>& section : sections) {
      if (section.name.empty()) {
        if (const Key<T>* key = find_key(section, entry.key)) {
          known = true;
          read_key(*key, entry, prefix + entry.key, target, reading);
        }
      } else if (section.name == entry.key) {
        known = true;
        read_section(section, &entry.value, entry.key_span, prefix + entry.key + ".", target, reading);
      }
    }
    if (!known) unknown_key(entry, prefix, names_at_level(sections, more), reading);
  }
  for (const Section<T>& section : sections) {
    if (!section.name.empty() && node.find(section.name) == nullptr) {
      read_section<T>(section, nullptr, owner, prefix + section.name + ".", target, reading);
    }
  }
}

std::vector<std::string> transform_names() {
  std::vector<std::string> names;
  for (const TransformInfo& info : transform_catalog()) names.push_back(info.name);
  return names;
}

// What torchvision has under other names, or not as a transform of its own.
std::string transform_hint(const std::string& name) {
  static const std::set<std::string> conversions{"totensor", "toimage", "piltotensor", "topureimage",
                                                 "convertimagedtype"};
  if (conversions.count(lower_case(name)) > 0) return "did you mean {ToDtype: {dtype: float32, scale: true}}?";
  const std::string hint = did_you_mean(name, transform_names());
  return hint.empty() ? "there are " + list_of(transform_names(), "and") : hint;
}

void read_pipeline(const YamlNode& node, const std::string& path, int depth, std::vector<TransformSpec>& pipeline,
                   Reading& reading);

// One transform's parameters. `path` is "splits.train.pipeline.0"; `name_span` its name. False: complaints.
bool read_params(const TransformInfo& info, const YamlNode* params, const Span& name_span, const std::string& path,
                 int depth, TransformSpec& spec, Reading& reading) {
  const size_t before = reading.complaints.count();
  const std::string prefix = path + "." + info.name + ".";
  std::vector<std::string> names;
  for (const ParamInfo& param : info.params) names.push_back(param.name);
  if (params != nullptr && params->kind == YamlNode::Kind::unknown) return false;
  if (params != nullptr && !params->is_null() && !params->is_mapping()) {
    std::string hint;
    if (!names.empty()) {
      const std::string text = params->is_scalar() ? params->text.substr(0, 60) : "...";
      hint = "write {" + info.name + ": {" + names.front() + ": " + text + "}}";
    }
    reading.complaints.add(params->span,
                           in_quotes(info.name) + ": expected a mapping of its parameters, found " + describe(*params),
                           hint);
    return false;
  }
  for (const ParamInfo& param : info.params) {
    const YamlNode::Entry* entry = params == nullptr ? nullptr : params->find(param.name);
    if (entry != nullptr && param.kind == ParamKind::transforms) {
      std::vector<TransformSpec> inner;
      read_pipeline(entry->value, prefix + param.name, depth + 1, inner, reading);
      spec.params[param.name] = std::move(inner);
    } else if (entry != nullptr) {
      if (const auto value = read_value(entry->value, param, prefix + param.name, reading.complaints)) {
        spec.params[param.name] = *value;
        reading.note(prefix + param.name, entry->value);
      }
    } else if (param.default_value) {
      spec.params[param.name] = in_kind(*param.default_value, param.kind);
    } else {
      reading.complaints.add(name_span, in_quotes(info.name) + " needs " + in_quotes(param.name),
                             "write {" + info.name + ": {" + param.name + ": ...}}");
    }
  }
  if (params != nullptr) {
    for (const YamlNode::Entry& entry : params->entries) {
      if (std::find(names.begin(), names.end(), entry.key) != names.end()) continue;
      std::string hint = reading.complaints.full() ? "" : did_you_mean(entry.key, names);
      if (hint.empty()) hint = names.empty() ? "it has no parameters" : "it takes " + list_of(names, "and");
      reading.complaints.add(entry.key_span,
                             "unknown parameter " + in_quotes(entry.key) + " of " + in_quotes(info.name), hint);
    }
  }
  if (reading.complaints.count() != before) return false;
  if (info.check) {
    std::string culprit;
    const std::string complaint = info.check(spec.params, culprit);
    if (!complaint.empty()) {
      const YamlNode::Entry* entry = params == nullptr ? nullptr : params->find(culprit);
      reading.complaints.add(entry == nullptr ? name_span : entry->value.span, in_quotes(culprit.empty() ? info.name : info.name + "." + culprit) + ": " + complaint);
      return false;
    }
  }
  return true;
}

// ToDtype and Normalize run in the copy that delivers a batch, after everything that moves pixels.
class FinishOrder {
 public:
  void check(const TransformSpec& spec, const Span& where, bool params_known, Complaints& complaints) {
    const bool mixes = is_batch_transform(spec);
    if (!mixing_.empty() && !mixes) {
      complaints.add(where, in_quotes(spec.name) + " stands after " + mixing_,
                     "what mixes whole batches comes last");
      return;
    }
    if (mixes) {
      mixing_ = spec.name;
    } else if (spec.name == "ToDtype") {
      const auto dtype = spec.params.find("dtype");
      is_float_ = !params_known || dtype == spec.params.end() || dtype->second != ParamValue(std::string("uint8"));
      finishing_ = spec.name;
    } else if (spec.name == "Normalize") {
      if (!is_float_) {
        complaints.add(where, "Normalize needs float pixels", "put {ToDtype: {dtype: float32, scale: true}} before it");
      }
      finishing_ = spec.name;
    } else if (!finishing_.empty()) {
      complaints.add(where, in_quotes(spec.name) + " stands after " + finishing_, "ToDtype and Normalize come last");
    }
  }

  // Whatever it was meant to be, it may have been what makes pixels float.
  void unknown() { is_float_ = true; }

 private:
  std::string finishing_;
  std::string mixing_;
  bool is_float_ = false;
};

// `depth`: of how many transforms the list is inside.
void read_pipeline(const YamlNode& node, const std::string& path, int depth, std::vector<TransformSpec>& pipeline,
                   Reading& reading) {
  Complaints& complaints = reading.complaints;
  if (node.kind == YamlNode::Kind::unknown) return;
  if (depth > kMaxTransformDepth) {
    complaints.add(node.span,
                   "transforms inside transforms, more than " + std::to_string(kMaxTransformDepth) + " deep");
    return;
  }
  if (!node.is_sequence() || node.items.empty()) {
    const std::string found = node.is_sequence() ? "an empty list" : describe(node);
    complaints.add(node.span, in_quotes(path) + ": expected a list of transforms, found " + found,
                   "write [{RandomResizedCrop: {size: 224}}, ...]");
    return;
  }
  reading.note(path, node);
  FinishOrder order;
  for (size_t i = 0; i < node.items.size(); ++i) {
    const YamlNode& item = node.items[i];
    const std::string here = path + "." + std::to_string(i);
    if (item.kind == YamlNode::Kind::unknown) continue;
    const bool named = item.is_mapping() && !item.entries.empty();
    if (!item.is_scalar() && !named) {
      complaints.add(item.span, in_quotes(here) + ": expected {Name: {parameters}}, found " + describe(item));
      continue;
    }
    const std::string& name = named ? item.entries.front().key : item.text;
    const Span& name_span = named ? item.entries.front().key_span : item.span;
    const YamlNode* params = named ? &item.entries.front().value : nullptr;
    for (size_t k = 1; named && k < item.entries.size(); ++k) {
      const YamlNode::Entry& beside = item.entries[k];
      const bool transform = find_transform(beside.key) != nullptr;
      complaints.add(beside.key_span, in_quotes(beside.key) + " stands beside " + in_quotes(name),
                     transform ? "begin it with '- '" : "indent parameters further than the transform's name");
    }
    const TransformInfo* info = find_transform(name);
    if (info == nullptr) {
      complaints.add(name_span, "unknown transform " + in_quotes(name), complaints.full() ? "" : transform_hint(name));
      order.unknown();
      continue;
    }
    if (named && item.entries.size() > 1) continue;  // what is missing probably stands beside it
    TransformSpec spec{.name = info->name, .params = {}};
    const bool good = read_params(*info, params, name_span, here, depth, spec, reading);
    reading.origins[here] = name_span.source == nullptr ? "" : name_span.source->origin(name_span.offset);
    if (depth == 0) order.check(spec, name_span, good, complaints);
    pipeline.push_back(std::move(spec));
  }
}

bool from_peer(const YamlNode& node) {
  return node.span.source != nullptr && node.span.source->kind() == SourceText::Kind::peer;
}

// A folder as an absolute path, so that every process of the job means the same one.
void place_folder(const YamlNode& node, const std::string& job_path, const std::string& path, std::string& folder,
                  Complaints& complaints) {
  if (folder.empty()) {
    complaints.add(node.span, in_quotes(path) + " is empty");
  } else if (folder.find('\0') != std::string::npos) {
    complaints.add(node.span, in_quotes(path) + " contains a zero byte");
  } else if (const size_t scheme = folder.find("://"); scheme != std::string::npos && scheme < 12) {
    complaints.add(node.span, in_quotes(folder.substr(0, 60)) + " is a URL; files are read from disks and mounts",
                   "mount it, or copy it first, and write its path");
  } else if (folder == "~" || folder.starts_with("~/")) {
    complaints.add(node.span, "'~' does not stand for the home folder here", "write the whole path");
  } else if (from_peer(node)) {
    if (folder[0] != '/') complaints.add(node.span, in_quotes(path) + " is not an absolute path");
  } else {
    namespace fs = std::filesystem;
    std::error_code ignored;
    fs::path base = fs::current_path(ignored);
    if (node.span.source == nullptr || node.span.source->kind() == SourceText::Kind::file) {
      base = (base / job_path).parent_path();
    }
    fs::path absolute = (base / folder).lexically_normal();
    if (!absolute.has_filename() && absolute.has_relative_path()) absolute = absolute.parent_path();  // "data/"
    folder = absolute.string();
  }
}

const YamlNode* value_at(const YamlNode& node, const std::string& first, const std::string& second = {}) {
  const YamlNode::Entry* entry = node.find(first);
  if (entry == nullptr) return nullptr;
  if (second.empty()) return &entry->value;
  const YamlNode::Entry* inner = entry->value.find(second);
  return inner == nullptr ? nullptr : &inner->value;
}

// Orders of another making than shuffle's, and what belongs to each.
void check_sampler(const YamlNode& node, const std::string& path, const std::string& job_path, SplitSpec& split,
                   Complaints& complaints) {
  SamplerSpec& sampler = split.sampler;
  const auto given = [&](const char* name) -> const YamlNode* {
    const YamlNode* value = value_at(node, "sampler", name);
    return value == nullptr || !value->is_scalar() ? nullptr : value;
  };
  const YamlNode* indices = given("indices");
  const YamlNode* weights = given("weights");
  const YamlNode* program = sampler.program ? given("program") : nullptr;
  const YamlNode* shuffle = sampler.shuffle ? given("shuffle") : nullptr;
  if (indices != nullptr) place_folder(*indices, job_path, path + ".sampler.indices", sampler.indices, complaints);
  if (weights != nullptr) place_folder(*weights, job_path, path + ".sampler.weights", sampler.weights, complaints);

  const YamlNode* first = nullptr;
  for (const YamlNode* order : {indices, weights, program}) {
    if (order != nullptr && first != nullptr) {
      complaints.add(order->span, "an order comes from one of 'indices', 'weights' and 'program'",
                     "leave out the others");
      return;
    }
    first = first == nullptr ? order : first;
  }
  if (shuffle != nullptr && (weights != nullptr || program != nullptr)) {
    const char* why = weights != nullptr ? "weights', which draws at random" : "program', which gives the order";
    complaints.add(shuffle->span, std::string("'shuffle' has no effect with '") + why,
                   "leave it out, or set it to false");
  }
  if (weights != nullptr && split.mode == Mode::eval) {
    complaints.add(weights->span, "'weights' draws samples at random, and an eval split counts every sample once",
                   "use mode: train, or sampler.indices");
  }
  const YamlNode* replacement = given("replacement");
  if (replacement != nullptr && weights != nullptr && !sampler.replacement) {
    complaints.add(replacement->span,
                   "'replacement: false' is not supported: torch's numbers for it depend on how torch was built",
                   "use replacement: true, or write torch's draw to a file and name it as sampler.indices");
  }
  for (const char* name : {"num_samples", "replacement"}) {
    const YamlNode* value = given(name);
    // As in torch.utils.data.RandomSampler(replacement=False): what is not drawn by weights has none.
    const bool without = value == replacement && !sampler.replacement;
    if (value != nullptr && weights == nullptr && !without) {
      complaints.add(value->span, in_quotes(name) + " belongs to 'weights', which is not given");
    }
  }
  if (weights == nullptr) sampler.replacement = SamplerSpec{}.replacement;  // the same split, said or not
  for (const char* name : {"file_hash", "file_count"}) {
    const YamlNode* value = given(name);
    if (value != nullptr && indices == nullptr && weights == nullptr) {
      complaints.add(value->span, in_quotes(name) + " belongs to 'indices' or 'weights', and neither is given");
    }
  }
  if (program != nullptr && split.tail != Tail::torch) {
    const YamlNode* tail = value_at(node, "tail");
    complaints.add(tail == nullptr ? program->span : tail->span,
                   "a program's order is each replica's own share, which 'tail: pad' and 'drop' cannot change",
                   "use 'tail: torch' with drop_last");
  }
  if (program != nullptr && sampler.drop_last) {
    complaints.add(program->span, "'sampler.drop_last' has no effect with 'program', which gives the order",
                   "leave it out");
  }
}

// Pictures that belong together: `images`, and at least one of what belongs to it.
void check_paired(const YamlNode& node, const std::string& path, const std::string& job_path, SplitSpec& split,
                  Complaints& complaints) {
  const auto given = [&](const char* name) -> const YamlNode* {
    const YamlNode* value = value_at(node, "dataset", name);
    return value == nullptr || !value->is_scalar() ? nullptr : value;
  };
  const YamlNode* images = given("images");
  const YamlNode* targets = given("targets");
  const YamlNode* masks = given("masks");
  if (targets != nullptr)
    place_folder(*targets, job_path, path + ".dataset.targets", split.dataset.targets, complaints);
  if (masks != nullptr) place_folder(*masks, job_path, path + ".dataset.masks", split.dataset.masks, complaints);
  if (images != nullptr && value_at(node, "dataset", "targets") == nullptr &&
      value_at(node, "dataset", "masks") == nullptr) {
    complaints.add(images->span, "'images' needs 'targets' or 'masks' beside it",
                   "pictures in class folders are dataset: {folder: ...}");
  }
  for (const YamlNode* partner : {targets, masks}) {
    if (partner != nullptr && value_at(node, "dataset", "images") == nullptr) {
      complaints.add(partner->span, in_quotes(partner == targets ? "targets" : "masks") +
                                        " belong to 'images', which is not given");
    }
  }
}

std::vector<std::string> kinds_of_datasets() {
  std::vector<std::string> out;
  for (const DatasetKind& kind : dataset_kinds) out.emplace_back(kind.key);
  return out;
}

// What belongs to some kinds of data sets only.
void check_container(const YamlNode& node, const std::string& path, const std::string& job_path, SplitSpec& split,
                     Complaints& complaints) {
  DatasetSpec& dataset = split.dataset;
  struct Belonging {
    const char* key;
    std::vector<std::string> kinds;
  };
  const Belonging all[] = {
      {"train", {"cifar10", "cifar100", "mnist"}},
      {"image", {"tar", "csv", "mds", "tfrecord", "parquet"}},
      {"label", {"tar", "csv", "mds", "tfrecord", "parquet"}},
      {"fields", {"tar", "csv", "mds", "tfrecord", "parquet"}},
      {"index", {"folder", "tar", "cifar10", "cifar100", "mnist", "list", "csv", "mds", "tfrecord", "parquet"}}};
  for (const Belonging& one : all) {
    const YamlNode* value = value_at(node, "dataset", one.key);
    if (value == nullptr || !value->is_scalar()) continue;
    bool there = false;
    for (const std::string& kind : one.kinds) there = there || value_at(node, "dataset", kind.c_str()) != nullptr;
    if (!there) {
      complaints.add(value->span,
                     in_quotes(one.key) + " belongs to " + list_of(one.kinds, "and") + ", and none of them is given");
    }
  }
  const YamlNode* index = value_at(node, "dataset", "index");
  if (index != nullptr && index->is_scalar()) {
    place_folder(*index, job_path, path + ".dataset.index", dataset.index, complaints);
  }
  const YamlNode* parquet = value_at(node, "dataset", "parquet");
  if (parquet != nullptr && parquet->is_scalar() && index == nullptr) {
    complaints.add(parquet->span, "'parquet' needs 'index': loaders read what `penstock index` copied, not Parquet files",
                   "add index: FILE, and run `penstock index` once");
  }
  if (const YamlNode* fields = value_at(node, "dataset", "fields"); fields != nullptr && fields->is_scalar()) {
    std::set<std::string> seen = {"image", "label"};
    for (const FieldRequest& asked : field_requests(dataset.fields)) {
      if (asked.no_kind) {
        complaints.add(fields->span, in_quotes(*asked.no_kind) + " is no kind of field",
                       "write NAME, NAME:text or NAME:bytes");
        break;
      }
      if (asked.name.empty()) {
        complaints.add(fields->span, in_quotes(path + ".dataset.fields") + " has an empty name in it",
                       "write {fields: \"depth, mask\"}");
        break;
      }
      if (!seen.insert(asked.name).second) {
        complaints.add(fields->span, "a batch cannot have two fields " + in_quotes(asked.name), "leave one out");
        break;
      }
    }
  }
}

// Where the samples come from: exactly one of dataset_kinds, and what belongs to it.
void check_dataset(const YamlNode& node, const Span& split_key, const std::string& path, const std::string& job_path,
                   SplitSpec& split, Reading& reading) {
  Complaints& complaints = reading.complaints;
  const YamlNode::Entry* section = node.find("dataset");
  if (section != nullptr && !section->value.is_mapping() && !section->value.is_null()) return;  // complained of already
  const auto given = [&](const char* name) -> const YamlNode* {
    const YamlNode* value = value_at(node, "dataset", name);
    return value == nullptr || !value->is_scalar() ? nullptr : value;
  };
  std::vector<std::string> kinds;
  const YamlNode* first = nullptr;
  bool none = true;  // one of a wrong type has been complained of
  bool second = false;
  for (const DatasetKind& kind : dataset_kinds) {
    kinds.emplace_back(kind.key);
    none = none && value_at(node, "dataset", kind.key) == nullptr;
    const YamlNode* value = given(kind.key);
    if (value == nullptr) continue;
    if (kind.path) place_folder(*value, job_path, path + ".dataset." + kind.key, split.dataset.*kind.value, complaints);
    if (first != nullptr && !second) {
      complaints.add(value->span, "a dataset has one of " + list_of(kinds_of_datasets(), "and"),
                     "leave out the others");
      second = true;
    }
    first = first == nullptr ? value : first;
  }
  if (none) {
    complaints.add(section == nullptr ? split_key : section->key_span,
                   "missing required key 'folder' in " + in_quotes(path + ".dataset"),
                   "or one of " + list_of(std::vector<std::string>(kinds.begin() + 1, kinds.end()), "and"));
  }
  check_paired(node, path, job_path, split, complaints);
  const YamlNode* python = given("python");
  if (python != nullptr && !is_python_name(python->text)) {
    complaints.add(python->span, in_quotes(path + ".dataset.python") + ": expected 'package.module:name', found " +
                                     describe(*python),
                   "as in {python: \"my_data:PhotoDataset\"}");
  }
  if (const YamlNode* args = value_at(node, "dataset", "args"); args != nullptr && python == nullptr) {
    complaints.add(args->span, "'args' are those of 'python', which is not given");
  }
  check_container(node, path, job_path, split, complaints);

  bool uses_python = split.dataset.is_python();
  for (const auto* list : {&split.pipeline, &split.card_pipeline}) {
    for (const TransformSpec& spec : *list) uses_python = uses_python || spec.name == "Python";
  }
  std::string folders;
  const YamlNode* place = given("path");
  if (place != nullptr) {
    for (size_t at = 0; at <= place->text.size();) {
      const size_t end = std::min(place->text.find(':', at), place->text.size());
      std::string one = place->text.substr(at, end - at);
      place_folder(*place, job_path, path + ".dataset.path", one, complaints);
      folders += (folders.empty() ? "" : ":") + one;
      at = end + 1;
    }
  } else if (uses_python && !from_peer(node)) {
    std::error_code ignored;
    folders = (std::filesystem::current_path(ignored) / job_path).parent_path().lexically_normal().string();
  }
  split.dataset.path = folders;
}

void check_tail(const YamlNode& node, const SplitSpec& split, Complaints& complaints) {
  const YamlNode* tail = value_at(node, "tail");
  const YamlNode* flags[2] = {value_at(node, "drop_last"), value_at(node, "sampler", "drop_last")};
  const bool set[2] = {split.drop_last, split.sampler.drop_last};
  if (split.mode == Mode::eval && split.tail == Tail::drop && tail != nullptr) {
    complaints.add(tail->span, "'tail: drop' would leave samples out of an eval split", "use 'pad' or 'torch'");
  }
  for (int i = 0; i < 2; ++i) {
    if (!set[i] || flags[i] == nullptr) continue;
    if (split.mode == Mode::eval) {
      complaints.add(flags[i]->span, "'drop_last' would leave samples out of an eval split", "leave it out");
    } else if (split.tail != Tail::torch) {
      complaints.add(
          flags[i]->span,
          "'drop_last' has no effect with 'tail: " + std::string(split.tail == Tail::pad ? "pad" : "drop") + "'",
          "use 'tail: torch', or leave it out");
    }
  }
}

// Where what is the same for a whole batch begins: ToDtype, Normalize, MixUp and CutMix.
size_t begin_of_finish(const std::vector<TransformSpec>& pipeline) {
  const auto finishes = [](const TransformSpec& spec) {
    return spec.name == "ToDtype" || spec.name == "Normalize" || is_batch_transform(spec);
  };
  return static_cast<size_t>(std::find_if(pipeline.begin(), pipeline.end(), finishes) - pipeline.begin());
}

// The second list of transforms, what says whose a sample is, and that both finish alike. (That both end in the same size
// is seen where pipelines are made.) `good`: `pipeline` is as it was written.
void check_variants(const YamlNode& node, const std::string& path, bool good, SplitSpec& split, Reading& reading) {
  Complaints& complaints = reading.complaints;
  const YamlNode* fraction = value_at(node, "cpu_fraction");
  const YamlNode* card = value_at(node, "card_pipeline");
  if (card == nullptr) {
    if (!split.cpu_fraction) return;
    complaints.add(fraction->span,
                   "'cpu_fraction' shares the samples between 'pipeline' and 'card_pipeline', which is not given",
                   "with one list it says who makes a sample and changes nothing in it: write loader.cpu_fraction");
    return;
  }
  const size_t before = complaints.count();
  read_pipeline(*card, path + ".card_pipeline", 0, split.card_pipeline, reading);
  if (fraction == nullptr || fraction->is_null()) {
    complaints.add(card->span, "'card_pipeline' needs 'cpu_fraction' beside it",
                   "write cpu_fraction: 0.3 for three samples of ten to be made by 'pipeline'");
  }
  if (!good || complaints.count() != before) return;
  const size_t first = begin_of_finish(split.pipeline);
  const size_t begin = begin_of_finish(split.card_pipeline);
  for (size_t i = 0; first + i < split.pipeline.size() || begin + i < split.card_pipeline.size(); ++i) {
    const bool missing = begin + i >= split.card_pipeline.size();
    const bool more = first + i >= split.pipeline.size();
    if (!missing && !more && split.pipeline[first + i] == split.card_pipeline[begin + i]) continue;
    complaints.add(missing ? card->span : card->items[begin + i].span,
                   missing ? "'card_pipeline' ends without the " + in_quotes(split.pipeline[first + i].name) +
                                 " of 'pipeline'"
                           : "'card_pipeline' ends otherwise than 'pipeline', from " +
                                 in_quotes(split.card_pipeline[begin + i].name) + " on",
                   "a batch has samples of both: let them end with the same ToDtype, Normalize, MixUp and CutMix");
    return;
  }
}

}  // namespace

bool valid_split_name(const std::string& name) {
  if (name.empty() || name.size() > 64) return false;
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  return name[0] != '-' && std::all_of(name.begin(), name.end(), fits);
}

void read_split(const YamlNode& node, const Span& key, const std::string& name, const std::string& job_path,
                SplitSpec& split, Origins& origins, Complaints& complaints) {
  Reading reading{origins, complaints};
  const std::string path = "splits." + name;
  if (node.kind == YamlNode::Kind::unknown) return;
  if (!node.is_null() && !node.is_mapping()) {
    complaints.add(node.span, in_quotes(path) + ": expected a mapping, found " + describe(node));
    return;
  }
  const size_t before = complaints.count();
  read_level(split_sections(), {"pipeline", "card_pipeline"}, node, key, path + ".", split, reading);
  if (const YamlNode* pipeline = value_at(node, "pipeline")) {
    read_pipeline(*pipeline, path + ".pipeline", 0, split.pipeline, reading);
  } else {
    complaints.add(key, "missing required key 'pipeline' in " + in_quotes(path));
  }
  check_variants(node, path, complaints.count() == before, split, reading);
  check_dataset(node, key, path, job_path, split, reading);
  check_sampler(node, path, job_path, split, complaints);
  check_tail(node, split, complaints);
}

void read_content(const YamlNode& root, Job& job, Complaints& complaints) {
  Origins ignored;
  Reading reading{ignored, complaints};
  std::vector<Section<Job>> sections;
  for (Section<Job> section : job_sections()) {
    std::erase_if(section.keys, [](const Key<Job>& key) { return !key.content; });
    if (!section.keys.empty()) sections.push_back(std::move(section));
  }
  read_level(sections, {"split"}, root, root.span, "", job, reading);
}

void read_job(const YamlNode& root, Job& job, Origins& origins, Complaints& complaints) {
  Reading reading{origins, complaints};
  if (root.kind == YamlNode::Kind::unknown) return;
  if (!root.is_mapping() && !root.is_null()) {
    complaints.add(root.span, "a job file is a mapping of keys, found " + describe(root));
    return;
  }
  read_level(job_sections(), {"splits"}, root, root.span, "", job, reading);
  if (job.balancer.heartbeat_s >= job.balancer.lost_after_s) {
    const YamlNode* culprit = value_at(root, "balancer", "lost_after_s");
    if (culprit == nullptr) culprit = value_at(root, "balancer", "heartbeat_s");
    complaints.add(culprit == nullptr ? root.span : culprit->span,
                   "'balancer.lost_after_s' must be longer than 'balancer.heartbeat_s'", "a few heartbeats at least");
  }
  const YamlNode::Entry* splits = root.find("splits");
  if (splits == nullptr) {
    complaints.add(root.span, "missing required key 'splits' at the top level", "write splits: {train: {...}}");
    return;
  }
  if (splits->value.kind == YamlNode::Kind::unknown) return;
  if (!splits->value.is_mapping() || splits->value.entries.empty()) {
    const std::string found = splits->value.is_mapping() ? "an empty one" : describe(splits->value);
    complaints.add(splits->value.span, "'splits': expected a mapping of at least one split, found " + found);
    return;
  }
  for (const YamlNode::Entry& entry : splits->value.entries) {
    if (!valid_split_name(entry.key)) {
      complaints.add(entry.key_span, "a split's name is made of letters, digits, '_' and '-', at most 64");
      continue;
    }
    // An override that means to change a split must not begin a new one by a typing mistake.
    const bool from_file = entry.key_span.source == nullptr || entry.key_span.source->kind() == SourceText::Kind::file;
    if (!from_file && entry.value.find("pipeline") == nullptr) {
      std::vector<std::string> others;
      for (const YamlNode::Entry& other : splits->value.entries) {
        if (other.key != entry.key) others.push_back(other.key);
      }
      if (!others.empty()) {
        complaints.add(entry.key_span, "there is no split " + in_quotes(entry.key), did_you_mean(entry.key, others));
        continue;
      }
    }
    read_split(entry.value, entry.key_span, entry.key, job.path, job.splits[entry.key], origins, complaints);
  }
}

}  // namespace penstock
