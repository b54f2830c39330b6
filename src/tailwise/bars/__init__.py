"""Files -> validated bars: dialects, times, checks, frequency, synthetic and shipped sets."""
