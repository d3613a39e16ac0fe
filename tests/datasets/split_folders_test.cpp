#include "runtime/datasets/split_folders.h"

#include <doctest/doctest.h>

#include "tests/support/temporary_folder.h"

using namespace penstock;
using Names = std::vector<std::string>;

TEST_CASE("the folder above the splits holds no classes") {
  TemporaryFolder folder;
  folder.write("val/cat/1.jpg", "");
  folder.write("Train/cat/2.jpg", "");
  folder.write("notes.txt", "");
  CHECK(splits_as_classes(folder.path()) == Names{"Train", "val"});
  CHECK(splits_as_classes(folder.path("val")).empty());
}

TEST_CASE("classes may be called so") {
  TemporaryFolder folder;
  SUBCASE("a class of pictures") {
    folder.write("test/1.jpg", "");
    folder.write("train/2.jpg", "");
  }
  SUBCASE("beside another class") {
    folder.write("train/express/1.jpg", "");
    folder.write("tram/city/2.jpg", "");
  }
  CHECK(splits_as_classes(folder.path()).empty());
}

TEST_CASE("a folder that is not there is somebody else's to report") {
  CHECK(splits_as_classes("/no/such").empty());
}
