// `penstock check`: would this job run here? Config, datasets (counts, unreadable files), memory, MPI.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <utility>

#include "launch/command.h"
#include "launch/dataset_given.h"
#include "launch/launch_line.h"
#include "launch/pack_check.h"
#include "launch/progress_line.h"
#include "launch/run_job.h"
#include "runtime/base/available_memory.h"
#include "runtime/base/error.h"
#include "runtime/base/field_value.h"
#include "runtime/base/several_threads.h"
#include "runtime/base/thread_annotations.h"
#include "runtime/base/utf8.h"
#include "runtime/coordinator/epoch_plan.h"
#include "runtime/datasets/image_folder.h"
#include "runtime/datasets/pack_format.h"
#include "runtime/datasets/split_folders.h"
#include "runtime/gpu/gpus.h"
#include "runtime/job/gpu_keys.h"
#include "runtime/job/job.h"
#include "runtime/job/sampler_file.h"
#include "runtime/job/suggest.h"
#include "runtime/loader/loader.h"
#include "runtime/loader/loader_splits.h"
#include "runtime/process/descriptor_limit.h"
#include "runtime/sample/split_context.h"
#include "runtime/sample/split_fields.h"
#include "sampler/plan.h"

namespace penstock {
namespace {

std::string thousands(int64_t value) {
  std::string digits = std::to_string(value);
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<size_t>(at), ",");
  return digits;
}

struct Examined {
  Mutex mutex;
  std::map<int64_t, std::string> unusable PENSTOCK_GUARDED_BY(mutex);  // index -> why
  std::atomic<int64_t> looked{0};                                      // samples
  std::atomic<int64_t> bytes{0};
  std::atomic<int64_t> unreadable{0};  // trouble of the environment: no substitute helps there
};

// One thread's: what a loader would say of a sample, as far as headers tell; with `decode`, of every pixel.
class Examiner {
 public:
  Examiner(const SplitContext& context, bool decode)
      : context_(context), decode_(decode), decoder_(context.split().limits) {}

  SampleStatus look(int64_t index) {
    const DrawKey key{context_.split().seed, 0, static_cast<uint64_t>(index), 0};
    bytes_ = 0;
    SampleStatus status = context_.source().load(key, sample_);
    if (!status.ok()) return status;
    bytes_ = static_cast<int64_t>(sample_.image.size());
    for (const auto& field : sample_.fields) bytes_ += std::ssize(field);
    ImageHeader header{ImageFormat::unknown, sample_.width, sample_.height};
    if (sample_.width == 0) status = picture(sample_.image, FieldKind::image, header);
    const auto extras = extra_fields(context_.fields());
    for (size_t f = 0; f < extras.size() && status.ok(); ++f) status = further(extras[f], sample_.fields.at(f), header);
    return status;
  }
  int64_t bytes() const { return bytes_; }  // of that sample

 private:
  SampleStatus picture(EncodedView bytes, FieldKind kind, ImageHeader& header) {
    SampleStatus status = read_header(bytes, context_.split().limits, header, context_.pipeline().header_options());
    if (status.ok() && kind == FieldKind::mask) status = check_mask(header);
    if (!status.ok() || !decode_) return status;
    const Box all{0, 0, header.width, header.height};
    PixelView pixels;
    return kind == FieldKind::mask ? decoder_.decode_mask(bytes, header, all, storage_, pixels)
                                   : decoder_.decode(bytes, header, all, storage_, pixels);
  }

  SampleStatus further(const FieldSpec& field, std::span<const std::byte> value, const ImageHeader& first) {
    if (field.kind != FieldKind::image && field.kind != FieldKind::mask) {
      room_.resize(field.bytes_per_sample());
      return put_value(field, value, room_.data());
    }
    ImageHeader header;
    SampleStatus status = picture(value, field.kind, header);
    if (status.ok() && (header.width != first.width || header.height != first.height)) {
      status = SampleStatus::bad("another size than the image's");
    }
    return status.ok() ? status : SampleStatus::bad("its " + field.name + ": " + status.reason);
  }

