// `penstock inspect`: the batches a job would deliver, made here and written out, without trainers or loaders.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "launch/command.h"
#include "runtime/base/arithmetic.h"
#include "runtime/base/error.h"
#include "runtime/base/field_value.h"
#include "runtime/base/hash.h"
#include "runtime/coordinator/epoch_plan.h"
#include "runtime/job/job.h"
#include "runtime/job/sampler_file.h"
#include "runtime/loader/loader.h"
#include "runtime/pixels/finish.h"
#include "runtime/report/batch_dump.h"
#include "runtime/report/contact_sheet.h"
#include "runtime/sample/sample_maker.h"
#include "runtime/sample/split_context.h"
#include "runtime/sample/split_fields.h"
#include "sampler/plan.h"

namespace penstock {
namespace {

struct InspectRequest {
  std::string split = "train";
  int64_t epoch = 0;
  int64_t steps = 1;
  int64_t first_step = 0;
  int trainers = 0;  // 0: the job's
  std::string out;
  bool raw = false;
  int sheet = 64;  // pictures on the contact sheet
};

// Makes one batch after the other as loaders and a receiver would together, hashes it and writes it out.
class Inspector {
 public:
  Inspector(std::shared_ptr<const SplitContext> context, const InspectRequest& request)
      : context_(std::move(context)),
        request_(request),
        split_(context_->split()),
        pipeline_(context_->pipeline()),
        finish_(finish_of(split_, pipeline_)),
        finisher_(finisher_of(pipeline_, finish_)),
        extras_(extra_fields(context_->fields())),
        image_bytes_(context_->fields()[0].bytes_per_sample()),
        maker_(context_) {}

  void add(const BatchPlan& plan, int64_t step, int64_t replica) {
    Batch batch(*this, plan.size());
    for (size_t row_index = 0; row_index < plan.size(); ++row_index) add_sample(batch, row_index, plan[row_index]);
    if (!request_.raw) finish_further_images(batch);

    DumpedBatch dumped;
    dumped.trainer = static_cast<int32_t>(replica);
    dumped.step = step;
    dumped.epoch = request_.epoch;
    dumped.split = split_.name;
    dumped.records = &batch.records;
    dumped.labels = &batch.labels;
    dumped.variants = &context_->variants();
    dumped.dataset_folder = split_.split.dataset.title();
    const bool channels_last = !request_.raw && split_.split.channels_last;
    FieldSpec image = context_->fields()[0];
    if (!request_.raw) image.dtype = finish_.dtype;
    dumped.images = image_batch_view(request_.raw ? static_cast<void*>(batch.raw.data()) : batch.finished.data(), image,
                                     std::ssize(plan), channels_last);
    for (size_t i = 0; i < extras_.size(); ++i) {
      FieldSpec field = extras_[i];
      const bool finished = field.kind == FieldKind::image && !request_.raw;
      if (finished) field.dtype = finish_.dtype;
      dumped.others.push_back({field, batch.others[i].data(), finished && split_.split.channels_last});
    }
    if (pipeline_.soft_classes() > 0) mix(batch, plan, step, replica, dumped);
    write_batch(request_.out, dumped);
  }

  void write_sheet() const {
    if (on_sheet_ == 0) return;
    const FieldSpec one{"image", FieldKind::image, DType::uint8, {3, pipeline_.out_height(), pipeline_.out_width()}};
    TensorView images =
        image_batch_view(const_cast<uint8_t*>(sheet_.data()), one, on_sheet_ * pipeline_.views(), false);
    if (pixel_rules(split_).bgr) {  // people look at it
      images.data = static_cast<uint8_t*>(images.data) + 2 * images.strides[1];
      images.strides[1] = -images.strides[1];
    }
    write_contact_sheet(request_.out + "/contact_sheet.png", images);
  }

  const StreamHash& hash() const { return hash_; }
  int64_t unusable() const { return unusable_; }

 private:
  struct Batch {
    Batch(const Inspector& of, size_t size)
        : raw(size * of.image_bytes_),
          finished(of.request_.raw ? 0 : size * of.finisher_.bytes_per_sample()),
          labels(size),
          soft(size * static_cast<size_t>(of.pipeline_.soft_classes())) {
      for (const FieldSpec& field : of.extras_) others.emplace_back(size * field.bytes_per_sample());
    }

