/* matrix_model.c - the tiles of each thread. */
#include "support/matrix_model.h"

_Thread_local matrix_model matrix_of_thread;
