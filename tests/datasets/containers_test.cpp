// The smaller parsers: patterns, CSV and lists, idx and CIFAR, MDS, TFRecord, .npy; and the table that they all fill.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <cstring>
#include <filesystem>
#include <random>

#include "runtime/datasets/containers.h"
#include "runtime/datasets/csv_reader.h"
#include "runtime/datasets/file_pattern.h"
#include "runtime/datasets/index_file.h"
#include "runtime/datasets/mds_shards.h"
#include "runtime/datasets/npy_header.h"
#include "runtime/datasets/pixel_files.h"
#include "runtime/datasets/source.h"
#include "runtime/datasets/tfrecord.h"
#include "tests/support/sanitized.h"
#include "tests/support/tar_writer.h"
#include "tests/support/temporary_folder.h"

using namespace penstock;

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::unique_ptr<Source> open(const DatasetSpec& spec, SourceBudget budget = {}) {
  return make_source(spec, DecodeLimits{}, posix_file_system(), nullptr, budget);
}

std::string error_of(const DatasetSpec& spec, SourceBudget budget = {}) {
  try {
    (void)open(spec, budget);
    return "no error";
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::dataset);
    return error.what();
  }
}

SourceSample load(const Source& source, int64_t index) {
  SourceSample sample;
  DrawKey key;
  key.index = static_cast<uint64_t>(index);
  REQUIRE(source.load(key, sample).ok());
  return sample;
}

