// `penstock inspect`: the batches a job would deliver, made here and written out, without trainers or loaders.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "launch/command.h"
#include "runtime/augment/finish.h"
#include "runtime/base/error.h"
#include "runtime/base/field_value.h"
#include "runtime/base/hash.h"
#include "runtime/config/job.h"
#include "runtime/config/sampler_file.h"
#include "runtime/loader/loader.h"
#include "runtime/loader/split_context.h"
#include "runtime/observe/batch_dump.h"
#include "runtime/observe/contact_sheet.h"
#include "runtime/trainer/epoch_plan.h"
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

int inspect(const JobArguments& arguments, const InspectRequest& request) {
  const Job job = load_job(arguments.file, arguments.overrides);
  const ResolvedSplit split = with_sampler_file(resolve_split(job, request.split));
  const auto context = SplitContext::open(split, posix_file_system(), {job.python}, loader_options(job).sources);
  if (split.split.sampler.program) {
    throw Error(ErrorKind::usage, "the order of split '" + split.name + "' is its program's, which is not here");
  }
  const int64_t dataset_size = context->source().size();
  const int64_t replicas = request.trainers > 0 ? request.trainers : replicas_of(job, job.roles.trainers);
  const SamplerNumbers numbers = read_sampler_file(split);
  check_numbers(split, numbers, dataset_size);
  const auto whole = epoch_plan(split, numbers, dataset_size, replicas, request.epoch);
  const Plan& plan = *whole;
  const PlanSpec& spec = plan.spec();

  SampleMaker maker(context);
  const Pipeline& pipeline = context->pipeline();
  FinishSpec finish = pipeline.finish();
  if (split.split.channels_last) finish.memory_format = MemoryFormat::channels_last;
  const Finisher finisher = finisher_of(pipeline, finish);
  const size_t image_bytes = context->fields()[0].bytes_per_sample();
  FieldSpec finished_field = context->fields()[0];
  finished_field.dtype = finish.dtype;

  const auto extras = extra_fields(context->fields());
  StreamHash total;
  std::vector<uint8_t> sheet;
  int64_t on_sheet = 0;
  int64_t bad = 0;
  const int64_t end = std::min(plan.steps(), request.first_step + request.steps);
  for (int64_t step = request.first_step; step < end; ++step) {
    for (int64_t replica = 0; replica < spec.num_replicas; ++replica) {
      const BatchPlan batch = plan.batch(step, replica);
      std::vector<uint8_t> raw(batch.size() * image_bytes);
      std::vector<std::byte> finished(request.raw ? 0 : batch.size() * finisher.bytes_per_sample());
      std::vector<int64_t> labels(batch.size());
      std::vector<std::vector<std::byte>> others;
      for (const FieldSpec& field : extras) others.emplace_back(batch.size() * field.bytes_per_sample());
      std::vector<SampleRecord> records;
      for (size_t slot = 0; slot < batch.size(); ++slot) {
        std::vector<std::byte*> fields = {reinterpret_cast<std::byte*>(raw.data() + slot * image_bytes),
                                          reinterpret_cast<std::byte*>(&labels[slot])};
        for (size_t i = 0; i < extras.size(); ++i) {
          fields.push_back(others[i].data() + slot * extras[i].bytes_per_sample());
        }
        SampleRecord record = maker.make(batch[slot], request.epoch, fields);
        const bool substitutes = split.on_error == OnError::substitute;
        if (record.bad && !(substitutes && split.split.mode == Mode::eval)) {
          throw Error(ErrorKind::dataset,
                      "unusable sample '" + record.key + "' (index " + std::to_string(record.planned.index) + ") in " +
                          split.split.dataset.title() + ": " + record.reason,
                      substitutes ? "repair or remove the files: nothing usable was found to stand in"
                                  : "repair or remove the file, or set on_error: substitute");
        }
        bad += record.reason.empty() ? 0 : 1;
        PlannedSample delivered = record.planned;
        delivered.index = record.index;
        std::vector<std::span<const std::byte>> content = {{fields[0], image_bytes}};
        for (size_t i = 0; i < extras.size(); ++i) content.push_back(stored_bytes(extras[i], fields[i + 2]));
        total.add(sample_record(split.name, static_cast<uint32_t>(request.epoch), delivered, record.draws, labels[slot]),
                  content);
        if (!request.raw) finisher.run(raw.data() + slot * image_bytes, finished.data() + slot * finisher.bytes_per_sample());
        if (on_sheet < request.sheet) {
          sheet.insert(sheet.end(), raw.begin() + static_cast<std::ptrdiff_t>(slot * image_bytes),
                       raw.begin() + static_cast<std::ptrdiff_t>((slot + 1) * image_bytes));
          ++on_sheet;
        }
        records.push_back(std::move(record));
      }
      DumpedBatch dumped;
      dumped.trainer = static_cast<int32_t>(replica);
      dumped.step = step;
      dumped.epoch = request.epoch;
      dumped.split = split.name;
      dumped.records = &records;
      dumped.labels = &labels;
      dumped.pipeline = &pipeline;
      dumped.dataset_folder = split.split.dataset.title();
      dumped.images = request.raw ? image_batch_view(raw.data(), context->fields()[0], std::ssize(batch), false)
                                  : image_batch_view(finished.data(), finished_field, std::ssize(batch),
                                                     split.split.channels_last);
      for (size_t i = 0; i < extras.size(); ++i) {
        FieldSpec field = extras[i];
        if (field.kind == FieldKind::image && !request.raw) {
          std::vector<std::byte> images(batch.size() * finisher.bytes_per_sample());
          for (size_t slot = 0; slot < batch.size(); ++slot) {
            finisher.run(reinterpret_cast<const uint8_t*>(others[i].data()) + slot * image_bytes,
                         images.data() + slot * finisher.bytes_per_sample());
          }
          others[i] = std::move(images);
          field.dtype = finish.dtype;
        }
        const bool channels_last = field.kind == FieldKind::image && !request.raw && split.split.channels_last;
        dumped.others.push_back({field, others[i].data(), channels_last});
      }
      std::vector<float> soft(batch.size() * static_cast<size_t>(pipeline.soft_classes()));
      if (!soft.empty()) {
        const auto epoch = static_cast<uint32_t>(request.epoch);
        dumped.replica = replica;
        dumped.draws = pipeline.draw_batch(split.seed, epoch, step, replica);
        total.add_batch(batch_record(split.name, epoch, step, replica, dumped.draws));
        if (!request.raw) {
          const std::string problem = mix_batch(pipeline, finish, dumped.draws, finished.data(), labels, soft.data(),
                                                [&](size_t i) { return context->source().key(batch[i].index); });
          if (!problem.empty()) throw Error(ErrorKind::dataset, problem, "give num_classes as many as there are");
          const FieldSpec field = delivered_fields(context->fields(), pipeline, finish)[1];
          dumped.others.push_back({field, reinterpret_cast<std::byte*>(soft.data()), false});
        }
      }
      write_batch(request.out, dumped);
    }
  }
  if (on_sheet > 0) {
    const FieldSpec one{"image", FieldKind::image, DType::uint8, {3, pipeline.out_height(), pipeline.out_width()}};
    write_contact_sheet(request.out + "/contact_sheet.png",
                        image_batch_view(sheet.data(), one, on_sheet * pipeline.views(), false));
  }
  std::fprintf(stderr, "%s: %lld samples of split '%s', epoch %lld, steps %lld to %lld of %lld, %lld trainers\n",
               request.out.c_str(), static_cast<long long>(total.samples), split.name.c_str(),
               static_cast<long long>(request.epoch), static_cast<long long>(request.first_step),
               static_cast<long long>(end), static_cast<long long>(plan.steps()), static_cast<long long>(spec.num_replicas));
  if (bad > 0) std::fprintf(stderr, "  %lld unusable samples: see \"reason\" in manifest.jsonl\n", static_cast<long long>(bad));
  std::printf("order_hash %s\npixel_hash %s\n", total.order.hex().c_str(), total.pixel.hex().c_str());
  return 0;
}

}  // namespace

void add_inspect(CLI::App& app, Chosen& chosen) {
  auto arguments = std::make_shared<JobArguments>();
  auto request = std::make_shared<InspectRequest>();
  CLI::App* command = app.add_subcommand("inspect", "write the batches of a job as .npy, a manifest and a contact sheet");
  add_job_arguments(*command, *arguments);
  command->add_option("--split", request->split, "split")->capture_default_str();
  command->add_option("--epoch", request->epoch, "epoch")->capture_default_str()->check(not_negative());
  command->add_option("--steps", request->steps, "steps to write")->capture_default_str()->check(positive());
  command->add_option("--first-step", request->first_step, "the first of them")
      ->capture_default_str()
      ->check(not_negative());
  command->add_option("--trainers", request->trainers, "number of replicas; 0: the job's")->capture_default_str();
  command->add_option("--out", request->out, "folder to write to")->required()->type_name("DIR");
  command->add_flag("--raw", request->raw, "write the uint8 pixels before finishing");
  command->add_option("--sheet", request->sheet, "pictures on the contact sheet")->capture_default_str();
  command->callback([=, &chosen] { chosen.run = [=] { return inspect(*arguments, *request); }; });
}

}  // namespace penstock
