"""How fast is training, beside others, on this machine? What `tailwise bench` and `benchmarks.speed` share."""
