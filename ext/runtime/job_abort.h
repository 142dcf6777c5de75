// Ends the job from any rank, without waiting for the others.
#pragma once

namespace easyddl {

// Ends all ranks. Does not return.
[[noreturn]] void end_job(int status);

// From now on `end_job` calls this first. There is one such function in a process.
void set_before_end_of_job(void (*function)());

}  // namespace easyddl