    std::vector<uint8_t> raw;  // images before finishing
    std::vector<std::byte> finished;
    std::vector<int64_t> labels;
    std::vector<float> soft;
    std::vector<std::vector<std::byte>> others;  // one a field behind image and label
    std::vector<SampleRecord> records;
  };

  static FinishSpec finish_of(const ResolvedSplit& split, const Pipeline& pipeline) {
    FinishSpec finish = pipeline.finish();
    if (split.split.channels_last) finish.memory_format = MemoryFormat::channels_last;
    return finish;
  }

  void add_sample(Batch& batch, size_t row_index, const PlannedSample& planned) {
    uint8_t* const image = batch.raw.data() + row_index * image_bytes_;
    std::vector<std::byte*> fields = {reinterpret_cast<std::byte*>(image),
                                      reinterpret_cast<std::byte*>(&batch.labels[row_index])};
    for (size_t i = 0; i < extras_.size(); ++i) {
      fields.push_back(batch.others[i].data() + row_index * extras_[i].bytes_per_sample());
    }
    SampleRecord record = maker_.make(planned, request_.epoch, fields);
    refuse_unusable(record);
    unusable_ += record.reason.empty() ? 0 : 1;

    PlannedSample delivered = record.planned;
    delivered.index = record.index;
    std::vector<std::span<const std::byte>> content = {{fields[0], image_bytes_}};
    for (size_t i = 0; i < extras_.size(); ++i) content.push_back(stored_bytes(extras_[i], fields[i + 2]));
    hash_.add(sample_record(split_.name, static_cast<uint32_t>(request_.epoch), delivered, record.draws,
                            batch.labels[row_index]),
              content);
    if (!request_.raw) finisher_.run(image, batch.finished.data() + row_index * finisher_.bytes_per_sample());
    if (on_sheet_ < request_.sheet) {
      sheet_.insert(sheet_.end(), image, image + image_bytes_);
      ++on_sheet_;
    }
    batch.records.push_back(std::move(record));
  }

  // As a receiver would.
  void refuse_unusable(const SampleRecord& record) const {
    const bool substitutes = split_.on_error == OnError::substitute;
    if (!record.bad || (substitutes && split_.split.mode == Mode::eval)) return;
    throw Error(
        ErrorKind::dataset,
        "unusable sample '" + record.key + "' (index " + std::to_string(record.planned.index) + ") in " +
            split_.split.dataset.title() + ": " + record.reason,
        substitutes
            ? "repair or remove the files: nothing usable was found to stand in"
            : "repair or remove the files (`penstock check --decode` names them all), or set on_error: substitute");
  }

  // Images besides the first are finished like it.
  void finish_further_images(Batch& batch) {
    for (size_t i = 0; i < extras_.size(); ++i) {
      if (extras_[i].kind != FieldKind::image) continue;
      std::vector<std::byte> images(batch.labels.size() * finisher_.bytes_per_sample());
      for (size_t row_index = 0; row_index < batch.labels.size(); ++row_index) {
        finisher_.run(reinterpret_cast<const uint8_t*>(batch.others[i].data()) + row_index * image_bytes_,
                      images.data() + row_index * finisher_.bytes_per_sample());
      }
      batch.others[i] = std::move(images);
    }
  }

  void mix(Batch& batch, const BatchPlan& plan, int64_t step, int64_t replica, DumpedBatch& dumped) {
    const auto epoch = static_cast<uint32_t>(request_.epoch);
    dumped.replica = replica;
    dumped.draws = pipeline_.draw_batch(split_.seed, epoch, step, replica);
    hash_.add_batch(batch_record(split_.name, epoch, step, replica, dumped.draws));
    if (request_.raw) return;
    const std::string problem =
        mix_batch(pipeline_, finish_, dumped.draws, batch.finished.data(), batch.labels, batch.soft.data(),
                  [&](size_t i) { return context_->source().key(plan[i].index); });
    if (!problem.empty()) throw Error(ErrorKind::dataset, problem, "give num_classes as many as there are");
    const FieldSpec field = delivered_fields(context_->fields(), pipeline_, finish_)[1];
    dumped.others.push_back({field, reinterpret_cast<std::byte*>(batch.soft.data()), false});
  }

