#include "runtime/receiver/receiver_split.h"

#include <string>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/coordinator/epoch_plan.h"
#include "runtime/sample/split_fields.h"

namespace penstock {

ReceiverSplit split_of(const ClientOpen& message) {
  ReceiverSplit split;
  split.fingerprint = fingerprint_of(message.json);
  split.resolved = split_from_json(message.json);
  split.variants.emplace(make_variants(split.resolved));
  split.raw_fields = raw_fields(split.pipeline());
  split.finish = wanted_finish(split.pipeline().finish(), split.resolved.split.channels_last, message);
  if (split.pipeline().mixing_needs_float() && split.finish.dtype == DType::uint8) {
    throw Error(ErrorKind::config, "MixUp in split '" + split.resolved.name + "' needs images of a float dtype",
                "ask for another dtype than uint8");
  }
  split.finisher.emplace(finisher_of(split.pipeline(), split.finish));  // also what refuses a dtype
  split.longest_wait_ns = message.longest_wait_ns;
  split.raw_images = message.raw_images && !split.pipeline().mixing_needs_float();
  split.gpu_images = message.gpu_images && split.raw_images && split.pipeline().soft_classes() == 0;
  split.delivered = split.raw_images ? FinishSpec{} : split.finish;
  if (split.raw_images) split.finisher.emplace(finisher_of(split.pipeline(), split.delivered));
  split.fields = delivered_fields(split.raw_fields, split.pipeline(), split.delivered);
  return split;
}

ClientOpened complete(ReceiverSplit& split, const SplitOpened& opened, int32_t replica, int32_t num_replicas) {
  split.opened = true;
  split.fingerprint = opened.fingerprint;
  split.raw_fields.insert(split.raw_fields.end(), opened.extra_fields.begin(), opened.extra_fields.end());
  split.fields = delivered_fields(split.raw_fields, split.pipeline(), split.delivered);
  split.shape = plan_spec(split.resolved, opened.dataset_size, num_replicas);
  split.plan = plan_shape(split.shape);
  ClientOpened answer;
  answer.split_id = split.id;
  answer.dataset_size = opened.dataset_size;
  answer.steps = split.plan.steps;
  answer.samples_per_replica = split.plan.samples_per_replica;
  answer.num_samples = valid_samples(split.shape, replica);
  answer.batch_size = split.shape.batch_size;
  answer.replica = replica;
  answer.num_replicas = num_replicas;
  answer.dataset_fingerprint = opened.dataset_fingerprint;
  answer.classes = opened.classes;
  answer.labelled = opened.labelled;
  answer.fields = split.fields;
  answer.channels_last = split.delivered.memory_format == MemoryFormat::channels_last;
  answer.raw_images = split.raw_images;
  return answer;
}

PlanShape plan_of(const ReceiverSplit& split, const ClientIterate& iteration) {
  const std::string who = "split '" + split.resolved.name + "'";
  if (!split.resolved.split.sampler.program) {
    if (iteration.order.empty()) return split.plan;
    throw Error(ErrorKind::usage, who + " has a sampler of its own, and the iteration brought an order");
  }
  if (iteration.order.empty()) {
    throw Error(ErrorKind::usage, "no order was given for an iteration over " + who + ", whose order is the program's",
                "make it with penstock.DataLoader(..., sampler=...), with a sampler that gives at least one index");
  }
  return plan_shape(program_spec(split.resolved, std::ssize(iteration.order)));
}

}  // namespace penstock
