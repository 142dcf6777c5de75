#include "collectives/fingerprint.h"

#include "trial.h"

using easyddl::describe_disagreement;
using easyddl::Fingerprint;

TEST(texts_that_differ_have_hashes_that_differ) {
  EXPECT(Fingerprint("a").hash == Fingerprint("a").hash);
  EXPECT(Fingerprint("a").hash != Fingerprint("b").hash);
  EXPECT(Fingerprint("").hash != 0);
}

TEST(ranks_with_one_text_are_named_together) {
  const std::string text = describe_disagreement({"this", "that", "this"});
  EXPECT_CONTAINS(text, " Ranks 0, 2 called this. Rank 1 called that.");
}

TEST(long_texts_are_shown_around_their_first_difference) {
  const std::string common(5000, 'x');
  const std::string text =
      describe_disagreement({common + "this" + common, common + "that" + common});
  EXPECT_CONTAINS(text, "xthisx");
  EXPECT_CONTAINS(text, "xthatx");
  EXPECT(text.size() < 1000);
}

TEST(a_text_may_be_the_beginning_of_another) {
  const std::string common(1000, 'x');
  EXPECT_CONTAINS(describe_disagreement({common, common + "y"}), "xy");
}