  const std::shared_ptr<const SplitContext> context_;
  const InspectRequest& request_;
  const ResolvedSplit& split_;
  const Pipeline& pipeline_;
  const FinishSpec finish_;
  const Finisher finisher_;
  const std::span<const FieldSpec> extras_;
  const size_t image_bytes_;
  SampleMaker maker_;
  StreamHash hash_;
  std::vector<uint8_t> sheet_;
  int64_t on_sheet_ = 0;
  int64_t unusable_ = 0;
};

int inspect(const JobArguments& arguments, const InspectRequest& request) {
  const Job job = load_job(arguments.file, arguments.overrides);
  const ResolvedSplit split = with_sampler_file(resolve_split(job, request.split));
  if (split.split.sampler.program) {
    throw Error(ErrorKind::usage, "the order of split '" + split.name + "' is its program's, which is not here");
  }
  const auto context = SplitContext::open(split, posix_file_system(), {job.python}, loader_options(job).sources);
  const int64_t replicas = request.trainers > 0 ? request.trainers : replicas_of(job, job.roles.trainers);
  const SamplerNumbers numbers = read_sampler_file(split);
  check_numbers(split, numbers, context->source().size());
  const auto plan = epoch_plan(split, numbers, context->source().size(), replicas, request.epoch);

  if (request.first_step >= plan->steps()) {
    throw Error(ErrorKind::usage, "--first-step is " + std::to_string(request.first_step) +
                                      ", and an epoch of split '" + split.name + "' has " +
                                      std::to_string(plan->steps()) + " steps, counted from 0");
  }
  clear_dump(request.out);
  Inspector inspector(context, request);
  const int64_t end = std::min(plan->steps(), request.first_step + request.steps);
  for (int64_t step = request.first_step; step < end; ++step) {
    for (int64_t replica = 0; replica < plan->spec().num_replicas; ++replica) {
      inspector.add(plan->batch(step, replica), step, replica);
    }
  }
  inspector.write_sheet();
  std::fprintf(stderr, "%s: %lld samples of split '%s', epoch %lld, steps %lld to %lld of %lld, %lld trainers\n",
               request.out.c_str(), static_cast<long long>(inspector.hash().samples), split.name.c_str(),
               static_cast<long long>(request.epoch), static_cast<long long>(request.first_step),
               static_cast<long long>(end), static_cast<long long>(plan->steps()),
               static_cast<long long>(plan->spec().num_replicas));
  if (inspector.unusable() > 0) {
    std::fprintf(stderr, "  %lld unusable samples: see \"reason\" in manifest.jsonl\n",
                 static_cast<long long>(inspector.unusable()));
  }
  std::printf("order_hash %s\npixel_hash %s\n", inspector.hash().order.hex().c_str(),
              inspector.hash().pixel.hex().c_str());
  if (arithmetic_of(split.arithmetic) == Arithmetic::fast) std::printf("%s\n", kFastPromise);
  if (arithmetic_of(split.arithmetic) == Arithmetic::opencv)
    std::printf("arithmetic opencv, color %s\n", split.color.c_str());
  return 0;
}

}  // namespace

void add_inspect(CLI::App& app, Chosen& chosen) {
  auto arguments = std::make_shared<JobArguments>();
  auto request = std::make_shared<InspectRequest>();
  CLI::App* command =
      app.add_subcommand("inspect", "write the batches of a job as .npy, a manifest and a contact sheet");
  add_job_arguments(*command, *arguments);
  command->add_option("--split", request->split, "split")->capture_default_str();
  command->add_option("--epoch", request->epoch, "epoch")->capture_default_str()->check(not_negative());
  command->add_option("--steps", request->steps, "steps to write")->capture_default_str()->check(positive());
  command->add_option("--first-step", request->first_step, "the first of them")
      ->capture_default_str()
      ->check(not_negative());
  command->add_option("--trainers", request->trainers, "number of replicas; 0: the job's")
      ->capture_default_str()
      ->check(not_negative());
  command->add_option("--out", request->out, "folder to write to; an earlier dump in it is removed")
      ->required()
      ->type_name("DIR");
  command->add_flag("--raw", request->raw, "write the uint8 pixels before finishing");
  command->add_option("--sheet", request->sheet, "pictures on the contact sheet")
      ->capture_default_str()
      ->check(not_negative());
  command->callback([=, &chosen] { chosen.run = [=] { return inspect(*arguments, *request); }; });
}

}  // namespace penstock
