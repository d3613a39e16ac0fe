// The C interface over penstock::Preprocessor. No exception crosses it: guarded() turns each into a result and a text.
#include "bindings/c/penstock.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/gpu/gpu_finisher.h"
#include "runtime/gpu/gpus.h"
#include "runtime/serving/preprocessor.h"

namespace {

using penstock::Error;
using penstock::ErrorKind;

thread_local std::string last_error;

penstock_result failed(penstock_result result, const char* text) noexcept {
  try {
    last_error = text;
  } catch (...) {
    last_error.clear();
  }
  return result;
}

template <class Work>
penstock_result guarded(const Work& work) noexcept {
  try {
    work();
    return PENSTOCK_OK;
  } catch (const Error& error) {
    const bool known = error.kind() != ErrorKind::peer_lost;  // nobody else is there to be lost
    return failed(known ? static_cast<penstock_result>(error.exit_code()) : PENSTOCK_RUNTIME, error.what());
  } catch (const std::bad_alloc&) {
    return failed(PENSTOCK_RUNTIME, "out of memory");
  } catch (const std::exception& error) {
    return failed(PENSTOCK_RUNTIME, error.what());
  }
}

void require(const void* pointer, const char* name) {
  if (pointer == nullptr) throw Error(ErrorKind::usage, std::string(name) + " is a null pointer");
}

penstock_options complete(const penstock_options* given) {
  penstock_options options = PENSTOCK_OPTIONS;
  if (given == nullptr) return options;
  if (given->size < sizeof(size_t) || given->size > 4096) {
    throw Error(ErrorKind::usage, "penstock_options has size " + std::to_string(given->size),
                "begin with PENSTOCK_OPTIONS");
  }
  std::memcpy(&options, given, std::min(given->size, sizeof options));  // of an older program: as far as it knew
  options.size = sizeof options;
  return options;
}

// A GPU's part: images come as bytes from the preprocessor, and are finished there.
struct OnGpu {
  explicit OnGpu(const penstock::Preprocessor& preprocess, int number)
      : finisher(opened(number), preprocess.finisher()) {}

  static std::unique_ptr<penstock::Gpu> opened(int number) {
    try {
      return penstock::open_trainers_gpu(number);
    } catch (const Error& error) {
      throw Error(error.kind(), error.message(), "say gpu = -1 for output in host memory");
    }
  }

  // The images of one call. Where the GPU has failed before, nothing can be said of what it is still doing.
  void finish(const std::vector<std::byte>& raw, size_t count, void* out) {
    const std::scoped_lock lock(mutex);
    if (!failure.empty())
      throw Error(ErrorKind::runtime, "the GPU has failed before: " + failure, "open the pipeline anew");
    try {
      finisher.finish(reinterpret_cast<const uint8_t*>(raw.data()), static_cast<int64_t>(count), out);
      finisher.wait();
    } catch (const std::exception& error) {
      failure = error.what();
      throw;
    }
  }

  std::mutex mutex;  // one call at a time
  penstock::GpuFinisher finisher;
  std::string failure;
};

void tell(const std::vector<std::string>& reasons, const penstock_image* images, penstock_status* statuses) {
  for (size_t i = 0; i < reasons.size(); ++i) {
    const std::string& reason = reasons[i];
    if (statuses == nullptr) {
      if (reason.empty()) continue;
      const std::string index = images[i].index < 0 ? "" : " (index " + std::to_string(images[i].index) + ")";
      throw Error(ErrorKind::dataset, "unusable image " + std::to_string(i) + index + ": " + reason,
                  "send a whole image file within the job's limits, or ask for statuses");
    }
    penstock_status& status = statuses[i];
    status.usable = reason.empty() ? 1 : 0;
    const size_t length = std::min(reason.size(), sizeof status.reason - 1);
    std::memcpy(status.reason, reason.data(), length);
    status.reason[length] = '\0';
  }
}

}  // namespace

struct penstock_pipeline {
  penstock_pipeline(penstock::Preprocessor made, int gpu) : preprocess(std::move(made)) {
    if (gpu >= 0) on_gpu.emplace(preprocess, gpu);
  }

  size_t bytes_per_image() const { return preprocess.finisher().bytes_per_sample(); }

  penstock::Preprocessor preprocess;
  mutable std::optional<OnGpu> on_gpu;
};

