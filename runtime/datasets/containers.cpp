#include "runtime/datasets/containers.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/json_text.h"
#include "runtime/base/lower_case.h"
#include "runtime/datasets/file_pattern.h"

namespace penstock {
namespace {

const DatasetKind& container_of(const DatasetSpec& dataset) {
  for (const DatasetKind& known : kDatasetKinds) {
    if (known.container && !(dataset.*known.value).empty()) return known;
  }
  throw Error(ErrorKind::usage, "no data set of containers is named");
}

std::vector<std::string> mnist_files(const DatasetSpec& dataset, FileSystem& files) {
  // As torchvision keeps them, in MNIST/raw; plain, or as they are published.
  const std::string stem = dataset.train ? "train" : "t10k";
  std::vector<std::string> out;
  for (const std::string& folder : {dataset.mnist, dataset.mnist + "/MNIST/raw", dataset.mnist + "/raw"}) {
    std::vector<std::string> names;
    try {
      for (const DirectoryEntry& entry : files.list_directory(folder).entries) names.push_back(entry.name);
    } catch (const FileError&) {
      continue;
    }
    out.clear();
    for (const char* part : {"-images-idx3-ubyte", "-labels-idx1-ubyte"}) {
      for (const char* end : {"", ".gz"}) {
        if (std::find(names.begin(), names.end(), stem + part + end) == names.end()) continue;
        out.push_back(folder + "/" + stem + part + end);
        break;
      }
    }
    if (out.size() == 2) return out;
  }
  throw Error(
      ErrorKind::dataset,
      "'" + dataset.mnist + "' has no " + stem + "-images-idx3-ubyte and " + stem + "-labels-idx1-ubyte, plain or .gz",
      "name the folder that holds MNIST's files, or its parent as torchvision keeps it");
}

std::vector<std::string> cifar_files(const DatasetSpec& dataset, bool hundred, FileSystem& files) {
  const std::string& top = hundred ? dataset.cifar100 : dataset.cifar10;
  // Two versions are published: binary, and pickled for Python, which torchvision loads.
  const std::string below = hundred ? "/cifar-100-binary" : "/cifar-10-batches-bin";
  const std::string pickled = hundred ? "/cifar-100-python" : "/cifar-10-batches-py";
  std::vector<std::string> stems;
  if (hundred) {
    stems = {dataset.train ? "train" : "test"};
  } else if (dataset.train) {
    for (int i = 1; i <= 5; ++i) stems.push_back("data_batch_" + std::to_string(i));
  } else {
    stems = {"test_batch"};
  }
  std::string missing;
  size_t most = 0;
  const std::array<std::pair<std::string, const char*>, 4> places{
      {{top, ".bin"}, {top + below, ".bin"}, {top, ""}, {top + pickled, ""}}};
  for (const auto& [folder, ending] : places) {
    std::vector<std::string> names;
    for (const std::string& stem : stems) names.push_back(stem + ending);
    std::vector<std::string> there;
    try {
      for (const DirectoryEntry& entry : files.list_directory(folder).entries) there.push_back(entry.name);
    } catch (const FileError& error) {
      if (missing.empty()) missing = error.message();
      continue;
    }
    std::vector<std::string> out;
    std::string first_missing;
    for (const std::string& name : names) {
      if (std::find(there.begin(), there.end(), name) != there.end()) {
        out.push_back(folder + "/" + name);
      } else if (first_missing.empty()) {
        first_missing = "'" + folder + "' has no " + name;
      }
    }
    if (out.size() == names.size()) return out;
    if (missing.empty() || out.size() > most) missing = first_missing;
    most = std::max(most, out.size());
  }
  throw Error(ErrorKind::dataset, missing,
              "name the folder with CIFAR's binary version, " + below.substr(1) + ", or Python's, " +
                  pickled.substr(1) + ", or its parent");
}

}  // namespace

std::string container_kind(const DatasetSpec& dataset) {
  for (const DatasetKind& known : kDatasetKinds) {
    if (known.container && !(dataset.*known.value).empty()) return known.key;
  }
  return {};
}

std::string container_root(const DatasetSpec& dataset) {
  const DatasetKind& kind = container_of(dataset);
  const std::string& place = dataset.*kind.value;
  if (kind.place == DatasetPlace::pattern) return folder_of(expand_braces(place).front());
  return kind.place == DatasetPlace::file ? folder_of(place) : place;
}

std::vector<std::string> container_files(const DatasetSpec& dataset, FileSystem& files) {
  const std::string kind = container_kind(dataset);
  const DatasetKind& known = container_of(dataset);
  if (known.place == DatasetPlace::pattern) return find_files(dataset.*known.value, files);
  if (kind == "mnist") return mnist_files(dataset, files);
  if (kind == "cifar10" || kind == "cifar100") return cifar_files(dataset, kind == "cifar100", files);
  if (kind == "mds") return {dataset.mds + "/index.json"};
  return {dataset.*known.value};
}

std::string container_options(const DatasetSpec& dataset) {
  nlohmann::json out = {{"image", dataset.image},
                        {"label", dataset.label},
                        {"fields", names_in(dataset.fields)},
                        {"train", dataset.train}};
  if (dataset.val_share > 0) out["val_share"] = {dataset.val_share, dataset.val_seed};
  return json_text(out);
}

SampleTable list_samples(const ContainerInput& input) {
  const std::string kind = container_kind(input.dataset);
  if (kind == "tar") return list_tar(input);
  if (kind == "cifar10" || kind == "cifar100") return list_cifar(input, kind == "cifar100");
  if (kind == "mnist") return list_mnist(input);
  if (kind == "csv") return list_csv(input);
  if (kind == "list") return list_file_list(input);
  if (kind == "mds") return list_mds(input);
  if (kind == "tfrecord") return list_tfrecord(input);
  if (kind == "parquet") {
    throw Error(ErrorKind::usage,
                "Parquet files are read by `penstock index` alone, and '" + input.dataset.parquet + "' has no index",
                "add index: FILE to the dataset, and run `penstock index` once");
  }
  throw Error(ErrorKind::usage, "no data set of containers is named");
}

std::vector<FieldRequest> field_requests(const DatasetSpec& dataset) {
  std::vector<FieldRequest> out = field_requests(std::string_view(dataset.fields));
  std::erase_if(out, [](const FieldRequest& asked) { return asked.name.empty(); });
  return out;
}

std::string relative_to(const std::string& root, const std::string& path) {
  return path.size() > root.size() + 1 && path.starts_with(root) && path[root.size()] == '/'
             ? path.substr(root.size() + 1)
             : path;
}

std::string without_blanks(std::string_view text) {
  constexpr std::string_view blanks = " \t\r\n";
  const size_t first = text.find_first_not_of(blanks);
  return first == std::string_view::npos ? std::string()
                                         : std::string(text.substr(first, text.find_last_not_of(blanks) - first + 1));
}

void refuse_near_label(const std::string& title, const char* what, const std::vector<std::string>& known) {
  for (const std::string& name : known) {
    const std::string plain = lower_case(without_blanks(name));
    if (plain != "label" && plain != "labels") continue;
    throw Error(ErrorKind::dataset, "'" + title + "' has no " + what + " 'label', but one called '" + name + "'",
                "say that it is the label, with dataset.label, or give it a name that is less like one");
  }
}

bool integer_of(std::string_view whole, int64_t& value) {
  const std::string text = without_blanks(whole);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return !text.empty() && error == std::errc{} && end == text.data() + text.size();
}

void no_such_name(const std::string& title, const char* what, const std::string& name,
                  const std::vector<std::string>& known) {
  std::string list;
  for (const std::string& one : known) {
    if (list.size() > 300) {
      list += ", ...";
      break;
    }
    list += (list.empty() ? "'" : ", '") + one.substr(0, 60) + "'";
  }
  throw Error(ErrorKind::dataset, "'" + title + "' has no " + what + " '" + name + "'",
              list.empty() ? std::string() : "it has " + list);
}

}  // namespace penstock
