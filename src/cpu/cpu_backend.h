/* cpu_backend.h - the fast CPU backend: tiles, vectors, threads. */
#ifndef FFPA_CPU_CPU_BACKEND_H
#define FFPA_CPU_CPU_BACKEND_H

#include "core/backend.h"

extern const backend cpu_backend;

#endif
