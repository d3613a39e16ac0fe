#include "runtime/client/batch_state.h"

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/base/field_value.h"
#include "runtime/client/data_loader.h"
#include "runtime/client/gpu_images.h"
#include "runtime/pixels/finish.h"
#include "runtime/report/batch_dump.h"

namespace penstock {
namespace {

std::string why_no_labels(const ResolvedSplit& split) {
  const DatasetSpec& dataset = split.split.dataset;
  std::string why = "split '" + split.name + "' has no labels";
  if (dataset.is_python()) {
    why += ": the samples of " + dataset.title() + " have no 'label'";
  } else if (!dataset.is_paired()) {
    why += ": nothing in " + dataset.title() + " is called '" +
           (dataset.tar.empty() ? dataset.tfrecord.empty() ? "label" : "image/class/label" : "cls") +
           "', and dataset.label names nothing else";
  }
  return why;
}

}  // namespace

BatchForm batch_form(const ResolvedSplit& split, const ClientOpened& opened) {
  BatchForm form;
  form.fields = opened.fields;
  form.layout = batch_buffer_layout(opened.fields, opened.batch_size);
  form.channels_last = opened.channels_last;
  form.arithmetic = arithmetic_of(split.arithmetic);
  for (const FieldSpec& field : opened.fields) {
    if (opened.labelled || field.name != kLabelField) form.shown.push_back(field.name);
  }
  form.no_labels = why_no_labels(split);
  return form;
}

int64_t Batch::size() const {
  return state_->lent.info.samples;
}
int64_t Batch::epoch() const {
  return state_->lent.info.epoch;
}
int64_t Batch::step() const {
  return state_->lent.info.step;
}
Arithmetic Batch::arithmetic() const {
  return state_->form->arithmetic;
}
Batch BatchState::batch_of(std::shared_ptr<BatchState> state) {
  Batch batch;
  batch.state_ = std::move(state);
  return batch;
}
const std::shared_ptr<BatchState>& BatchState::of(const Batch& batch) {
  return batch.state_;
}

std::vector<GpuImages> OfferedGpuMemory::images_of(const Batch& batch) {
  std::vector<GpuImages> images;
  const std::shared_ptr<BatchState>& state = BatchState::of(batch);
  for (const LentBufferRange& buffer_range : state->lent.buffer_ranges) {
    images.push_back({buffer_range.memory, buffer_range.place.first, buffer_range.place.samples, buffer_range.place.at,
                      buffer_range.place.bytes, state});
  }
  std::sort(images.begin(), images.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return images;
}
int64_t Batch::held() const {
  return state_->lent.pool.use_count() - 1;  // one is the session's
}
int64_t Batch::num_valid() const {
  return state_->lent.info.num_valid;
}
const int64_t* Batch::indices() const {
  return reinterpret_cast<const int64_t*>(state_->data() + state_->form->layout.indices);
}
const uint8_t* Batch::valid() const {
  return reinterpret_cast<const uint8_t*>(state_->data() + state_->form->layout.valid);
}
const uint8_t* Batch::substituted() const {
  return reinterpret_cast<const uint8_t*>(state_->data() + state_->form->layout.substituted);
}
std::vector<std::string> Batch::fields() const {
  return state_->form->shown;
}

size_t place_of(const BatchForm& form, const std::string& name) {
  const FieldTable& table = form.fields;
  const std::vector<std::string>& shown = form.shown;
  if (std::find(shown.begin(), shown.end(), name) != shown.end()) {
    for (size_t i = 0; i < table.size(); ++i) {
      if (table[i].name == name) return i;
    }
  }
  std::string known;
  for (const std::string& one : shown) known += (known.empty() ? "'" : ", '") + one + "'";
  if (name == kLabelField) {
    throw Error(ErrorKind::usage, form.no_labels, "its batches have " + known);
  }
  throw Error(ErrorKind::usage, "a batch has no field '" + name + "'", "its fields are " + known);
}

TensorView Batch::operator[](const std::string& name) const {
  const size_t place = place_of(name);
  const FieldSpec& field = state_->form->fields[place];
  std::byte* data = state_->data() + state_->form->layout.fields[place];
  if (!field.fixed_size()) {
    throw Error(ErrorKind::usage, "field '" + name + "' has values of varying length, and no array",
                "ask for value(\"" + name + "\", i)");
  }
  if (field.kind == FieldKind::image) return image_batch_view(data, field, size(), state_->form->channels_last);
  return field_batch_view(data, field, size());
}

std::string_view Batch::value(const std::string& name, int64_t i) const {
  const size_t place = place_of(name);
  const FieldSpec& field = state_->form->fields[place];
  if (field.fixed_size()) {
    throw Error(ErrorKind::usage, "field '" + name + "' is an array", "ask for batch[\"" + name + "\"]");
  }
  if (i < 0 || i >= size()) {
    throw Error(ErrorKind::usage,
                "a batch of " + std::to_string(size()) + " samples has no sample " + std::to_string(i));
  }
  const std::byte* rooms = state_->data() + state_->form->layout.fields[place];
  return as_text(varying_value(field, rooms + static_cast<size_t>(i) * field.bytes_per_sample()));
}

size_t Batch::place_of(const std::string& name) const {
  return penstock::place_of(*state_->form, name);
}
FieldKind Batch::kind(const std::string& name) const {
  return kind_of(*state_->form, name);
}

}  // namespace penstock