  const SplitContext& context_;
  bool decode_;
  Decoder decoder_;
  SourceSample sample_;
  PixelBuffer storage_;
  std::vector<std::byte> room_;
  int64_t bytes_ = 0;
};

// Looks at every sample that is here, or at every n-th.
void examine(const SplitContext& context, const IndexRanges& here, int64_t stride, bool decode, Examined& findings) {
  const int64_t count = (context.source().size() + stride - 1) / stride;
  for_each_on_threads(static_cast<size_t>(count), number_of_cores(), [&] {
    return [&, examiner = Examiner(context, decode)](size_t number) mutable {
      const int64_t index = static_cast<int64_t>(number) * stride;
      if (!here.contains(index)) return;
      ++findings.looked;
      std::string why;
      try {
        why = examiner.look(index).reason;
        findings.bytes += examiner.bytes();
      } catch (const Error& error) {
        why = error.message();
        ++findings.unreadable;
      }
      if (why.empty()) return;
      MutexLock lock(findings.mutex);
      findings.unusable[index] = why;
    };
  });
}

void print_classes(const Source& source) {
  const auto& names = source.class_names();
  std::map<int64_t, int64_t> counts;  // of labels, which are places in `names` where there are names
  for (size_t c = 0; c < names.size(); ++c) counts[static_cast<int64_t>(c)] = 0;
  for (int64_t i = 0; i < source.size(); ++i) ++counts[source.label(i)];
  constexpr size_t most = 20;
  size_t shown = 0;
  int64_t low = source.size();
  int64_t high = 0;
  for (const auto& [label, count] : counts) {
    low = std::min(low, count);
    high = std::max(high, count);
    if (++shown > most) continue;
    const std::string name = names.empty() ? std::string() : names[static_cast<size_t>(label)];
    std::printf("    %4lld  %-24s %12s\n", static_cast<long long>(label), without_controls(name).c_str(),
                thousands(count).c_str());
  }
  if (shown > most) {
    std::printf("    ... %zu more classes; %s to %s samples a class\n", shown - most, thousands(low).c_str(),
                thousands(high).c_str());
  }
}

// MixUp and CutMix end the job at a label that is none of their classes. Empty: there is none.
std::string label_of_no_class(const SplitContext& context) {
  const int64_t classes = context.pipeline().soft_classes();
  const Source& source = context.source();
  for (int64_t i = 0; classes > 0 && i < source.size(); ++i) {
    const int64_t label = source.label(i);
    if (label >= 0 && label < classes) continue;
    return "'" + source.key(i) + "' has label " + std::to_string(label) + ", and num_classes of MixUp or CutMix is " +
           std::to_string(classes);
  }
  return {};
}

// A label is a class's place in its split's sorted list: where lists differ, the same number means two things.
std::vector<std::string> different_classes(const std::map<std::string, std::vector<std::string>>& classes) {
  std::vector<std::string> complaints;
  if (classes.empty()) return complaints;
  // What a model is trained on is what the others are compared with.
  const auto train = classes.contains("train") ? classes.find("train") : classes.begin();
  for (auto other = classes.begin(); other != classes.end(); ++other) {
    const auto [mine, theirs] =
        std::mismatch(train->second.begin(), train->second.end(), other->second.begin(), other->second.end());
    const bool longer = mine != train->second.end();
    if (!longer && theirs == other->second.end()) continue;
    const size_t label = static_cast<size_t>(mine - train->second.begin());
    complaints.push_back("classes: label " + std::to_string(label) + " is " +
                         (longer ? "'" + *mine + "'" : "no class") + " in split " + train->first + " and " +
                         (theirs != other->second.end() ? "'" + *theirs + "'" : "no class") + " in split " +
                         other->first + ": the class folders of all splits must have the same names");
  }
  return complaints;
}

// The bytes of one sample.
double bytes_of(const FieldTable& fields) {
  double bytes = 0;
  for (const FieldSpec& field : fields) bytes += static_cast<double>(field.bytes_per_sample());
  return bytes;
}

// "20 samples in 2 classes, /data/train".
std::string summary(const Source& source, const std::string& title) {
  const size_t names = source.class_names().size();
  return thousands(source.size()) + (source.size() == 1 ? " sample" : " samples") +
         (names > 0 ? " in " + std::to_string(names) + " classes" : std::string()) +
         (source.labelled() ? ", " : " without labels, ") + title;
}

void print_list(const char* what, const std::vector<std::string>& list) {
  constexpr size_t most = 50;
  for (size_t i = 0; i < std::min(list.size(), most); ++i) {
    std::printf("    %s%s\n", what, without_controls(list[i]).c_str());
  }
  if (list.size() > most) std::printf("    ... and %zu more\n", list.size() - most);
}

// A pack by itself: every byte of it.
int check_pack_folder(const std::string& folder) {
  std::unique_ptr<ProgressLine> line;
  const PackFindings found = check_whole_pack(folder, [&](int64_t done, int64_t total, uint64_t bytes) {
    if (!line) line = std::make_unique<ProgressLine>("check", total, true);
    line->show(done, bytes);
    return true;
  });
  line.reset();
  std::printf(
      "pack %s: %s samples in %zu %s, %.1f MB of records, %lld rewritten, %zu unusable when packed, %zu damaged\n",
      folder.c_str(), thousands(found.samples).c_str(), found.shards, found.shards == 1 ? "shard" : "shards",
      static_cast<double>(found.bytes) / 1e6, static_cast<long long>(found.rewritten), found.bad.size(),
      found.damaged.size());
  print_list("unusable: ", found.bad);
  print_list("damaged: ", found.damaged);
  std::printf(found.damaged.empty() ? "check: fine\n" : "check: this pack is not as it was written\n");
  return found.damaged.empty() ? 0 : static_cast<int>(ErrorKind::runtime);
}

// What is to be said of a job, split by split; the exit code is that of the worst finding.
class JobCheck {
 public:
  JobCheck(const Job& job, bool decode, int64_t most)
      : job_(job),
        decode_(decode),
        most_(most),
        loader_(loader_options(job)),
        cache_mb_(static_cast<double>(loader_.sources.cache_bytes) * static_cast<double>(job.splits.size()) / 1e6) {
    loader_.sources.cache_bytes = 0;  // every sample is looked at once here
  }

