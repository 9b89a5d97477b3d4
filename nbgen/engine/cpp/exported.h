// For what type of number a library is built, and how it shows what others call.

#pragma once

#include "numbers.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

#ifdef BFLOAT16
using Number = Bfloat16;
#else
using Number = float;
#endif