namespace {

// Whatever happens next, nobody closes what was never opened.
void clear(penstock_pipeline** pipeline) {
  require(pipeline, "pipeline");
  *pipeline = nullptr;
}

template <class Open>
void open(const penstock_options* given, penstock_pipeline** pipeline, const Open& make) {
  const penstock_options said = complete(given);
  penstock::PreprocessorOptions options;
  if (said.override_count > 0) require(said.overrides, "overrides");
  for (size_t i = 0; i < said.override_count; ++i) {
    require(said.overrides[i], "one of the overrides");
    options.overrides.emplace_back(said.overrides[i]);
  }
  if (said.gpu < -1) {
    throw Error(ErrorKind::usage, "gpu is " + std::to_string(said.gpu), "-1 is host memory, 0 the first GPU");
  }
  options.threads = said.threads;
  options.raw_images = said.gpu >= 0;
  *pipeline = std::make_unique<penstock_pipeline>(make(options), said.gpu).release();
}

std::vector<penstock::EncodedImage> encoded(const penstock_image* images, size_t count) {
  std::vector<penstock::EncodedImage> out(count);
  for (size_t i = 0; i < count; ++i) {
    if (images[i].size > 0) require(images[i].bytes, "the bytes of an image");
    out[i].bytes = {static_cast<const std::byte*>(images[i].bytes), images[i].size};
    if (images[i].index != -1) out[i].index = images[i].index;
    out[i].epoch = images[i].epoch;
    out[i].occurrence = images[i].occurrence;
  }
  return out;
}

}  // namespace

penstock_result penstock_open(const char* job_file, const char* split, const penstock_options* options,
                              penstock_pipeline** pipeline) {
  return guarded([&] {
    clear(pipeline);
    require(job_file, "job_file");
    require(split, "split");
    open(options, pipeline, [&](const auto& said) { return penstock::Preprocessor(job_file, split, said); });
  });
}

penstock_result penstock_open_text(const char* job_text, const char* name, const char* split,
                                   const penstock_options* options, penstock_pipeline** pipeline) {
  return guarded([&] {
    clear(pipeline);
    require(job_text, "job_text");
    require(name, "name");
    require(split, "split");
    open(options, pipeline,
         [&](const auto& said) { return penstock::Preprocessor::from_text(job_text, name, split, said); });
  });
}

void penstock_close(penstock_pipeline* pipeline) {
  delete pipeline;
}

penstock_result penstock_describe(const penstock_pipeline* pipeline, penstock_output* output) {
  return guarded([&] {
    require(pipeline, "pipeline");
    require(output, "output");
    if (output->size < sizeof(size_t) || output->size > 4096) {
      throw Error(ErrorKind::usage, "penstock_output has size " + std::to_string(output->size),
                  "begin with PENSTOCK_OUTPUT");
    }
    const penstock::Finisher& finisher = pipeline->preprocess.finisher();
    penstock_output said{};
    said.size = output->size;
    said.views = static_cast<int32_t>(finisher.images_per_sample());
    said.channels = 3;
    said.height = pipeline->preprocess.height();
    said.width = pipeline->preprocess.width();
    said.dtype = static_cast<int32_t>(finisher.spec().dtype);
    said.channels_last = finisher.spec().memory_format == penstock::MemoryFormat::channels_last ? 1 : 0;
    said.bytes_per_image = pipeline->bytes_per_image();
    std::memcpy(output, &said, std::min(output->size, sizeof said));
  });
}

penstock_result penstock_run(penstock_pipeline* pipeline, const penstock_image* images, size_t count, void* out,
                             size_t out_bytes, penstock_status* statuses) {
  return guarded([&] {
    require(pipeline, "pipeline");
    if (count == 0) return;
    require(images, "images");
    require(out, "out");
    const size_t each = pipeline->bytes_per_image();
    if (out_bytes / each < count) {
      throw Error(ErrorKind::usage, std::to_string(out_bytes) + " bytes have no room for " + std::to_string(count) +
                                        " images of " + std::to_string(each) + " bytes");
    }
    if (!pipeline->on_gpu) {
      tell(pipeline->preprocess.run_into(encoded(images, count), {static_cast<std::byte*>(out), out_bytes}), images,
           statuses);
      return;
    }
    std::vector<std::byte> raw(count * pipeline->preprocess.bytes_per_image());
    const auto reasons = pipeline->preprocess.run_into(encoded(images, count), raw);
    pipeline->on_gpu->finish(raw, count, out);
    tell(reasons, images, statuses);
  });
}

penstock_result penstock_fingerprint(const penstock_pipeline* pipeline, char digits[33]) {
  return guarded([&] {
    require(pipeline, "pipeline");
    require(digits, "digits");
    const std::string hex = pipeline->preprocess.fingerprint();
    std::memcpy(digits, hex.c_str(), std::min<size_t>(hex.size(), 32) + 1);
  });
}

penstock_result penstock_check(const penstock_pipeline* pipeline, const char* state) {
  return guarded([&] {
    require(pipeline, "pipeline");
    require(state, "state");
    pipeline->preprocess.check(state);
  });
}

const char* penstock_last_error(void) {
  return last_error.c_str();
}

const char* penstock_version(void) {
  return PENSTOCK_VERSION;
}