  void look_at_split(const std::string& name) {
    const SplitSpec& spec = job_.splits.at(name);
    const auto context = open(with_sampler_file(resolve_split(job_, name)));
    if (!context) return;
    const Source& source = context->source();
    std::printf("split %s: %s\n", name.c_str(), without_controls(summary(source, spec.dataset.title())).c_str());
    if (!spec.dataset.is_python()) {  // labels come with the samples there
      if (source.labelled()) print_classes(source);
      if (const std::string why = label_of_no_class(*context); !why.empty())
        found(ErrorKind::dataset, "  " + why, "split " + name + " has a label that is no class of its MixUp or CutMix");
    }
    if (!source.class_names().empty()) classes_[name] = source.class_names();
    if (!spec.dataset.folder.empty()) doubt_classes(spec.dataset.folder);
    if (!spec.dataset.folder.empty() && spec.dataset.index.empty()) print_list_memory(source.size());
    check_numbers(context->split(), read_sampler_file(context->split()), source.size());
    const PlanShape shape =
        plan_shape(plan_spec(context->split(), source.size(), replicas_of(job_, job_.roles.trainers)));
    std::printf("  %s %s of %s for each of %d %s (on one node)\n", thousands(shape.steps).c_str(),
                shape.steps == 1 ? "batch" : "batches",
                thousands(std::min(spec.batch_size, shape.samples_per_replica)).c_str(), job_.roles.trainers,
                job_.roles.trainers == 1 ? "trainer" : "trainers");
    look_at_samples(*context, shape);
    add_memory(name, *context);
  }

  void compare_classes() {
    for (const std::string& complaint : different_classes(classes_))
      found(ErrorKind::dataset, complaint, "the splits have different classes");
  }

  // As a loader will find it.
  void look_for_gpus() {
    if (const std::string text = gpu_keys_without_effect(job_); !text.empty()) std::printf("GPUs: %s\n", text.c_str());
    if (executor_of(job_) == ExecutorKind::cpu) return;
    try {
      for (const auto& gpu : open_gpus(loader_.gpus)) std::printf("GPU: %s\n", gpu->info().name.c_str());
    } catch (const Error& error) {
      const bool needed = job_.loader.executor == ExecutorKind::gpu;
      const std::string what = std::string(needed ? "GPUs: " : "GPUs: none, so the CPU alone decodes: ") + error.what();
      if (needed) {
        found(ErrorKind::runtime, what, "there is no GPU that loaders could use");
      } else {
        std::printf("%s\n", what.c_str());
      }
    }
  }

