// Ends the job from any rank, without waiting for the others.
#pragma once

namespace easyddl {

// Ends all ranks. Does not return.
[[noreturn]] void end_job(int status);

// Sets the function that `end_job` calls first. A process has one such function.
void set_before_end_of_job(void (*function)());

}  // namespace easyddl
