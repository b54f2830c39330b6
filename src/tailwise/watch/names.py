"""Names of files in a run folder. Repeated here so that the page does not import torch; a test holds them equal."""

from __future__ import annotations

CONFIG, ALERTS = "config.yaml", "alerts.jsonl"
METRICS, METRICS_TABLE = "metrics.jsonl", "metrics.parquet"
SEVERITIES = ("info", "warn", "error")
EVALUATIONS, EQUITY, SUMMARY = "evaluations", "equity.parquet", "summary.json"