  void print_machine() {
    std::string cache;
    if (cache_mb_ > 0) {
      cache = ", up to " + thousands(std::llround(cache_mb_)) + " MB of samples kept there (loader.cache_gb)";
    }
    const double free_mb = static_cast<double>(available_memory()) / 1e6;
    std::printf(
        "memory: %.0f MB of chunk buffers at each loader%s, %.0f MB of batch buffers at each trainer; %.0f MB are free "
        "here\n",
        chunk_buffers_mb_, cache.c_str(), batch_buffers_mb_, free_mb);
    const MemoryShares shares = memory_shares(loader_, std::llround(chunk_buffers_mb_ * 1e6));
    std::printf(
        "  of loader.memory_gb, %.0f MB are left for pictures of %zu MB and more while they are made; what needs more "
        "is made alone\n",
        static_cast<double>(shares.large) / 1e6, kLargeMemory / 1'000'000);
    judge_memory(free_mb);
    try {
      const MpiFound mpi = find_mpirun();
      std::printf("MPI: %s is Open MPI %d.%d.%d\n", mpi.mpirun.c_str(), mpi.major, mpi.minor, mpi.patch);
    } catch (const Error& error) {
      std::printf("MPI: not usable: %s\n", error.what());
    }
  }

  int conclude() const {
    if (code_ == 0) {
      std::printf("check: fine\n");
    } else {
      std::printf("check: not fine: %s\n", list_of(wrong_, "and").c_str());
    }
    return code_;
  }

 private:
  // nullptr: it cannot be opened, which is said, so that the other splits are looked at, too.
  std::shared_ptr<const SplitContext> open(const ResolvedSplit& split) {
    try {
      return SplitContext::open(split, posix_file_system(), {job_.python}, loader_.sources);
    } catch (const Error& error) {
      const DatasetSpec& dataset = split.split.dataset;
      std::string key = "splits." + split.name;
      if (error.kind() != ErrorKind::config) {
        key += ".dataset";
        for (const DatasetKind& kind : kDatasetKinds) {
          if (!(dataset.*kind.value).empty() && !dataset.is_paired()) key += std::string(".") + kind.key;
        }
      }
      found(error.kind(), key + ": " + without_controls(error.what()), "split " + split.name + " cannot be opened");
      return nullptr;
    }
  }

  // Files that cannot be read at all say the most: nothing that the job file says would help. `wrong`: in a few words, for
  // the last line.
  void found(ErrorKind kind, const std::string& what, const std::string& wrong) {
    std::printf("%s\n", what.c_str());
    if (std::find(wrong_.begin(), wrong_.end(), wrong) == wrong_.end()) wrong_.push_back(wrong);
    if (code_ == 0 || kind == ErrorKind::runtime) code_ = static_cast<int>(kind);
  }

  // From a megabyte on.
  static void print_list_memory(int64_t files) {
    const int64_t mb = files * kListedFileBytes / 1'000'000;
    if (mb == 0) return;
    std::printf(
        "  the list of files takes about %s MB at each loader, besides loader.memory_gb; with an index (`penstock "
        "index`) "
        "the loaders of a node share one, and need not list\n",
        thousands(mb).c_str());
  }

  // What may be meant so, and hardly ever is.
  static void doubt_classes(const std::string& folder) {
    if (const auto splits = splits_as_classes(folder); !splits.empty()) {
      std::printf(
          "  are these classes? %s hold class folders of their own: the splits' folders may be meant, as in %s/%s\n",
          list_of(splits, "and").c_str(), folder.c_str(), splits.front().c_str());
    }
    if (const auto lost = lost_classes(folder); !lost.empty()) {
      std::printf("  is a class missing? Links that lead nowhere are left out: %s\n", list_of(lost, "and").c_str());
    }
  }

