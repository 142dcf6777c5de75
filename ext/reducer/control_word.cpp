#include "reducer/control_word.h"

#include "arrays/segment_list.h"
#include "collectives/allreduce.h"

namespace easyddl {

ControlWord sum_of_control_words(Communicator& communicator, const ControlWord& mine,
                                 const std::string& text) {
  ControlWord::Floats floats = mine.to_floats();
  auto* bytes = reinterpret_cast<uint8_t*>(floats.data());
  allreduce(communicator, SegmentList({{bytes, bytes, sizeof floats}}), DType::float32, Op::sum,
            Fingerprint(text));
  return ControlWord::from_floats(floats, 1);
}

}  // namespace easyddl
