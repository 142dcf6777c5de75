#include "collectives/communicator_call.h"

#include "collectives/signal_guard.h"
#include "common/check.h"
#include "profiling/trace.h"

namespace easyddl {

Communicator::Call::Call(Communicator& communicator, const Fingerprint& fingerprint,
                         const char* name, size_t bytes)
    : communicator_(communicator), name_(name), bytes_(bytes) {
  refuse_in_handlers(fingerprint);
  lock_ = std::unique_lock<std::mutex>(communicator_.mutex_);
  const std::string failure = communicator_.failure();
  if (!failure.empty()) {
    throw Error("An earlier collective ended half-way, and no other can follow it: " + failure +
                " This call itself is not at fault: " + fingerprint.text + ".");
  }
  communicator_.fingerprint_ = &fingerprint;
  communicator_.number_ = communicator_.world_.exit_protocol().begin(communicator_.id_);
  communicator_.broken_ = true;
  if (Trace::on() != nullptr) begin_ = Trace::now();
}

Communicator::Call::~Call() {
  trace();
  communicator_.fingerprint_ = nullptr;
  if (communicator_.slow_ == communicator_.number_) {
    communicator_.world_.stall_inspector().forget(communicator_.id_);
  }
  communicator_.world_.exit_protocol().end(communicator_.id_);
}

void Communicator::Call::fail(const std::string& reason) {
  communicator_.goes_elsewhere_ = false;
  // Where all ranks have failed alike, the communicator can be used again.
  if (communicator_.broken_) communicator_.give_up(name_ + (" ended half-way: " + reason));
}

// (communicator, number) matches the spans of one collective across ranks.
void Communicator::Call::trace() const {
  if (Trace::on() == nullptr || begin_ == 0) return;
  Trace::on()->add(name_, begin_, Trace::now(),
                   {{"channel", static_cast<int64_t>(communicator_.id_)},
                    {"number", static_cast<int64_t>(communicator_.number_)},
                    {"bytes", static_cast<int64_t>(bytes_)}},
                   &communicator_.fingerprint_->text);
}

}  // namespace easyddl
