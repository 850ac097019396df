# Everyday targets. The build itself is CMake + Ninja; this file only remembers the commands.
BUILD ?= build

all: $(BUILD)/build.ninja
	@cmake --build $(BUILD)

# Only on a first build: a folder that somebody configured otherwise keeps its configuration.
$(BUILD)/build.ninja:
	@tools/deps.sh build
	@cmake -S . -B $(BUILD) -G Ninja -DFFPA_TESTS=OFF

demo:
	@tools/deps.sh --install build
	@$(MAKE) --no-print-directory all
	@tools/demo.sh

check:
	@tools/deps.sh --install check
	@tools/check.sh

# What the GPU kernels take of every chip, without a GPU; FAMILY=sm80 looks at one family.
check-kernels:
	@tools/deps.sh --install check
	@tools/check_kernels.sh $(FAMILY)

golden-kernels:
	@FFPA_GOLDEN=write tools/check_kernels.sh $(FAMILY)

bench: all
	@if [ -x bench/cpu.sh ]; then bench/cpu.sh; else echo "bench/cpu.sh is missing"; exit 1; fi

# On a machine with a GPU, PyTorch and NVRTC: tests, compute-sanitizer, the table beside PyTorch.
# GPU_ARGS="--part cases" does a part.
check-gpu:
	@tests/gpu/check_gpu.sh $(GPU_ARGS)

fmt:
	@tools/deps.sh fmt
	@tools/format.sh --write

golden:
	@tools/deps.sh check
	@tools/golden.sh

clean:
	@rm -rf $(BUILD) build-check

.PHONY: all demo check check-kernels golden-kernels check-gpu bench fmt golden clean
