#include "supervisor/hostfile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace rota {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Hostfile, HostsInOrderWithTheSumOfTheirSlots) {
  const auto hosts = parse_hostfile(
      "hosts", "# two nodes\nnode1 slots=2 max_slots=4\n\n  node2   # one rank\nnode1 slots=1\n");
  ASSERT_TRUE(hosts.ok()) << hosts.status().message();
  EXPECT_THAT(*hosts, ElementsAre(HostSlots{"node1", 3}, HostSlots{"node2", 1}));
}

TEST(Hostfile, AFaultNamesFileAndLine) {
  for (const char* line :
       {"node1 slots=two", "node1 slots=0", "node1 slots=-1", "node1 slots=2x"}) {
    const auto hosts = parse_hostfile("hosts", std::string("a\n") + line);
    ASSERT_FALSE(hosts.ok()) << line;
    EXPECT_THAT(hosts.status().message(), HasSubstr("--hostfile hosts, line 2: \"slots="));
  }
  EXPECT_THAT(parse_hostfile("hosts", "# nothing\n").status().message(),
              HasSubstr("names no host"));
  EXPECT_THAT(read_hostfile("/no/such/hosts").status().message(),
              HasSubstr("--hostfile: /no/such/hosts"));
}

TEST(Hostfile, RanksNeedSlots) {
  const std::vector<HostSlots> hosts = {{"a", 2}, {"b", 1}};
  EXPECT_TRUE(check_slots("hosts", hosts, 3).ok());
  EXPECT_THAT(check_slots("hosts", hosts, 4).message(),
              HasSubstr("2 host(s) with 3 slots in all, for 4 ranks"));
}

TEST(Hostfile, AsManySlotsAsANumberHoldsAreAddedUp) {
  const auto hosts =
      parse_hostfile("hosts", "a slots=2147483647\na slots=2147483647\nb slots=2147483647\n");
  ASSERT_TRUE(hosts.ok()) << hosts.status().message();
  EXPECT_THAT(*hosts, ElementsAre(HostSlots{"a", 2147483647}, HostSlots{"b", 2147483647}));
  EXPECT_TRUE(check_slots("hosts", *hosts, 1000).ok());
}

}  // namespace
}  // namespace rota