  void look_at_samples(const SplitContext& context, const PlanShape& shape) {
    const Source& source = context.source();
    const int64_t stride = most_ > 0 ? std::max<int64_t>(1, source.size() / most_) : 1;
    Examined findings;
    const IndexRanges here = source.readable().ranges;
    examine(context, here, stride, decode_, findings);
    if (here.samples() < source.size()) {
      std::printf("  %s of the samples are on this node's disks (dataset.local); a job needs each on some loader's\n",
                  thousands(here.samples()).c_str());
    }
    const int64_t looked = findings.looked.load();
    MutexLock lock(findings.mutex);
    std::printf("  %s files looked at (%s), %.1f MB, %zu unusable\n", thousands(looked).c_str(),
                decode_ ? "every pixel" : "headers; --decode looks at every pixel",
                static_cast<double>(findings.bytes.load()) / 1e6, findings.unusable.size());
    std::vector<std::string> lines;
    for (const auto& [index, why] : findings.unusable) lines.push_back("'" + source.key(index) + "': " + why);
    print_list("", lines);
    const int64_t unreadable = findings.unreadable.load();
    judge_unusable(context, shape, std::ssize(findings.unusable) - unreadable);
    if (unreadable > 0) {
      found(
          ErrorKind::runtime,
          "  " + std::to_string(unreadable) + " of them cannot be read at all, which ends a job whatever on_error says",
          "split " + context.split().name + " has files that cannot be read");
    }
  }

  void judge_unusable(const SplitContext& context, const PlanShape& shape, int64_t unusable) {
    if (unusable == 0) return;
    const SplitSpec& spec = context.split().split;
    const bool visits_all = spec.sampler.file().empty() && !spec.sampler.program && shape.dropped == 0;
    const int64_t budget = bad_sample_budget(job_.bad_samples, shape);
    const int64_t trainers = replicas_of(job_, job_.roles.trainers);
    const std::string wrong = "split " + context.split().name + " has unusable samples";
    if (job_.on_error == OnError::fail) {
      found(ErrorKind::dataset, "  one of them would end the job: repair or remove them, or set on_error: substitute",
            wrong);
    } else if (spec.mode == Mode::train && unusable == context.source().size()) {
      found(ErrorKind::dataset, "  none of the samples is usable, so that nothing can stand in for another", wrong);
    } else if (visits_all && (unusable + trainers - 1) / trainers > budget) {  // at least one trainer gets as many
      found(ErrorKind::dataset,
            "  more than bad_samples allows: " + std::to_string(budget) + " for each trainer in an epoch", wrong);
    }
  }

  void add_memory(const std::string& name, const SplitContext& context) {
    const SplitSpec& spec = context.split().split;
    const Pipeline& pipeline = context.pipeline();
    const int64_t samples =
        std::min<int64_t>(spec.batch_size, job_.loader.chunk_samples > 0 ? job_.loader.chunk_samples : 16);
    const double chunk_buffers_mb =
        bytes_of(context.fields()) * static_cast<double>(samples) * loader_.chunk_buffers / 1e6;
    const double batch_buffers_mb = bytes_of(delivered_fields(context.fields(), pipeline, pipeline.finish())) *
                                    static_cast<double>(spec.batch_size) *
                                    (std::max(2, job_.loader.prefetch) + 1 + job_.trainer.hold) / 1e6;
    chunk_buffers_mb_ += chunk_buffers_mb;
    batch_buffers_mb_ += batch_buffers_mb;
    most_chunk_buffers_ = std::max(most_chunk_buffers_, {chunk_buffers_mb, name});
    most_batch_buffers_ = std::max(most_batch_buffers_, {batch_buffers_mb, name});
  }

