#include "runtime/sample/split_context.h"

#include <utility>

#include "runtime/base/error.h"
#include "runtime/sample/split_fields.h"

namespace penstock {
namespace {

// One pool for the dataset and the functions of a split; nothing where neither is in Python.
std::shared_ptr<const PythonWorkers> make_workers(const ResolvedSplit& split, const Variants& variants,
                                                  const PythonHost& python) {
  const DatasetSpec& dataset = split.split.dataset;
  const std::vector<std::string> functions = variants.functions();
  if (!dataset.is_python() && functions.empty()) return nullptr;
  const std::string title = dataset.is_python() ? (dataset.pickle.empty() ? "the dataset " : "") + dataset.title() +
                                                      " of split '" + split.name + "'"
                                                : "the Python transforms of split '" + split.name + "'";
  return std::make_shared<PythonWorkers>(python, python_config(dataset, functions), title);
}

}  // namespace

SplitContext::SplitContext(const ResolvedSplit& split, const PythonHost& python)
    : split_(split),
      variants_(make_variants(split)),
      workers_(make_workers(split, variants_, python)),
      fields_(raw_fields(pipeline())),
      only_here_(python.only_here) {}

std::shared_ptr<const SplitContext> SplitContext::open(const ResolvedSplit& split, FileSystem& files,
                                                       const PythonHost& python, const SourceBudget& budget,
                                                       std::shared_ptr<LearnedMemory> learned,
                                                       std::shared_ptr<LargeMemory> large) {
  std::shared_ptr<SplitContext> context(new SplitContext(split, python));
  context->large_ = std::move(large);
  if (learned) context->learned_ = std::make_unique<LearnedIndexes>(std::move(learned));
  context->adopt(make_source(split.split.dataset, split.limits, files, context->workers_, budget));
  return context;
}

std::shared_ptr<const SplitContext> SplitContext::with_source(const ResolvedSplit& split,
                                                              std::unique_ptr<Source> source,
                                                              const PythonHost& python) {
  std::shared_ptr<SplitContext> context(new SplitContext(split, python));
  context->adopt(std::move(source));
  return context;
}

void SplitContext::adopt(std::unique_ptr<Source> source) {
  source_ = std::move(source);
  if (pipeline().soft_classes() > 0 && !source_->labelled()) {
    throw Error(
        ErrorKind::config,
        "split '" + split_.name + "': MixUp and CutMix mix labels, and " + split_.split.dataset.title() + " has none",
        "say with dataset.label where they are, or leave MixUp and CutMix out");
  }
  const auto extras = extra_fields(source_->fields());
  fields_.insert(fields_.end(), extras.begin(), extras.end());
  const std::vector<int64_t> pictures = fields_[0].shape;
  for (FieldSpec& field : fields_) {
    if (!field.fixed_size()) field.max_bytes = split_.limits.max_field_bytes;
    if (field.kind == FieldKind::image || field.kind == FieldKind::mask) field.shape = pictures;
    if (field.kind == FieldKind::mask) field.shape.erase(field.shape.end() - 3);  // one plane
  }
}

std::shared_ptr<const SplitContext> SplitContext::without_dataset(const ResolvedSplit& split, const PythonHost& python,
                                                                  std::shared_ptr<LargeMemory> large) {
  ResolvedSplit pictures = split;
  pictures.split.dataset.python.clear();
  pictures.split.dataset.pickle.clear();
  std::shared_ptr<SplitContext> context(new SplitContext(pictures, python));
  context->large_ = std::move(large);
  return context;
}

}  // namespace penstock
