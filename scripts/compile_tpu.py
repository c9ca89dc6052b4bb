"""What a run takes on a TPU slice, compiled on a machine without a TPU; needs pip install "rope-jax[tpu]".

python scripts/compile_tpu.py configs/train/quickstart.toml --topology v5e:2x2
python scripts/compile_tpu.py configs/train/llama3_8b_32k.toml --topology v5p:2x2x2 --mesh.context 4
python scripts/compile_tpu.py --topologies
"""

import os

# Read when JAX is imported. The compiler would ask the cloud what machine this is, and one that is no TPU VM gets no
# answer; on a TPU VM, the chips are left to whoever uses them, and their lock is not asked for.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_MIN_LOG_LEVEL": "3",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def main() -> int:
    os.environ.update(ENVIRONMENT)
    from rope_jax.experiment.tpu import run_compile

    return run_compile()


if __name__ == "__main__":
    raise SystemExit(main())
