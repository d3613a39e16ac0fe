// The ways to list what a container holds: each makes of files a table of samples (sample_table.h).
//
//   SampleTable table = list_samples({dataset, shards, files, max_encoded_bytes});    // whatever kind `dataset` is
//
// What each kind reads stands at its function; which member, column or feature is what stands in the DatasetSpec:
//   image, label, fields. Kinds add no class of their own: TableSource reads them all.
// Failure: Error(dataset) naming file and offset or line, with a remedy; Error(runtime) for the disk.
// Thread-safety: functions without state; `shards` may be shared.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/field_list.h"
#include "runtime/datasets/sample_table.h"
#include "runtime/datasets/shard_files.h"
#include "runtime/job/job.h"

namespace penstock {

struct ContainerInput {
  const DatasetSpec& dataset;
  ShardFiles& shards;
  FileSystem& files;
  int64_t max_encoded_bytes = 0;
};

// "tar", "csv", ...: the key that says where the data is. Empty for class folders and for Python.
std::string container_kind(const DatasetSpec& dataset);

// What the paths of a container's table are relative to.
std::string container_root(const DatasetSpec& dataset);

// The files that opening this data set would read, in order; for CSV and lists, the list itself; of Parquet, the files
// that `penstock index` reads (launch/parquet_data.h).
std::vector<std::string> container_files(const DatasetSpec& dataset, FileSystem& files);

// What of the DatasetSpec decides a table's content, apart from where the data lies.
std::string container_options(const DatasetSpec& dataset);

SampleTable list_samples(const ContainerInput& input);

// WebDataset's tar shards (tar_shards.cpp). Consecutive members whose names agree up to the first dot of the file's
// name are a sample; what follows the dot, in lower case, says what a member is. Members without a dot, and those that
// begin with one or are named __like this__, are passed over, as webdataset does.
//   image   the member named as `image` says, or the only one with a picture's extension
//   label   an integer as text, from the member `label` (default "cls"); in all samples or in none
//   fields  "depth", or "depth.npy", is the tensor in depth.npy, "npy" the one in the member .npy itself, dtype and
//           shape as in the first sample; "txt" and "json" are text; any other member is bytes, or text where asked for
//           as "name:text"
SampleTable list_tar(const ContainerInput& input);
// Whether a member's bytes are text: "caption.txt", "json".
bool is_text_member(std::string_view suffix);

// CIFAR's binary batches and MNIST's idx files, plain or .gz (pixel_files.cpp), as torchvision names them.
SampleTable list_cifar(const ContainerInput& input, bool hundred);
SampleTable list_mnist(const ContainerInput& input);

// A table of files and values (csv_samples.cpp), by RFC 4180, its first line naming the columns, fields being numbers
// or ":text"; and lists of "PATH LABEL" lines. Labels are integers in every line, or class names, whose order is that
// of Python's sorted().
SampleTable list_csv(const ContainerInput& input);
SampleTable list_file_list(const ContainerInput& input);

// Mosaic's MDS shards (mds_shards.cpp): index.json and the shards that it names, in its folder or below, plain, zstd or
// gzip. Fields are numbers, ndarrays of a fixed shape, str and json (text), bytes.
SampleTable list_mds(const ContainerInput& input);

// TFRecord files of tf.train.Example (tfrecord.cpp), plain or gzip, whatever their names. Fields are int64, float32,
// and single texts of bytes.
SampleTable list_tfrecord(const ContainerInput& input);

// What `dataset.fields` asks for; a field without a kind has whatever kind it has.
std::vector<FieldRequest> field_requests(const DatasetSpec& dataset);

// `path` as a table notes it: relative where it lies under `root`.
std::string relative_to(const std::string& root, const std::string& path);

// An integer and nothing else (blanks around it aside); false: it is none.
bool integer_of(std::string_view text, int64_t& value);

std::string without_blanks(std::string_view text);  // before and after it

// For a data set without what would be its label: refuses where one of `known` is surely meant ("Label", "labels").
void refuse_near_label(const std::string& title, const char* what, const std::vector<std::string>& known);

// A mistake in the job's words for this data set: "there is no column 'imgae'" with what there is.
[[noreturn]] void no_such_name(const std::string& title, const char* what, const std::string& name,
                               const std::vector<std::string>& known);

}  // namespace penstock
