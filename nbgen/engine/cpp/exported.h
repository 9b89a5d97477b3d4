// The number type that a library is built for, and how it exports functions.

#pragma once

#include "numbers.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

#ifdef BFLOAT16
using Number = Bfloat16;
#else
using Number = float;
#endif