  // A program may have one split open at a time, so the largest one is what a job cannot do without.
  void judge_memory(double free_mb) {
    const double allowed_mb = static_cast<double>(loader_.memory_bytes) / 1e6;
    const auto& [chunk_buffers_mb, chunk_buffers_split] = most_chunk_buffers_;
    if (chunk_buffers_mb > allowed_mb) {
      found(ErrorKind::config,
            "  the chunk buffers of split " + chunk_buffers_split + " alone take " +
                thousands(std::llround(chunk_buffers_mb)) + " MB, and loader.memory_gb allows " +
                thousands(std::llround(allowed_mb)) +
                " MB: raise it, or lower loader.chunk_buffers, loader.threads or loader.chunk_samples",
            "loader.memory_gb is too little");
    } else if (chunk_buffers_mb_ > allowed_mb) {
      std::printf("  loader.memory_gb allows %s MB of chunk buffers: not all splits can be open at once\n",
                  thousands(std::llround(allowed_mb)).c_str());
    }
    const auto& [batch_buffers_mb, batch_buffers_split] = most_batch_buffers_;
    const double node_mb = batch_buffers_mb * job_.roles.trainers + chunk_buffers_mb;
    if (node_mb > free_mb) {
      found(ErrorKind::runtime,
            "  split " + batch_buffers_split + " alone takes " + thousands(std::llround(node_mb)) +
                " MB on a node of one loader, more than are free here: lower splits." + batch_buffers_split +
                ".batch_size, loader.prefetch or trainer.hold",
            "too little memory is free");
    }
  }

  const Job& job_;
  const bool decode_;
  const int64_t most_;
  LoaderOptions loader_;
  const double cache_mb_;
  std::map<std::string, std::vector<std::string>> classes_;  // by split
  double chunk_buffers_mb_ = 0;
  double batch_buffers_mb_ = 0;
  std::pair<double, std::string> most_chunk_buffers_;  // of one split
  std::pair<double, std::string> most_batch_buffers_;
  int code_ = 0;
  std::vector<std::string> wrong_;
};

struct CheckRequest {
  JobArguments arguments;
  bool decode = false;
  int64_t most = 0;
};

int check(const CheckRequest& request) {
  const std::string& file = request.arguments.file;
  if (is_pack(file)) {
    if (request.decode || request.most > 0 || !request.arguments.overrides.empty()) {
      throw Error(ErrorKind::usage, "'" + file + "' is a pack, which is checked by its checksums, every byte of it",
                  "leave out --decode, --most and key.sub=value; they are for the job file that reads the pack");
    }
    return check_pack_folder(file);
  }
  std::error_code ignored;
  if (std::filesystem::is_directory(file, ignored)) {
    const bool shards = std::filesystem::exists(file + "/" + shard_name(0), ignored);
    throw Error(shards ? ErrorKind::dataset : ErrorKind::usage,
                "'" + file + "' is a folder, " + (shards ? "of shards without their pack.index" : "and no pack"),
                shards ? "make the pack again, in a new folder"
                       : "check a job file: `penstock init --data " + file + " > job.yaml` writes one");
  }
  refuse_missing(file, "a job file", "the folder of a pack");
  const Job job = load_job(file, request.arguments.overrides);
  for (const auto& [name, spec] : job.splits) (void)make_variants(resolve_split(job, name));
  allow_descriptors(descriptors_of_one_process(std::min(job.roles.trainers, kMostTrainersHere)), "this job");
  std::printf("job file: %s: fine\n", file.c_str());
  JobCheck check(job, request.decode, request.most);
  for (const auto& [name, spec] : job.splits) check.look_at_split(name);
  check.compare_classes();
  check.look_for_gpus();
  check.print_machine();
  return check.conclude();
}

}  // namespace

void add_check(CLI::App& app, Chosen& chosen) {
  auto request = std::make_shared<CheckRequest>();
  CLI::App* command = app.add_subcommand(
      "check", "would this job run here? Config, data, memory, MPI; or: is this pack as it was written?");
  command->add_option("job", request->arguments.file, "job file, or the folder of a pack")
      ->required()
      ->type_name("JOB.yaml|PACK");
  command->add_option("overrides", request->arguments.overrides,
                      "key.sub=value, over the job file and the environment");
  command->add_flag("--decode", request->decode, "decode every file, not only its header");
  command->add_option("--most", request->most, "look at about this many files of each split; 0: all")
      ->capture_default_str()
      ->check(not_negative());
  command->footer("Examples:\n  penstock check job.yaml --most 1000\n  penstock check train.pack");
  command->callback([=, &chosen] { chosen.run = [=] { return check(*request); }; });
}

}  // namespace penstock
