// A program's output through a relay, and what is to be started as packets: pipes, but no processes.
#include "runtime/process/output_relay.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>

#include "runtime/process/helper_protocol.h"

namespace penstock {
namespace {

// As long as the relay's descriptor is ready.
int turn(OutputRelay& relay) {
  int moves = 0;
  for (pollfd item = relay.wanted(); item.fd >= 0 && poll(&item, 1, 0) > 0; item = relay.wanted()) {
    relay.move();
    ++moves;
  }
  return moves;
}

TEST_CASE("what is written arrives whole; without a reader it is dropped, and the program never knows") {
  const auto before = signal(SIGPIPE, SIG_IGN);
  std::array<int, 2> ours{-1, -1};
  REQUIRE(pipe2(ours.data(), O_CLOEXEC | O_NONBLOCK) == 0);
  OutputRelay relay;
  CHECK(relay.wanted().fd == -1);
  const int program = relay.open_for(ours[1]);
  REQUIRE(program >= 0);
  CHECK(turn(relay) == 0);
  std::string sent(50'000, 'x');
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<char>('a' + i % 23);
  REQUIRE(write(program, sent.data(), sent.size()) == static_cast<ssize_t>(sent.size()));
  CHECK(turn(relay) > 20);  // a little at a time
  std::string got(sent.size() + 1, ' ');
  const ssize_t size = read(ours[0], got.data(), got.size());
  CHECK(got.substr(0, static_cast<size_t>(std::max<ssize_t>(size, 0))) == sent);
  close(ours[0]);
  for (int i = 0; i < 20; ++i) {
    CHECK(write(program, sent.data(), sent.size()) == static_cast<ssize_t>(sent.size()));
    CHECK(turn(relay) > 0);
  }
  close(program);
  turn(relay);
  CHECK(relay.wanted().fd == -1);
  close(ours[1]);
  signal(SIGPIPE, before);
}

TEST_CASE("a reader that stalls stops the relay, not more") {
  std::array<int, 2> ours{-1, -1};
  REQUIRE(pipe2(ours.data(), O_CLOEXEC | O_NONBLOCK) == 0);
  OutputRelay relay;
  const int program = relay.open_for(ours[1]);
  const std::string page(4096, 'p');
  int written = 0;
  for (; written < 30; ++written) {  // two pipes of 64 KiB hold more, one does not
    REQUIRE(write(program, page.data(), page.size()) == static_cast<ssize_t>(page.size()));
    turn(relay);
  }
  CHECK(relay.wanted().events == POLLOUT);
  std::string got(4096, ' ');
  int64_t arrived = 0;
  for (ssize_t size = 0; (size = read(ours[0], got.data(), got.size())) > 0; arrived += size) turn(relay);
  CHECK(arrived == int64_t{written} * 4096);
  for (const int fd : {ours[0], ours[1], program}) close(fd);
  relay.close_now();
  CHECK(relay.wanted().fd == -1);
}

TEST_CASE("what is to be started travels in packets that a socket takes") {
  ProgramSpec spec;
  spec.argv = {"python", "train.py", ""};
  for (int i = 0; i < 3000; ++i)
    spec.environment.push_back("VARIABLE_" + std::to_string(i) + "=" + std::string(40, 'v'));
  spec.cpus = {0, 5, 300};
  spec.keep_stdin = true;
  spec.grace_s = 12.5;
  std::vector<std::byte> bytes;
  const auto packets = spec_packets(spec);
  CHECK(packets.size() > 3);
  for (const auto& packet : packets) {
    CHECK(packet.size() <= kSpecPartBytes + 1);
    CHECK(static_cast<HelperPacket>(packet[0]) ==
          (&packet == &packets.back() ? HelperPacket::spec_end : HelperPacket::spec_part));
    bytes.insert(bytes.end(), packet.begin() + 1, packet.end());
  }
  const ProgramSpec again = decode_spec(bytes);
  CHECK(again.argv == spec.argv);
  CHECK(again.environment == spec.environment);
  CHECK(again.cpus == spec.cpus);
  CHECK(again.keep_stdin);
  CHECK_FALSE(again.relay_output);
  CHECK(again.grace_s == 12.5);
}

}  // namespace
}  // namespace penstock
