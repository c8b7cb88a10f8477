"""What the node has and how busy it is: GPUs by NVML in a child process, hardware, telemetry."""
