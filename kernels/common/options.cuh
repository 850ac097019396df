// options.cuh - an option that config.cuh leaves out is off.
#pragma once
#ifndef FFPA_O_DTYPE
#    define FFPA_O_DTYPE FFPA_DTYPE
#endif
#ifndef FFPA_DO_DTYPE
#    define FFPA_DO_DTYPE FFPA_DTYPE
#endif
#ifndef FFPA_B_DTYPE
#    define FFPA_B_DTYPE FFPA_DTYPE
#endif
#ifndef FFPA_ALIGNED
#    define FFPA_ALIGNED 0
#endif
#ifndef FFPA_RANGE
#    define FFPA_RANGE 0
#endif
#ifndef FFPA_GUARD
#    define FFPA_GUARD 0
#endif
#ifndef FFPA_SOFTCAP
#    define FFPA_SOFTCAP 0
#endif
#ifndef FFPA_MASK
#    define FFPA_MASK 0
#endif
#ifndef FFPA_ALIBI
#    define FFPA_ALIBI 0
#endif
#ifndef FFPA_SINK
#    define FFPA_SINK 0
#endif
#ifndef FFPA_DROPOUT
#    define FFPA_DROPOUT 0
#endif
#ifndef FFPA_VARLEN
#    define FFPA_VARLEN 0
#endif
#ifndef FFPA_CACHE
#    define FFPA_CACHE 0
#endif
#ifndef FFPA_PACK
#    define FFPA_PACK 0
#endif
#ifndef FFPA_SPLIT
#    define FFPA_SPLIT 0
#endif
#ifndef FFPA_DMASK
#    define FFPA_DMASK 0
#endif
#ifndef FFPA_BLOCKS
#    define FFPA_BLOCKS 0
#endif
#ifndef FFPA_KEYS
#    define FFPA_KEYS 0
#endif
#ifndef FFPA_WATCHDOG
#    define FFPA_WATCHDOG 0
#endif
#ifndef FFPA_EVERY_LANE
#    define FFPA_EVERY_LANE 0
#endif