template <class T>
std::string raw(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

std::string gzipped(const std::string& text) {
  z_stream stream{};
  REQUIRE(::deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(text.size() + 1000, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  REQUIRE(::deflate(&stream, Z_FINISH) == Z_STREAM_END);
  out.resize(stream.total_out);
  ::deflateEnd(&stream);
  return out;
}

}  // namespace

TEST_CASE("braces stand for what they stand for in a shell") {
  using Names = std::vector<std::string>;
  CHECK(expand_braces("a.tar") == Names{"a.tar"});
  CHECK(expand_braces("a-{08..11}.tar") == Names{"a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"});
  CHECK(expand_braces("{2..0}{a,b}") == Names{"2a", "2b", "1a", "1b", "0a", "0b"});
  CHECK(expand_braces("{0..8..4}") == Names{"0", "4", "8"});
  CHECK(expand_braces("{-1..01}") == Names{"-1", "00", "01"});
  CHECK(expand_braces("x{,.gz}") == Names{"x", "x.gz"});
  for (const char* wrong : {"{0..9", "0..9}", "{a..c}", "{0..}", "{}", "{5}", "{{0..1}..2}", "{0..9999999}",
                            "{0..999}{0..9999}", "{0..9..0}", "{0..99999999999999999999}"}) {
    INFO(wrong);
    CHECK_THROWS_AS((void)expand_braces(wrong), Error);
  }
  TemporaryFolder folder;
  for (const char* name : {"b-1.tar", "a-1.tar", "a-2.tar", ".a-3.tar", "a-1.txt"}) folder.write(name, "");
  CHECK(find_files(folder.path("a-*.tar"), posix_file_system()) ==
        Names{folder.path("a-1.tar"), folder.path("a-2.tar")});
  CHECK(find_files(folder.path("{b,a}-?.tar"), posix_file_system()).front() == folder.path("b-1.tar"));
  CHECK_THROWS_WITH_AS((void)find_files(folder.path("c*"), posix_file_system()),
                       doctest::Contains("no file of that name"), Error);
  CHECK_THROWS_AS((void)find_files(folder.path("*/a"), posix_file_system()), Error);
  for (const char* name : {"run[1]-a.tar", "run1-a.tar", "x\\1.tar"}) folder.write(name, "");
  CHECK(find_files(folder.path("run[1]-*.tar"), posix_file_system()) == Names{folder.path("run[1]-a.tar")});
  CHECK(find_files(folder.path("x\\*"), posix_file_system()) == Names{folder.path("x\\1.tar")});
}

TEST_CASE("CSV by RFC 4180") {
  const auto rows = [](std::string_view text) {
    CsvReader reader(text);
    std::string out;
    std::vector<std::string> cells;
    while (reader.next(cells)) {
      out += std::to_string(reader.line()) + ":";
      for (const std::string& cell : cells) out += "[" + cell + "]";
      out += " ";
    }
    return out + reader.why();
  };
  CHECK(rows("a,b\n1,2\n") == "1:[a][b] 2:[1][2] ");
  CHECK(rows("\xEF\xBB\xBF"
             "a,b\r\n\r\n1,\r\n,2") == "1:[a][b] 3:[1][] 4:[][2] ");
  CHECK(rows("\"a,\"\"b\"\"\",\"x\ny\"\r\nz,\"\"") == "1:[a,\"b\"][x\ny] 3:[z][] ");
  CHECK(rows("a\"b\n") == "a quote in the middle of a cell; quote the whole cell, and double the quotes in it");
  CHECK(rows("a\n\"b\"c\n") == "1:[a] text after a closing quote");
  CHECK(rows("a\n\"b\nc") == "1:[a] a quote that is never closed");
  CHECK(rows("") == "");
  CHECK(contains(rows(std::string(5000, ',')), "more than 4096 cells"));
  CHECK(contains(rows(std::string((1 << 20) + 1, 'x')), "more than 1 MiB"));
}

TEST_CASE("a CSV file: columns by name, labels of both kinds, numbers; mistakes by line") {
  TemporaryFolder folder;
  folder.write("p/a,1.jpg", "A");
  folder.write("b.jpg", "B");
  folder.write("x.csv", "label,image,age,height\r\nzebra,\"p/a,1.jpg\",7,1.5\r\nant,b.jpg,-8,2\r\n");
  DatasetSpec spec;
  spec.csv = folder.path("x.csv");
  spec.fields = "height,age";
  const auto source = open(spec);
  REQUIRE(source->size() == 2);
  CHECK(source->class_names() == std::vector<std::string>{"ant", "zebra"});
  CHECK(source->label(0) == 1);
  CHECK(source->key(0) == "p/a,1.jpg");
  REQUIRE(source->fields().size() == 4);
  CHECK(source->fields()[2].dtype == DType::float64);
  CHECK(source->fields()[3].dtype == DType::int64);
  const SourceSample sample = load(*source, 1);
  CHECK(sample.image.size() == 1);
  double height = 0;
  int64_t age = 0;
  REQUIRE(sample.fields.size() == 2);
  std::memcpy(&height, sample.fields[0].data(), 8);
  std::memcpy(&age, sample.fields[1].data(), 8);
  CHECK(height == 2.0);
  CHECK(age == -8);

  const auto complaint = [&](const std::string& text, DatasetSpec changed = {}) {
    folder.write("y.csv", text);
    changed.csv = folder.path("y.csv");
    return error_of(changed);
  };
  const std::string name = folder.path("y.csv");
  CHECK(contains(complaint("imgae,label\na,1\n"), "has no column 'image'\n  help: it has 'imgae', 'label'"));
  CHECK(contains(complaint("image,label\na,1\nb\n"), name + ":3: 1 cells instead of 2"));
  folder.write("pandas.csv", "image,label\na,10.0\nb,2.00\n");
  DatasetSpec pandas;
  pandas.csv = folder.path("pandas.csv");
  CHECK(open(pandas)->label(0) == 10);
  CHECK(open(pandas)->class_names().empty());
  CHECK(contains(complaint("image,label\na,1\nb,cat\n"),
                 name + ":3: label 'cat' is no integer, and those before it are"));
  CHECK(contains(complaint("image,label\na,cat\nb,1\n"),
                 name + ":3: label '1' is an integer, and those before it are names"));
  for (const char* measure : {"0.9", "-1e20", "nan", "+3", "0x10", "9223372036854775808"}) {
    CHECK(contains(complaint("image,label\na," + std::string(measure) + "\n"),
                   "label '" + std::string(measure) + "' is a number, but no integer"));
  }
  for (const char* label : {"3d", "0x", "1e", "naan", "-"}) {
    CHECK(contains(complaint("image,label\na," + std::string(label) + "\nb,1\n"), "those before it are names"));
  }
  CHECK(contains(complaint("image,label\n\"a\nb\",cat\n,x\n"), name + ":4: the picture's path is empty"));
  CHECK(contains(complaint("image,label\na,\"1\n"), name + ":2: a quote that is never closed"));
  CHECK(contains(complaint("image,image\n"), name + ":1: two columns are named 'image'"));
  CHECK(contains(complaint("image,label\n"), "has no line after its first"));
  CHECK(contains(complaint(""), "is empty"));
  DatasetSpec numbers;
  numbers.fields = "age";
  CHECK(contains(complaint("image,age\na,3\nb,old\n", numbers), name + ":3: 'old' in column 'age' is no number"));
  DatasetSpec labelled;
  labelled.label = "species";
  CHECK(contains(complaint("image,label\na,1\n", labelled), "has no column 'species'"));
  CHECK(complaint("image\na\nb\n") == "no error");
  DatasetSpec bare;
  bare.csv = name;
  CHECK_FALSE(open(bare)->labelled());
  // Names are taken without the blanks around them, and what is surely the label is not passed over.
  folder.write("y.csv", "image , label\na,5\n");
  CHECK(open(bare)->labelled());
  CHECK(open(bare)->label(0) == 5);
  CHECK(contains(complaint("image,Labels\na,1\n"), "has no column 'label', but one called 'Labels'"));
  labelled.label = "Labels";
  CHECK(complaint("image,Labels\na,1\n", labelled) == "no error");
}

TEST_CASE("a list of files and labels") {
  TemporaryFolder folder;
  folder.write("list.txt", "a b.jpg 3\r\n\n/abs/c.jpg\t-1\n");
  DatasetSpec spec;
  spec.list = folder.path("list.txt");
  const auto source = open(spec);
  REQUIRE(source->size() == 2);
  CHECK(source->key(0) == "a b.jpg");
  CHECK(source->label(0) == 3);
  CHECK(source->key(1) == "/abs/c.jpg");
  CHECK(source->label(1) == -1);
  folder.write("list.txt", "a.jpg 3\nb.jpg cat\n");
  CHECK(contains(error_of(spec), folder.path("list.txt") + ":2: no 'PATH LABEL' with an integer label: 'b.jpg cat'"));
}

TEST_CASE("CIFAR: planes become pixels; wrong sizes and labels are refused") {
  TemporaryFolder folder;
  std::string record(1, '\3');
  for (const int base : {10, 20, 30}) {
    for (int i = 0; i < 1024; ++i) record += static_cast<char>(base + i % 7);
  }
  for (int i = 1; i <= 5; ++i)
    folder.write("cifar-10-batches-bin/data_batch_" + std::to_string(i) + ".bin", record + record);
  DatasetSpec spec;
  spec.cifar10 = folder.path();
  const auto source = open(spec);
  REQUIRE(source->size() == 10);
  CHECK(source->key(9) == "data_batch_5.bin[1]");
  CHECK(source->class_names().size() == 10);
  const SourceSample sample = load(*source, 3);
  CHECK(sample.label == 3);
  CHECK(sample.width == 32);
  REQUIRE(sample.image.size() == 3072);
  CHECK(std::to_integer<int>(sample.image[3 * 8]) == 11);
  CHECK(std::to_integer<int>(sample.image[3 * 8 + 1]) == 21);
  CHECK(std::to_integer<int>(sample.image[3 * 8 + 2]) == 31);

  spec.train = false;
  CHECK(contains(error_of(spec), "has no test_batch.bin"));
  spec.train = true;
  folder.write("cifar-10-batches-bin/data_batch_5.bin", record + "x");
  CHECK(contains(error_of(spec), "no multiple of 3073 bytes"));
  folder.write("cifar-10-batches-bin/data_batch_5.bin", record + std::string(3073, '\x0C'));
  CHECK(contains(error_of(spec), "data_batch_5.bin' at byte 3073: label 12; there are 10 classes"));
  std::filesystem::remove(folder.path("cifar-10-batches-bin/data_batch_3.bin"));
  CHECK(contains(error_of(spec), "cifar-10-batches-bin' has no data_batch_3.bin"));

  DatasetSpec hundred;
  hundred.cifar100 = folder.path("c100");
  folder.write("c100/train.bin", "\5\x63" + record.substr(1));
  const auto fine = open(hundred);
  CHECK(fine->label(0) == 99);
  CHECK(fine->fields()[2].name == "coarse_label");
  CHECK(load(*fine, 0).fields[0][0] == std::byte{5});
}

// As Python 2 and NumPy pickled CIFAR's batches: an array of bytes and a list of labels.
std::string python_batch(const std::string& pixels, const std::string& labels, const std::string& dtype = "u1") {
  const auto text = [](const std::string& one) { return "U" + std::string(1, static_cast<char>(one.size())) + one; };
  std::string out = "\x80\2}q\1(" + text("data") + "cnumpy.core.multiarray\n_reconstruct\nq\2cnumpy\nndarray\nK";
  out += std::string(1, '\0') + "\x85" + text("b") + "\x87Rq\3(K\1K" + std::string(1, static_cast<char>(labels.size()));
  out +=
      std::string("M\x00\x0c\x86", 4) + "cnumpy\ndtype\n" + text(dtype) + std::string("K\0K\1\x87R(K\3", 9) + text("|");
  out += std::string("NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb\x89T", 19);
  for (int i = 0; i < 4; ++i) out += static_cast<char>(pixels.size() >> (8 * i) & 255);
  out += pixels + "tb" + text("labels") + "](";
  for (const char label : labels) out += std::string("K") + label;
  return out + "eu.";
}

TEST_CASE("CIFAR as torchvision has it, pickled for Python: the same samples, and nothing of a pickle is run") {
  TemporaryFolder folder;
  std::string pixels;
  for (int i = 0; i < 2 * 3072; ++i) pixels += static_cast<char>(i % 251);
  const std::string batch = python_batch(pixels, "\3\7");
  const auto write = [&](const std::string& content) { folder.write("cifar-10-batches-py/test_batch", content); };
  write(batch);
  folder.write("cifar-10-batches-bin/test_batch.bin", "\3" + pixels.substr(0, 3072) + "\7" + pixels.substr(3072));
  DatasetSpec spec;
  spec.cifar10 = folder.path("cifar-10-batches-py");
  spec.train = false;
  const auto source = open(spec);
  REQUIRE(source->size() == 2);
  CHECK(source->key(1) == "test_batch.bin[1]");
  CHECK(source->label(1) == 7);
  DatasetSpec binary = spec;
  binary.cifar10 = folder.path();  // with both of them, the binary version
  const auto same = open(binary);
  const SourceSample one = load(*source, 1);
  const SourceSample other = load(*same, 1);
  CHECK(std::equal(one.image.begin(), one.image.end(), other.image.begin(), other.image.end()));
  CHECK(source->fingerprint() == same->fingerprint());

  for (size_t size = 0; size < batch.size(); size += size < 200 ? 1 : 611) {
    write(batch.substr(0, size));
    CHECK(contains(error_of(spec), "cifar-10-batches-py/test_batch'"));
  }
  write(python_batch(pixels, "\3\7", "f4"));
  CHECK(contains(error_of(spec), "its array is not of unsigned bytes"));
  write(python_batch(pixels.substr(1), "\3\7"));
  CHECK(contains(error_of(spec), "its array has another size than it says"));
  write(python_batch(pixels, "\3\x0c"));
  CHECK(contains(error_of(spec), "label 12; there are 10 classes"));
  std::string text_label = batch;
  text_label.replace(text_label.rfind("K\7"), 2, "U" + std::string(1, '\0'));
  write(text_label);
  CHECK(contains(error_of(spec), "it is no batch of CIFAR"));
  std::string twice = batch;
  twice.insert(twice.rfind("tb") + 2,
               std::string("(K\1K\2\x85", 6) + "cnumpy\ndtype\nU\2u1" + std::string("\x85RK\0U\2abtb", 11));
  write(twice);
  CHECK(contains(error_of(spec), "its array is described twice"));
  write("\x80\2" + std::string(100'000, '('));
  CHECK(contains(error_of(spec), "nested too deeply"));
  write("\x80\2cos\nsystem\nU\4true\x85R.");
  CHECK(contains(error_of(spec), "it calls 'os system'"));
  write("\x80\2" + std::string(100, ']') + std::string(99, 'a') + ".");
  CHECK(contains(error_of(spec), "its values are nested too deeply"));
  write("cposix\nsystem\n.");
  CHECK(contains(error_of(spec), "it is no batch of CIFAR"));
}

TEST_CASE("MNIST: grey becomes RGB, plain and gzip; damaged headers are refused") {
  TemporaryFolder folder;
  const std::string images = std::string("\0\0\x08\x03\0\0\0\2\0\0\0\2\0\0\0\3", 16) + "abcdefghijkl";
  const std::string labels = std::string("\0\0\x08\x01\0\0\0\2\5\x09", 10);
  folder.write("MNIST/raw/train-images-idx3-ubyte.gz", gzipped(images));
  folder.write("MNIST/raw/train-labels-idx1-ubyte", labels);
  DatasetSpec spec;
  spec.mnist = folder.path();
  const auto source = open(spec);
  REQUIRE(source->size() == 2);
  const SourceSample sample = load(*source, 1);
  CHECK(sample.label == 9);
  CHECK(sample.width == 3);
  CHECK(sample.height == 2);
  CHECK(std::string(reinterpret_cast<const char*>(sample.image.data()), sample.image.size()) == "ggghhhiiijjjkkklll");
  CHECK(contains(error_of(spec, {.cache_bytes = 0, .spool_bytes = 20}),
                 "holds more than the 20 bytes left of loader.spool_gb"));

  for (const DecodeLimits& limits : {DecodeLimits{.max_pixels = 5}, DecodeLimits{.max_side = 2}}) {
    SourceSample refused;
    const SampleStatus status = make_source(spec, limits)->load({}, refused);
    CHECK(contains(status.reason, "image of 3x2 pixels: above limits."));
    CHECK(refused.storage.empty());
  }

  const auto header = [](std::string bytes, uint64_t size) {
    IdxHeader out;
    return read_idx_header(as_bytes_of(bytes), size, out);
  };
  CHECK(header(images.substr(0, 16), 28).empty());
  CHECK(contains(header("\1\0\x08\x03", 28), "does not begin"));
  CHECK(contains(header(std::string("\0\0\x0D\x03", 4), 28), "not unsigned bytes"));
  CHECK(contains(header(std::string("\0\0\x08\x04", 4), 28), "4 dimensions"));
  CHECK(contains(header(images.substr(0, 15), 28), "cut off"));
  CHECK(contains(header(images.substr(0, 16), 27), "promises 12 bytes of data, and it has 11"));
  CHECK(contains(header(std::string("\0\0\x08\x03\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF", 16), 28),
                 "promises more"));
  folder.write("MNIST/raw/train-images-idx3-ubyte.gz", gzipped(images).substr(0, 30));
  CHECK(contains(error_of(spec), "cannot be decompressed as gzip"));
}

std::string zstd(const std::string& text) {
  std::string out(::ZSTD_compressBound(text.size()), '\0');
  out.resize(::ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

TEST_CASE("a compressed tar shard is read like a plain one; one over the budget is refused") {
  TemporaryFolder folder;
  TarWriter tar;
  for (int i = 0; i < 50; ++i) {
    tar.member(std::to_string(i) + ".jpg", std::string(3000, static_cast<char>('a' + i % 26)));
    tar.member(std::to_string(i) + ".cls", std::to_string(i));
  }
  folder.write("a.tar", tar.finish());
  folder.write("a.tar.gz", gzipped(tar.finish()));
  DatasetSpec plain;
  plain.tar = folder.path("a.tar");
  DatasetSpec packed;
  packed.tar = folder.path("a.tar.gz");
  folder.write("b.tar.zst", zstd(tar.finish().substr(0, 70000)) + zstd(tar.finish().substr(70000)));
  DatasetSpec frames;
  frames.tar = folder.path("b.tar.zst");
  CHECK(open(frames)->fingerprint() == open(plain)->fingerprint());
  CHECK(contains(error_of(frames, {.cache_bytes = 0, .spool_bytes = 100'000}), "b.tar.zst' holds more than"));
  folder.write("b.tar.zst", zstd(tar.finish()).substr(0, 300));
  CHECK(contains(error_of(frames), "b.tar.zst' cannot be decompressed as zstd"));
  folder.write("b.tar.zst", tar.finish());
  CHECK(contains(error_of(frames), "b.tar.zst' cannot be decompressed as zstd"));
  folder.write("c.tar", gzipped(tar.finish()));
  DatasetSpec named;
  named.tar = folder.path("c.tar");
  CHECK(contains(error_of(named), "name it .tar.gz"));
  const auto one = open(plain);
  const auto other = open(packed);
  CHECK(one->fingerprint() == other->fingerprint());
  std::vector<std::byte> bytes;
  std::vector<std::byte> again;
  for (int64_t i = 49; i >= 0; --i) {
    CHECK(one->read(i, bytes).ok());
    CHECK(other->read(i, again).ok());
    CHECK(bytes == again);
  }
  CHECK(contains(error_of(packed, {.cache_bytes = 0, .spool_bytes = 100'000}),
                 "a.tar.gz' holds more than the 100000 bytes"));
}

TEST_CASE("more compressed shards than a process may have open files") {
  TemporaryFolder folder;
  for (int i = 0; i < 60; ++i) {
    TarWriter tar;
    tar.member(std::to_string(i) + ".jpg", std::string(static_cast<size_t>(i + 1), 'a'));
    folder.write(std::to_string(i) + ".tar.gz", gzipped(tar.finish()));
  }
  DatasetSpec spec;
  spec.tar = folder.path("{0..59}.tar.gz");
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit few{std::min<rlim_t>(40, before.rlim_max), before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  std::unique_ptr<Source> source;
  CHECK_NOTHROW(source = open(spec));
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  REQUIRE(source != nullptr);
  for (int64_t i = 0; i < 60; ++i) CHECK(load(*source, i).image.size() == static_cast<size_t>(i + 1));
}

TEST_CASE("MDS: what index.json may say") {
  const std::string good = R"({"version":2,"shards":[{"format":"mds","version":2,"samples":3,"compression":"zstd:7",
    "raw_data":{"basename":"shard.00000.mds","bytes":100,"hashes":{}},"zip_data":{"basename":"shard.00000.mds.zstd","bytes":50,"hashes":{}},
    "column_names":["image","label"],"column_encodings":["jpeg","int"],"column_sizes":[null,8],"hashes":[],"size_limit":67108864}]})";
  const auto shards = parse_mds_index(good);
  REQUIRE(shards.size() == 1);
  CHECK(shards[0].raw == "shard.00000.mds");
  CHECK(shards[0].compressed == "shard.00000.mds.zstd");
  CHECK(shards[0].columns[1] == MdsColumn{"label", "int", 8});
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return text;
  };
  for (const std::string& wrong : {std::string(),
                                   std::string("{}"),
                                   std::string("{\"shards\":[]}"),
                                   std::string("{\"shards\":7}"),
                                   good.substr(0, 200),
                                   with("\"shard.00000.mds\"", "\"../x\""),
                                   with("\"shard.00000.mds\"", "\"a/../../x\""),
                                   with("\"shard.00000.mds\"", "\"/etc/x\""),
                                   with("\"shard.00000.mds\"", "\"a//b\""),
                                   with("\"shard.00000.mds\"", "\"a/./b\""),
                                   with("\"shard.00000.mds\"", "\"a/\""),
                                   with("\"shard.00000.mds\"", "\"a/..\""),
                                   with("\"shard.00000.mds.zstd\"", "\"../x\""),
                                   with("\"shard.00000.mds\"", "\"" + std::string(256, 'a') + "\""),
                                   with("\"shard.00000.mds\"", "\"\""),
                                   with("\"shard.00000.mds\"", "\"a\\u0000b\""),
                                   with("[null,8]", "[null]"),
                                   with("[null,8]", "[null,-8]"),
                                   with("[null,8]", "[null,99999999999]"),
                                   with("\"label\"", "\"image\""),
                                   with("\"bytes\":100", "\"bytes\":\"100\""),
                                   with("\"mds\"", "\"json\""),
                                   with("[\"image\",\"label\"]", "{}"),
                                   std::string(100000, '[')}) {
    INFO(wrong.substr(0, 300));
    CHECK_THROWS_AS((void)parse_mds_index(wrong), Error);
  }
  CHECK_THROWS_WITH_AS((void)parse_mds_index(with("\"shard.00000.mds\"", "\"../x\"")),
                       doctest::Contains("'../x', which is no file below its folder"), Error);
  CHECK(parse_mds_index(with("\"shard.00000.mds\"", "\"a/0/shard.00000.mds\""))[0].raw == "a/0/shard.00000.mds");
}

TEST_CASE("MDS: shards whose numbers do not fit are refused by offset") {
  TemporaryFolder folder;
  const auto sample = [](const std::string& image, int64_t label) {
    return raw(static_cast<uint32_t>(image.size())) + image + raw(label);
  };
  const std::string first = sample("IMAGE", 4);
  const std::string second = sample("picture", -2);
  const auto shard = [&](uint32_t count, std::vector<uint32_t> offsets, const std::string& body) {
    std::string out = raw(count);
    for (const uint32_t offset : offsets) out += raw(offset);
    return out + body;
  };
  const auto write = [&](const std::string& bytes, uint64_t samples = 2, const std::string& name = "s.mds") {
    folder.write(name, bytes);
    folder.write(
        "index.json",
        R"({"version":2,"shards":[{"format":"mds","samples":)" + std::to_string(samples) +
            R"(,"raw_data":{"basename":")" + name + R"(","bytes":)" + std::to_string(bytes.size()) +
            R"(},"zip_data":null,"column_names":["image","label"],"column_encodings":["bytes","int"],"column_sizes":[null,8]}]})");
  };
  const uint32_t at = 16 + 2;  // two bytes of description
  const uint32_t next = at + static_cast<uint32_t>(first.size());
  const uint32_t end = next + static_cast<uint32_t>(second.size());
  DatasetSpec spec;
  spec.mds = folder.path();
  write(shard(2, {at, next, end}, "{}" + first + second));
  const auto source = open(spec);
  REQUIRE(source->size() == 2);
  CHECK(source->key(1) == "s.mds[1]");
  CHECK(source->label(1) == -2);
  CHECK(load(*source, 1).image.size() == 7);

  // Parallel writers have a folder each; streaming's merge_index names their shards from the common one.
  write(shard(2, {at, next, end}, "{}" + first + second), 2, "1/s.mds");
  const auto parallel = open(spec);
  REQUIRE(parallel->size() == 2);
  CHECK(parallel->key(1) == "1/s.mds[1]");
  CHECK(load(*parallel, 0).image.size() == 5);
  DatasetSpec kept = spec;
  kept.index = folder.path("i.index");
  ShardFiles listed(posix_file_system(), 0);
  write_index(index_table(kept, {}, posix_file_system(), listed), kept.index);
  CHECK(load(*open(kept), 1).image.size() == 7);

  write(shard(2, {at, next, end + 1}, "{}" + first + second));
  CHECK(contains(error_of(spec), "out of order or outside the file"));
  write(shard(2, {next, at, end}, "{}" + first + second));
  CHECK(contains(error_of(spec), "out of order"));
  write(shard(2, {0, next, end}, "{}" + first + second));
  CHECK(contains(error_of(spec), "out of order"));
  write(shard(2, {at, next, end - 1}, "{}" + first + second));
  CHECK(contains(error_of(spec), "reaches beyond the sample"));
  write(shard(2, {at - 1, next, end}, "{}" + first + second));
  CHECK(contains(error_of(spec), "s.mds' at byte 17: "));
  write(shard(2, {at, at, end}, "{}" + first + second));
  CHECK(contains(error_of(spec), "too short for its columns"));
  write(shard(3, {at, next, end}, "{}" + first + second));
  CHECK(contains(error_of(spec), "says that it holds 3 samples, and index.json says 2"));
  write(shard(0xFFFFFFFF, {at, next, end}, "{}" + first + second), 0xFFFFFFFF);
  CHECK(contains(error_of(spec), "says that it holds 4294967295 samples"));
  write("");
  CHECK(contains(error_of(spec), "holds 0 samples"));
  write(shard(2, {at, next, end}, "{}" + first + second));
  folder.write("s.mds", "short");
  CHECK(contains(error_of(spec), "it has 5 bytes, and index.json says"));
}

TEST_CASE("TFRecord: framing and tf.train.Example") {
  // tag, length, payload
  const auto field = [](int number, const std::string& payload) {
    std::string out(1, static_cast<char>(number << 3 | 2));
    size_t size = payload.size();
    while (size >= 128) {
      out += static_cast<char>(size | 128);
      size >>= 7;
    }
    return out + static_cast<char>(size) + payload;
  };
  const auto feature = [&](const std::string& name, int kind, const std::string& list) {
    return field(1, field(1, name) + field(2, field(kind, list)));
  };
  const std::string image = feature("image/encoded", 1, field(1, "JPEG!"));
  const std::string label = feature("image/class/label", 3, field(1, "\x85\x02"));              // 261, packed
  const std::string plain_label = feature("image/class/label", 3, std::string("\x08\x07", 2));  // 7, not packed
  const std::string box = feature("box", 2, field(1, raw(0.5F) + raw(2.0F)));
  const auto record = [](const std::string& data) {
    const uint64_t length = data.size();
    return raw(length) + raw(masked_crc(as_bytes_of(raw(length)))) + data + raw(masked_crc(as_bytes_of(data)));
  };
  TemporaryFolder folder;
  const std::string one = record(field(1, image + label + box));
  const std::string two = record(field(1, box + plain_label + image));
  folder.write("a-0.tfrecord", one + two);
  folder.write("a-1.tfrecord", one);
  DatasetSpec spec;
  spec.tfrecord = folder.path("a-*.tfrecord");
  spec.fields = "box";
  const auto source = open(spec);
  REQUIRE(source->size() == 3);
  CHECK(source->label(0) == 261);
  CHECK(source->label(1) == 7);
  CHECK(source->key(2) == "a-1.tfrecord[0]");
  CHECK(source->fields()[2] == FieldSpec{"box", FieldKind::tensor, DType::float32, {2}});
  const SourceSample sample = load(*source, 1);
  CHECK(std::string(reinterpret_cast<const char*>(sample.image.data()), sample.image.size()) == "JPEG!");
  REQUIRE(sample.fields.size() == 1);
  CHECK(std::string(reinterpret_cast<const char*>(sample.fields[0].data()), 8) == raw(0.5F) + raw(2.0F));

  // As without an index: a checksum that is wrong is trouble by name, not another picture.
  folder.write("i.tfrecord", one + two);
  DatasetSpec kept = spec;
  kept.tfrecord = folder.path("i.tfrecord");
  kept.index = folder.path("i.index");
  ShardFiles listed(posix_file_system(), 0);
  write_index(index_table(kept, {}, posix_file_system(), listed), kept.index);
  const auto modified = std::filesystem::last_write_time(kept.tfrecord);
  std::string damaged = one + two;
  damaged[damaged.rfind("JPEG!") + 2] ^= 1;
  folder.write("i.tfrecord", damaged);
  std::filesystem::last_write_time(kept.tfrecord, modified);
  const auto reopened = open(kept);
  CHECK_NOTHROW(load(*reopened, 0));
  SourceSample other_bytes;
  CHECK_THROWS_WITH_AS((void)reopened->load({.seed = 0, .epoch = 0, .index = 1}, other_bytes),
                       doctest::Contains("i.tfrecord' is damaged: the picture of 'i.tfrecord[1]'"), FileError);

  // gzip, as tf.io.TFRecordOptions("GZIP") writes it, under any name; read through the spool, with and without an
  // index.
  for (const char* name : {"z.tfrecord", "z.tfrecord.gz", "z-00000-of-00001"}) {
    folder.write(name, gzipped(one + two));
    DatasetSpec zipped = spec;
    zipped.tfrecord = folder.path(name);
    for (const std::string& index : {std::string(), folder.path("z.index")}) {
      INFO(name << " " << index);
      zipped.index = index;
      if (!index.empty()) {
        ShardFiles shards(posix_file_system(), 1 << 20);
        write_index(index_table(zipped, {}, posix_file_system(), shards), index);
      }
      const auto unzipped = open(zipped);
      REQUIRE(unzipped->size() == 2);
      CHECK(unzipped->label(1) == 7);
      CHECK(load(*unzipped, 1).image.size() == 5);
    }
  }
  folder.write("z.tfrecord", gzipped(one + two).substr(0, 40));
  DatasetSpec cut = spec;
  cut.tfrecord = folder.path("z.tfrecord");
  CHECK(contains(error_of(cut), "cannot be decompressed as gzip: it ends early"));
  // A record of 559,903 bytes begins as gzip does, and its length's checksum says that it is none.
  {
    std::string bytes = field(1, image + label + box);
    bytes += field(2, std::string(0x088b1f - bytes.size() - 4, 'x'));
    REQUIRE(bytes.size() == 0x088b1f);
    folder.write("y.tfrecord", record(bytes) + one);
    DatasetSpec plain = spec;
    plain.tfrecord = folder.path("y.tfrecord");
    CHECK(open(plain)->size() == 2);
  }

  const auto complaint = [&](const std::string& bytes) {
    folder.write("b.tfrecord", bytes);
    DatasetSpec other = spec;
    other.tfrecord = folder.path("b.tfrecord");
    return error_of(other);
  };
  std::string flipped = one + two;
  flipped[one.size() + 20] ^= 1;
  CHECK(contains(complaint(flipped),
                 "b.tfrecord' at byte " + std::to_string(one.size()) + ": a record's checksum is wrong"));
  CHECK(contains(complaint(flipped), "help: copy the file again, or make it again"));
  flipped = one;
  flipped[3] ^= 1;
  CHECK(contains(complaint(flipped), "at byte 0: this is no TFRecord"));
  CHECK(contains(complaint("\x78\x9c" + std::string(30, 'z')), "compressed as zlib"));
  CHECK(contains(complaint("\x78\x9c" + std::string(30, 'z')), "help: write it with GZIP"));
  CHECK(contains(complaint(one + two.substr(0, two.size() - 1)), "reaches beyond the file's end"));
  CHECK(contains(complaint(one + two.substr(0, 11)), "ends in the middle of a record"));
  CHECK(contains(complaint(""), "holds no record"));
  CHECK(contains(complaint(record(field(1, label + box))), "feature 'image/encoded' is not there"));
  CHECK(contains(complaint(record(field(1, label + box))), "the record has 'image/class/label', 'box'"));
  CHECK(contains(complaint(one + record(field(1, image + box))), "feature 'image/class/label' is not there"));
  CHECK(contains(complaint(one + record(field(1, image + label))), "feature 'box' is not there"));
  CHECK(contains(complaint(record(field(1, image) + "\x0A")), "Example is damaged"));
  CHECK(contains(complaint(record("\x0B")), "Example is damaged"));
  // A record above the limit is a bad sample, and no more; only the first has to say what all of them are.
  const std::string large = record(std::string((size_t{17} << 20), 'x'));
  folder.write("c.tfrecord", one + large + two);
  DatasetSpec third = spec;
  third.tfrecord = folder.path("c.tfrecord");
  DecodeLimits small;
  small.max_encoded_bytes = 1000;
  const auto with_large = make_source(third, small);
  REQUIRE(with_large->size() == 3);
  CHECK(with_large->label(0) == 261);
  CHECK(with_large->label(2) == 7);
  SourceSample refused;
  DrawKey second;
  second.index = 1;
  CHECK(contains(with_large->load(second, refused).reason, "more than limits.max_encoded_bytes (1000)"));
  second.index = 2;
  CHECK(with_large->load(second, refused).ok());
  // An index holds what was seen under that limit; under another one the record would have a picture.
  ShardFiles shards(posix_file_system(), 0);
  write_index(index_table(third, small, posix_file_system(), shards), folder.path("c.index"));
  DatasetSpec indexed = third;
  indexed.index = folder.path("c.index");
  CHECK(make_source(indexed, small)->size() == 3);
  CHECK_THROWS_WITH_AS(make_source(indexed, {}), doctest::Contains("it was made with limits.max_encoded_bytes 1000"),
                       Error);
  folder.write("c.tfrecord", large + one);
  CHECK_THROWS_WITH_AS(make_source(third, small), doctest::Contains("the first record has 17825792 bytes"), Error);
  const std::string huge = raw(~uint64_t{0} - 15) + raw(masked_crc(as_bytes_of(raw(~uint64_t{0} - 15))));
  CHECK(contains(complaint(huge + std::string(16, 'x')), "reaches beyond the file's end"));
}

TEST_CASE("an index that is cut while it is in use hurts nobody") {
  TemporaryFolder folder;
  DatasetSpec spec;
  spec.csv = folder.path("x.csv");
  std::string text = "image,label\n";
  for (int i = 0; i < 1000; ++i) {
    text += "picture-" + std::to_string(i) + ".jpg," + std::to_string(i) + "\n";
    if (i % 100 == 0) folder.write("picture-" + std::to_string(i) + ".jpg", "JPEG!");
  }
  folder.write("x.csv", text);
  ShardFiles shards(posix_file_system(), 0);
  write_index(index_table(spec, {}, posix_file_system(), shards), folder.path("x.index"));
  spec.index = folder.path("x.index");
  const auto source = open(spec);
  folder.write("x.index", "");
  for (int i = 0; i < 1000; i += 100) {
    CHECK(source->key(i) == "picture-" + std::to_string(i) + ".jpg");
    CHECK(load(*source, i).label == i);
  }
  CHECK(contains(error_of(spec), "it is empty"));
}

TEST_CASE("what is compressed in other ways is refused by name") {
  TemporaryFolder folder;
  for (const char* name : {"a.tar.bz2", "a.tar.xz", "a.zip"}) {
    folder.write(name, "BZh91AY&SY");
    DatasetSpec spec;
    spec.tar = folder.path(name);
    CHECK(contains(error_of(spec), std::string(name) + "' is compressed in a way that is not read here"));
  }
}

TEST_CASE("JSON of others is bounded by what it becomes, not by its text alone") {
  std::string many = "{\"version\": 2, \"shards\": [";
  for (int i = 0; i < 10'000'000; ++i) many += "0,";
  many += "1]}";
  const auto before = [] {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
  };
  const long kilobytes = before();
  std::string why;
  try {
    (void)parse_mds_index(many);
  } catch (const Error& error) {
    why = error.what();
  }
  CHECK(contains(why, "more than 10 million values"));
  CHECK(before() - kilobytes < 1000 * 1000 * kSanitizedFactor);
  CHECK_THROWS_WITH_AS(parse_mds_index("{\"shards\": " + std::string(20, '[') + std::string(20, ']') + "}"),
                       doctest::Contains("nested too deeply"), Error);
}

TEST_CASE("folders that links lead to by ever more ways") {
  TemporaryFolder folder;
  for (int i = 0; i < 12; ++i) folder.write("chain/" + std::to_string(i) + "/x.txt", "x");
  folder.write("chain/12/picture.jpg", "x");
  for (int i = 0; i < 12; ++i) {
    for (const char* name : {"left", "right"}) {
      const std::string to = "../" + std::to_string(i + 1);
      REQUIRE(::symlink(to.c_str(), folder.path("chain/" + std::to_string(i) + "/" + name).c_str()) == 0);
    }
  }
  DatasetSpec classes;
  classes.folder = folder.path("classes");
  folder.write("classes/other/y.jpg", "y");
  REQUIRE(::symlink("../chain/6", folder.path("classes/cat").c_str()) == 0);
  CHECK(open(classes)->size() == 65);  // 2^6 ways, as os.walk counts them
  ::unlink(folder.path("classes/cat").c_str());
  REQUIRE(::symlink("../chain/0", folder.path("classes/cat").c_str()) == 0);
  CHECK(contains(error_of(classes), "is a folder that symbolic links lead to by more than 100 ways"));
  DatasetSpec pairs;
  pairs.images = pairs.masks = folder.path("chain/0");
  CHECK(contains(error_of(pairs), "by more than 100 ways"));
}

TEST_CASE(".npy headers") {
  const auto read = [](std::string header, uint64_t data_bytes,
                       std::string start = std::string("\x93NUMPY\x01\x00", 8)) {
    std::string bytes = start + static_cast<char>(header.size() & 255) + static_cast<char>(header.size() >> 8) + header;
    NpyHeader out;
    return read_npy_header(as_bytes_of(bytes), bytes.size() + data_bytes, out);
  };
  CHECK(read("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n", 24).empty());
  CHECK(contains(read("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n", 23), "should have 24 bytes"));
  CHECK(contains(read("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }\n", 24), "Fortran"));
  CHECK(contains(read("{'descr': '>f4', 'fortran_order': False, 'shape': (2, 3), }\n", 24), "dtype '>f4'"));
  CHECK(contains(read("{'descr': '|O', 'fortran_order': False, 'shape': (2, 3), }\n", 24), "dtype '|O'"));
  CHECK(contains(read("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}\n", 8), "no plain dtype"));
  CHECK(contains(read("{'descr': '<f4', 'fortran_order': False, 'shape': (-2,), }\n", 8), "shape"));
  CHECK(contains(read("{'descr': '<f8', 'fortran_order': False, 'shape': (9999999999, 9999999999), }\n", 8), "shape"));
  CHECK(contains(read("{'descr': '<f8', 'fortran_order': False, 'shape': (2", 8), "damaged"));
  CHECK(contains(read("", 0, "PK\3\4"), "does not begin"));
}
