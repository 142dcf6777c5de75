"""Amazon SageMaker: `python sagemaker_job.py`. Written for sagemaker 2.x, not run by the tests.

SageMaker starts the instances and calls `mpirun` of the image's Open MPI on the first of them. The
source folder holds `train.py`, a clone of easyddl's repository in `easyddl-source`, and a
`requirements.txt` with the line `./easyddl-source`. Each instance then builds easyddl from these
sources, with the MPI of the image. easyddl is not on PyPI.
"""

import argparse


def main():
    """Starts a training job."""
    parser = argparse.ArgumentParser(description="Start a training job on SageMaker.")
    parser.add_argument("--role", required=True, help="the role's ARN that the job runs as")
    parser.add_argument("--source", default=".", help="the folder with train.py")
    parser.add_argument("--backups", required=True, help="s3://bucket/prefix of the backups")
    args = parser.parse_args()

    from sagemaker.tensorflow import TensorFlow

    estimator = TensorFlow(
        entry_point="train.py",
        source_dir=args.source,
        role=args.role,
        framework_version="2.19",
        py_version="py312",
        instance_count=2,
        instance_type="ml.g5.12xlarge",
        # One rank for each GPU of an instance. SageMaker itself passes the hosts to mpirun.
        distribution={"mpi": {"enabled": True, "processes_per_host": 4}},
        # Spot instances can be taken back: SageMaker sends SIGTERM, waits up to two minutes, and
        # starts the job again. It copies this folder to S3 while the job runs, and back.
        # In train.py: ddl.BackupAndRestore("/opt/ml/checkpoints/backup").
        use_spot_instances=True,
        max_run=12 * 3600,
        max_wait=24 * 3600,
        checkpoint_s3_uri=args.backups,
        checkpoint_local_path="/opt/ml/checkpoints",
    )
    estimator.fit()


if __name__ == "__main__":
    main()
