#include "runtime/datasets/spool.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "runtime/base/error.h"
#include "runtime/base/memory.h"
#include "runtime/base/switches.h"

namespace penstock {
namespace {

constexpr size_t kPiece = size_t{256} << 10;

[[noreturn]] void disk_failed(const std::string& action, const std::string& folder) {
  const int code = errno;
  const std::string message = "cannot " + action + " '" + folder + "' to decompress shards: " + std::strerror(code);
  // As in file_system.h: not to be taken for something about the data.
  if (code == EMFILE || code == ENFILE) {
    throw Error(ErrorKind::runtime, message, "raise the limit on open files (ulimit -n)");
  }
  throw FileError(code, folder, message, "set TMPDIR to a folder with room, or decompress the files");
}

std::string folder_of_spools() {
  const std::string chosen = switches().temporary_folder;
  return chosen.empty() ? "/var/tmp" : chosen;
}

UniqueFd open_spool() {
  const std::string folder = folder_of_spools();
  UniqueFd fd(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (fd) return fd;
  // File systems without O_TMPFILE: a name for a moment.
  std::string path = folder + "/penstock-spool-XXXXXX";
  fd = UniqueFd(::mkostemp(path.data(), O_CLOEXEC));
  if (!fd) disk_failed("create a file in", folder);
  ::unlink(path.c_str());
  return fd;
}

// Where one file's decompressed bytes go, and the bound on them.
class SpoolFile {
 public:
  SpoolFile(const UniqueFd& fd, uint64_t begin, const std::string& name, uint64_t max_bytes)
      : fd_(fd), begin_(begin), name_(name), max_bytes_(max_bytes) {}

  void write(const std::byte* data, size_t bytes) {
    if (bytes > max_bytes_ - written_) {
      throw Error(
          ErrorKind::dataset,
          "'" + name_ + "' holds more than the " + std::to_string(max_bytes_) + " bytes left of loader.spool_gb",
          "decompress it on disk, which saves the work at every start, or raise loader.spool_gb");
    }
    while (bytes > 0) {
      const ssize_t put = ::pwrite(fd_.get(), data, bytes, static_cast<off_t>(begin_ + written_));
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) disk_failed("write to", folder_of_spools());
      data += put;
      bytes -= static_cast<size_t>(put);
      written_ += static_cast<uint64_t>(put);
    }
  }
  uint64_t written() const { return written_; }

 private:
  const UniqueFd& fd_;
  uint64_t begin_;
  std::string name_;
  uint64_t max_bytes_;
  uint64_t written_ = 0;
};

[[noreturn]] void damaged(const FileReader& file, const char* codec, const std::string& why) {
  throw Error(ErrorKind::dataset, "'" + file.path() + "' cannot be decompressed as " + codec + ": " + why,
              "copy it again");
}

// The next piece of the file; empty at its end.
std::span<const std::byte> next_piece(const FileReader& file, uint64_t& at, std::span<std::byte> buffer) {
  const auto bytes = static_cast<size_t>(std::min<uint64_t>(buffer.size(), file.size() - at));
  if (bytes > 0) file.read_at(at, buffer.first(bytes));
  at += bytes;
  return buffer.first(bytes);
}

void inflate_all(const FileReader& file, SpoolFile& out) {
  z_stream stream{};
  if (::inflateInit2(&stream, 15 + 16) != Z_OK) throw Error(ErrorKind::runtime, "zlib cannot be used: out of memory");
  struct End {
    z_stream* stream;
    ~End() { ::inflateEnd(stream); }
  } const end{&stream};
  std::vector<std::byte> in(kPiece);
  std::vector<std::byte> plain(kPiece);
  uint64_t at = 0;
  bool whole = false;  // the last member came to its end
  for (auto piece = next_piece(file, at, in); !piece.empty(); piece = next_piece(file, at, in)) {
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(piece.data()));
    stream.avail_in = static_cast<uInt>(piece.size());
    while (stream.avail_in > 0) {
      if (whole) {  // pigz and cat write several members one after another
        ::inflateReset(&stream);
        whole = false;
      }
      int result = Z_OK;
      do {
        stream.next_out = reinterpret_cast<Bytef*>(plain.data());
        stream.avail_out = static_cast<uInt>(plain.size());
        result = ::inflate(&stream, Z_NO_FLUSH);
        if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) {
          damaged(file, "gzip", stream.msg == nullptr ? "it is damaged" : stream.msg);
        }
        out.write(plain.data(), plain.size() - stream.avail_out);
      } while (result == Z_OK && stream.avail_out == 0);
      whole = result == Z_STREAM_END;
      if (!whole && stream.avail_in > 0 && result == Z_BUF_ERROR) damaged(file, "gzip", "it is damaged");
    }
  }
  if (!whole) damaged(file, "gzip", "it ends early");
}

void unzstd_all(const FileReader& file, SpoolFile& out) {
  struct Free {
    void operator()(ZSTD_DStream* stream) const { ::ZSTD_freeDStream(stream); }
  };
  const std::unique_ptr<ZSTD_DStream, Free> stream(::ZSTD_createDStream());
  if (!stream) throw Error(ErrorKind::runtime, "zstd cannot be used: out of memory");
  // A window of at most 128 MiB, which is what `zstd -d` takes without being asked.
  ::ZSTD_DCtx_setParameter(stream.get(), ZSTD_d_windowLogMax, 27);
  std::vector<std::byte> in(kPiece);
  std::vector<std::byte> plain(kPiece);
  uint64_t at = 0;
  size_t left = 1;
  for (auto piece = next_piece(file, at, in); !piece.empty(); piece = next_piece(file, at, in)) {
    ZSTD_inBuffer from{piece.data(), piece.size(), 0};
    bool full = false;
    while (from.pos < from.size || full) {
      ZSTD_outBuffer to{plain.data(), plain.size(), 0};
      left = ::ZSTD_decompressStream(stream.get(), &to, &from);
      if (::ZSTD_isError(left) != 0) damaged(file, "zstd", ::ZSTD_getErrorName(left));
      out.write(plain.data(), to.pos);
      full = to.pos == to.size && left != 0;
    }
  }
  if (left != 0) damaged(file, "zstd", "it ends early");
}

}  // namespace

Codec codec_named(std::string_view path) {
  if (path.ends_with(".gz") || path.ends_with(".tgz")) return Codec::gzip;
  return path.ends_with(".zst") || path.ends_with(".zstd") ? Codec::zstd : Codec::none;
}

std::unique_ptr<FileReader> Spool::decompress(const FileReader& file, Codec codec) {
  if (!fd_) fd_ = std::make_shared<const UniqueFd>(open_spool());
  SpoolFile out(*fd_, end_, file.path(), left_);
  try {
    codec == Codec::gzip ? inflate_all(file, out) : unzstd_all(file, out);
  } catch (...) {
    (void)::ftruncate(fd_->get(), static_cast<off_t>(end_));  // what does not succeed costs disk, and is written over
    throw;
  }
  auto reader = make_file_reader(fd_, end_, out.written(), file.path());
  end_ += out.written();
  left_ -= out.written();
  return reader;
}

}  // namespace penstock
