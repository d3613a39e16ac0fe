#include "runtime/job/split_checks.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "runtime/base/field_list.h"
#include "runtime/job/suggest.h"
#include "runtime/job/value_reader.h"

namespace penstock {
namespace {

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

// nullptr: not given, or not as one value, which has been complained of.
const YamlNode* scalar_at(const YamlNode& node, const char* section, const char* name) {
  const YamlNode* value = value_at(node, section, name);
  return value == nullptr || !value->is_scalar() ? nullptr : value;
}

// Pictures that belong together: `images`, and at least one of what belongs to it.
void check_paired(const YamlNode& node, const std::string& path, const std::string& job_path, SplitSpec& split,
                  Complaints& complaints) {
  const YamlNode* images = scalar_at(node, "dataset", "images");
  const YamlNode* targets = scalar_at(node, "dataset", "targets");
  const YamlNode* masks = scalar_at(node, "dataset", "masks");
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
      complaints.add(partner->span,
                     in_quotes(partner == targets ? "targets" : "masks") + " belong to 'images', which is not given");
    }
  }
}

std::vector<std::string> kinds_of_datasets() {
  std::vector<std::string> out;
  for (const DatasetKind& kind : kDatasetKinds) out.emplace_back(kind.key);
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
      {"train", {"cifar10", "cifar100", "mnist", "val_share"}},
      {"val_share", {"folder"}},
      {"val_seed", {"val_share"}},
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
  const YamlNode* share = value_at(node, "dataset", "val_share");
  if (share != nullptr && dataset.val_share == 0 && !dataset.train) {
    complaints.add(share->span, "'val_share' is 0, so there is no part that train: false could be",
                   "give a share, such as 0.2");
  }
  const YamlNode* local = value_at(node, "dataset", "local");
  if (local != nullptr && dataset.local && index == nullptr && value_at(node, "dataset", "pack") == nullptr) {
    complaints.add(local->span, "'local' needs 'index', or a 'pack': no node can list files that others have",
                   "add index: FILE, run `penstock index` once where all files are, and copy it to every node");
  }
  const YamlNode* parquet = value_at(node, "dataset", "parquet");
  if (parquet != nullptr && parquet->is_scalar() && index == nullptr) {
    complaints.add(parquet->span,
                   "'parquet' needs 'index': loaders read what `penstock index` copied, not Parquet files",
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

// An override is merged into what the file has, so the file's kind of data set stays beside the override's.
std::string one_kind_remedy(const YamlNode& a, const char* kind_of_a, const YamlNode& b, const char* kind_of_b,
                            const std::string& dataset) {
  const auto of_file = [](const YamlNode& node) {
    return node.span.source == nullptr || node.span.source->kind() == SourceText::Kind::file;
  };
  if (of_file(a) == of_file(b)) return "leave out the others";
  return "to replace the file's data set, empty it first: " + dataset + "=null " + dataset + "." +
         (of_file(a) ? kind_of_b : kind_of_a) + "=…";
}

}  // namespace

void check_dataset(const YamlNode& node, const Span& split_key, const std::string& path, const std::string& job_path,
                   SplitSpec& split, Reading& reading) {
  Complaints& complaints = reading.complaints;
  const YamlNode::Entry* section = node.find("dataset");
  if (section != nullptr && !section->value.is_mapping() && !section->value.is_null()) return;  // complained of already
  std::vector<std::string> kinds;
  const YamlNode* first = nullptr;
  const char* first_kind = "";
  bool none = true;  // one of a wrong type has been complained of
  bool second = false;
  for (const DatasetKind& kind : kDatasetKinds) {
    kinds.emplace_back(kind.key);
    none = none && value_at(node, "dataset", kind.key) == nullptr;
    const YamlNode* value = scalar_at(node, "dataset", kind.key);
    if (value == nullptr) continue;
    if (kind.place != DatasetPlace::none)
      place_folder(*value, job_path, path + ".dataset." + kind.key, split.dataset.*kind.value, complaints);
    if (first != nullptr && !second) {
      complaints.add(value->span, "a dataset has one of " + list_of(kinds_of_datasets(), "and"),
                     one_kind_remedy(*first, first_kind, *value, kind.key, path + ".dataset"));
      second = true;
    }
    if (first == nullptr) first_kind = kind.key;
    first = first == nullptr ? value : first;
  }
  if (none) {
    complaints.add(section == nullptr ? split_key : section->key_span,
                   "missing required key 'folder' in " + in_quotes(path + ".dataset"),
                   "or one of " + list_of(std::vector<std::string>(kinds.begin() + 1, kinds.end()), "and"));
  }
  check_paired(node, path, job_path, split, complaints);
  const YamlNode* python = scalar_at(node, "dataset", "python");
  if (python != nullptr && !is_python_name(python->text)) {
    complaints.add(python->span,
                   in_quotes(path + ".dataset.python") + ": expected 'package.module:name', found " + describe(*python),
                   "as in {python: \"my_data:PhotoDataset\"}");
  }
  if (const YamlNode* args = value_at(node, "dataset", "args"); args != nullptr && python == nullptr) {
    complaints.add(args->span, "'args' are those of 'python', which is not given");
  }
  check_container(node, path, job_path, split, complaints);

  bool uses_python = split.dataset.is_python();
  for (const auto* list : {&split.pipeline, &split.gpu_pipeline}) {
    for (const TransformSpec& spec : *list) uses_python = uses_python || spec.name == "Python";
  }
  std::string folders;
  const YamlNode* place = scalar_at(node, "dataset", "path");
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

void check_sampler(const YamlNode& node, const std::string& path, const std::string& job_path, SplitSpec& split,
                   Complaints& complaints) {
  SamplerSpec& sampler = split.sampler;
  const YamlNode* indices = scalar_at(node, "sampler", "indices");
  const YamlNode* weights = scalar_at(node, "sampler", "weights");
  const YamlNode* program = sampler.program ? scalar_at(node, "sampler", "program") : nullptr;
  const YamlNode* shuffle = sampler.shuffle ? scalar_at(node, "sampler", "shuffle") : nullptr;
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
  const YamlNode* replacement = scalar_at(node, "sampler", "replacement");
  if (replacement != nullptr && weights != nullptr && !sampler.replacement) {
    complaints.add(replacement->span,
                   "'replacement: false' is not supported: torch's numbers for it depend on how torch was built",
                   "use replacement: true, or write torch's draw to a file and name it as sampler.indices");
  }
  for (const char* name : {"num_samples", "replacement"}) {
    const YamlNode* value = scalar_at(node, "sampler", name);
    // As in torch.utils.data.RandomSampler(replacement=False): what is not drawn by weights has none.
    const bool without = value == replacement && !sampler.replacement;
    if (value != nullptr && weights == nullptr && !without) {
      complaints.add(value->span, in_quotes(name) + " belongs to 'weights', which is not given");
    }
  }
  if (weights == nullptr) sampler.replacement = SamplerSpec{}.replacement;  // the same split, said or not
  for (const char* name : {"file_hash", "file_count"}) {
    const YamlNode* value = scalar_at(node, "sampler", name);
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

}  // namespace penstock
