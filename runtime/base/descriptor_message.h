// One message of a Unix socket and the descriptors that travel with it (SCM_RIGHTS, unix(7)).
//
//   DescriptorMessage message(bytes, descriptors);          // of these at most kMost
//   ::sendmsg(socket, message.header(), MSG_NOSIGNAL);
//
//   DescriptorMessage message(room);
//   ::recvmsg(socket, message.header(), MSG_CMSG_CLOEXEC);  // with this flag: what comes is ours alone
//   UniqueFd fd = message.take_last();                      // call it even where no byte came: an empty packet may bring some
//
// Views the bytes, which have to live as long. Not thread-safe.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstring>
#include <span>

#include "runtime/base/error.h"
#include "runtime/base/memory.h"

namespace penstock {

class DescriptorMessage {
 public:
  static constexpr size_t kMost = 4;

  // To send, with these descriptors.
  DescriptorMessage(std::span<const std::byte> bytes, std::span<const int> descriptors)
      : data_{const_cast<std::byte*>(bytes.data()), bytes.size()} {
    header_.msg_iov = &data_;
    header_.msg_iovlen = 1;
    if (descriptors.empty()) return;
    if (descriptors.size() > kMost) throw Error(ErrorKind::runtime, "too many descriptors for one message");
    header_.msg_control = control_;
    header_.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* rights = CMSG_FIRSTHDR(&header_);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size_bytes());
  }
  // To be filled by what is received.
  explicit DescriptorMessage(std::span<std::byte> room) : data_{room.data(), room.size()}, received_(true) {
    header_.msg_iov = &data_;
    header_.msg_iovlen = 1;
    header_.msg_control = control_;
    header_.msg_controllen = sizeof control_;
  }
  DescriptorMessage(const DescriptorMessage&) = delete;
  DescriptorMessage& operator=(const DescriptorMessage&) = delete;

  // The last descriptor that came; the others are closed, so that none leaks, whatever was sent.
  UniqueFd take_last() {
    UniqueFd last;
    if (!received_) return last;
    for (cmsghdr* item = CMSG_FIRSTHDR(&header_); item != nullptr; item = CMSG_NXTHDR(&header_, item)) {
      if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
      for (size_t at = CMSG_LEN(0); at + sizeof(int) <= item->cmsg_len; at += sizeof(int)) {
        int fd = -1;
        std::memcpy(&fd, reinterpret_cast<const char*>(item) + at, sizeof fd);
        last = UniqueFd(fd);
      }
    }
    return last;
  }

  msghdr* header() noexcept { return &header_; }

 private:
  iovec data_;
  bool received_ = false;
  msghdr header_{};
  alignas(cmsghdr) char control_[CMSG_SPACE(kMost * sizeof(int))] = {};
};

}  // namespace penstock
