/* copy_roof.h - the machine's copy bandwidth, a roof for memory-bound problems. */
#ifndef FFPA_CLI_COPY_ROOF_H
#define FFPA_CLI_COPY_ROOF_H

/* Bytes read plus bytes written a second when `threads` threads (0 = one per processor) copy large
 * buffers: the median of several passes. 0 when it cannot be measured. */
double copy_bandwidth(int threads);

#endif
