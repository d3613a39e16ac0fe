// Draws, pixels and finished tensors of a pipeline, for the Python tests. Reads one JSON request from standard input:
//
//   {"mode": "draws",  "pipeline": [{"RandomResizedCrop": {"size": 224}}], "width": 500, "height": 375,
//    "count": 1000, "seed": 0}                      -> a line of draws a sample: [[position, [values]], ...]
//   {"mode": "pixels", "pipeline": [...], "files": [...], "seed": 0, "epoch": 0, "out": "pixels.bin"}
//                                                   -> the same lines; uint8 CHW, one sample after the other, in `out`
//                                                      with "role": "mask" the files are masks (class ids, three times)
//   {"mode": "finish", "pipeline": [...], "channels_last": false, "in": "chw.bin", "out": "tensor.bin"}
//                                                   -> the finishing pass over samples of the pipeline's size
//   {"mode": "batch_draws", "pipeline": [...], "count": 1000, "seed": 0, "epoch": 0, "replica": 0}
//                                                   -> a line of draws for each step
//   {"mode": "mix", "pipeline": [...], "channels_last": false, "in": "tensor.bin", "labels": [...], "step": 0,
//    "out": "mixed.bin"}                            -> a line of draws; the finished batch mixed, then its soft labels
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/transforms/pipeline.h"

namespace {

using nlohmann::json;

std::vector<penstock::TransformSpec> transforms_of(const json& list);

penstock::ParamValue param_of(const json& value) {
  if (value.is_null()) return {};
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number()) return value.get<double>();
  if (value.is_string()) return value.get<std::string>();
  if (!value.empty() && value.front().is_object()) return transforms_of(value);
  if (!value.empty() && value.front().is_string()) return value.get<std::vector<std::string>>();
  return value.get<std::vector<double>>();
}

std::vector<penstock::TransformSpec> transforms_of(const json& list) {
  std::vector<penstock::TransformSpec> specs;
  for (const json& element : list) {
    for (const auto& [name, params] : element.items()) {
      penstock::TransformSpec spec{name, {}};
      for (const auto& [key, value] : params.items()) spec.params[key] = param_of(value);
      specs.push_back(spec);
    }
  }
  return specs;
}

penstock::Pipeline pipeline_of(const json& request) {
  return penstock::Pipeline(transforms_of(request.at("pipeline")),
                            {.arithmetic = penstock::arithmetic_of(request.value("arithmetic", "exact")),
                             .bgr = request.value("color", "rgb") == "bgr",
                             .turns = request.value("exif", true)});
}

std::vector<char> read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot open " + path);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void write_file(const std::string& path, const std::vector<uint8_t>& bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!out.flush()) throw std::runtime_error("cannot write " + path);
}

void print(const penstock::Draws& draws) {
  json line = json::array();
  for (const penstock::TransformDraw& draw : draws) line.push_back({draw.position, draw.values});
  std::cout << line << "\n";
}

penstock::DrawKey key_of(const json& request, uint64_t index) {
  return {.seed = request.value("seed", uint64_t{0}), .epoch = request.value("epoch", 0U), .index = index};
}

void run(const json& request) {
  const penstock::Pipeline pipeline = pipeline_of(request);
  const std::string mode = request.at("mode");
  const size_t pixels = static_cast<size_t>(pipeline.out_width()) * static_cast<size_t>(pipeline.out_height()) * 3 *
                        static_cast<size_t>(pipeline.views());
  if (mode == "draws") {
    const penstock::ImageHeader header{penstock::ImageFormat::jpeg, request.at("width"), request.at("height")};
    for (uint64_t i = 0; i < request.at("count").get<uint64_t>(); ++i) print(pipeline.draw(key_of(request, i), header));
    return;
  }
  if (mode == "finish") {
    const std::vector<char> in = read_file(request.at("in"));
    penstock::FinishSpec spec = pipeline.finish();
    if (request.value("channels_last", false)) spec.memory_format = penstock::MemoryFormat::channels_last;
    const penstock::Finisher finisher = penstock::finisher_of(pipeline, spec);
    std::vector<uint8_t> out(in.size() / pixels * finisher.bytes_per_sample());
    for (size_t i = 0; i < in.size() / pixels; ++i) {
      finisher.run(reinterpret_cast<const uint8_t*>(in.data()) + i * pixels,
                   out.data() + i * finisher.bytes_per_sample());
    }
    write_file(request.at("out"), out);
    return;
  }
  const auto draw_batch = [&](int64_t step) {
    return pipeline.draw_batch(request.value("seed", uint64_t{0}), request.value("epoch", 0U), step,
                               request.value("replica", int64_t{0}));
  };
  if (mode == "batch_draws") {
    for (int64_t step = 0; step < request.at("count").get<int64_t>(); ++step) print(draw_batch(step));
    return;
  }
  if (mode == "mix") {
    std::vector<char> images = read_file(request.at("in"));
    penstock::FinishSpec spec = pipeline.finish();
    if (request.value("channels_last", false)) spec.memory_format = penstock::MemoryFormat::channels_last;
    const auto labels = request.at("labels").get<std::vector<int64_t>>();
    const auto classes = static_cast<size_t>(pipeline.soft_classes());
    std::vector<float> soft(labels.size() * classes);
    for (size_t i = 0; i < labels.size(); ++i) soft[i * classes + static_cast<size_t>(labels[i])] = 1;
    const penstock::Draws draws = draw_batch(request.at("step"));
    pipeline.mix({images.data(),
                  spec.dtype,
                  spec.memory_format,
                  static_cast<int64_t>(labels.size()),
                  pipeline.views(),
                  {pipeline.out_width(), pipeline.out_height()},
                  soft.data(),
                  pipeline.soft_classes()},
                 draws);
    print(draws);
    std::vector<uint8_t> out(images.begin(), images.end());
    const auto* bytes = reinterpret_cast<const uint8_t*>(soft.data());
    out.insert(out.end(), bytes, bytes + soft.size() * sizeof(float));
    write_file(request.at("out"), out);
    return;
  }
  const penstock::DecodeLimits limits;
  penstock::Scratch scratch(limits);
  std::vector<uint8_t> all;
  uint64_t index = 0;
  const auto role = request.value("role", "image") == "mask" ? penstock::ImageRole::mask : penstock::ImageRole::image;
  for (const std::string path : request.at("files")) {
    const std::vector<char> bytes = read_file(path);
    const penstock::EncodedView view = std::as_bytes(std::span(bytes));
    penstock::ImageHeader header;
    penstock::SampleStatus status = penstock::read_header(view, limits, header, pipeline.header_options());
    if (!status.ok()) throw std::runtime_error(path + ": " + status.reason);
    const penstock::Draws draws = pipeline.draw(key_of(request, index++), header);
    all.resize(all.size() + pixels);
    status = pipeline.apply({view, {}, nullptr}, header, draws, std::span(all).last(pixels), scratch, {}, role);
    if (!status.ok()) throw std::runtime_error(path + ": " + status.reason);
    print(draws);
  }
  write_file(request.at("out"), all);
}

}  // namespace

int main() {
  try {
    run(json::parse(std::cin));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "pipeline_tool: %s\n", error.what());
    return 1;
  }
  return 0;
}
