"""Mistakes in a run: the loop, rollouts, checkpoints, schedules, geometry, the lock, the repair of metrics."""

from __future__ import annotations

from benchmarks.mutant import Mutant

SCHEDULES = ("tests/run/test_schedules.py",)
CLOSED_FORM = "closed_form or cosine or plateau_begins or least_squares or decay_is_linear"
GEOMETRY = ("tests/run/test_geometry.py",)
TABLE = "follows_from_budget or every_budget or explicit_value or largest_divisor or sequences_divide"
EXPLORATION = ("tests/run/test_exploration.py",)
REPAIR = ("tests/run/test_metric_repair.py",)
LINES = "lost_lines or without_a_table or whole_file"
CHECKPOINT = ("tests/run/test_checkpoint.py",)
COLLECTOR = ("tests/run/test_collector.py",)
EARLY = ("tests/run/test_early_stopping.py",)
LOCK = ("tests/run/test_lock.py",)
TRAINER = ("tests/run/test_trainer.py",)
CONTINUATION = ("tests/run/test_continuation.py",)

SIGNALS = ("tests/run/health/test_signals.py",)

MUTANTS = (
    Mutant(
        "moving moments of any size are taken from a checkpoint",
        "run/health/signals.py",
        "if moment.shape != self.mean.shape or moment.dtype",
        "if moment.dtype",
        SIGNALS,
    ),
    Mutant(
        "a rule that was silent until now is not looked at for one update more",
        "run/health/engine.py",
        "if update <= not_before or value is None",
        "if update <= not_before + 1 or value is None",
        ("tests/run/health/test_engine.py",),
    ),
    Mutant(
        "what critics miss is measured by the returns of the day",
        "run/health/signals.py",
        "missed / max(std, LEAST_SPREAD * self.peak_std) ** 2",
        "missed / std**2",
        SIGNALS,
        "useless",
    ),
    Mutant(
        "a return is compared with itself",
        "run/health/signals.py",
        'return {"return/record": farthest / before} if before > 0 else {}',
        'return {"return/record": farthest / self.farthest_return} if before > 0 else {}',
        SIGNALS,
        "outlier",
    ),
    Mutant(
        "the linear schedule ends at 0 whatever its end",
        "run/controllers.py",
        "return 1.0 + (config.end - 1.0) * progress",
        "return 1.0 - progress",
        SCHEDULES,
        CLOSED_FORM,
    ),
    Mutant(
        "the cosine turns back after the end of the run",
        "run/controllers.py",
        "progress = min(max(steps / total_steps, 0.0), 1.0)",
        "progress = max(steps / total_steps, 0.0)",
        SCHEDULES,
        CLOSED_FORM,
    ),
    Mutant(
        "a rising entropy is a plateau",
        "run/controllers.py",
        "if abs(slope) <= tolerance:",
        "if -slope <= tolerance:",
        SCHEDULES,
        CLOSED_FORM,
    ),
    Mutant(
        "the decay of the entropy goes on below its floor",
        "run/controllers.py",
        "share = min(max((update - plateau_at) / config.decay, 0.0), 1.0)",
        "share = max((update - plateau_at) / config.decay, 0.0)",
        SCHEDULES,
        CLOSED_FORM,
    ),
    Mutant(
        "exploration narrows on after the end",
        "run/controllers.py",
        "whole * min(steps / total_steps, 1.0)",
        "whole * (steps / total_steps)",
        EXPLORATION,
        "width_is_reached",
    ),
    Mutant(
        "exploration narrows by a factor, however narrow it is already",
        "run/controllers.py",
        "min(0.0, math.log(config.end_std) - initial_log_std)",
        "math.log(config.end_std)",
        EXPLORATION,
    ),
    Mutant(
        "rollouts are rounded up to the next power of two",
        "run/geometry.py",
        "return 1 << (number.bit_length() - 1)",
        "return 1 << number.bit_length()",
        GEOMETRY,
        TABLE,
    ),
    Mutant(
        "minibatches of sequences divide the rows instead of the environments",
        "run/geometry.py",
        "minibatches = largest_divisor(environments if task.recurrent else rows, wanted)",
        "minibatches = largest_divisor(rows, wanted)",
        GEOMETRY,
        TABLE,
    ),
    Mutant(
        "noisy tasks train as many epochs as others",
        "run/geometry.py",
        "epochs = NOISY_EPOCHS if task.noisy else CONTROL_EPOCHS",
        "epochs = CONTROL_EPOCHS",
        GEOMETRY,
        TABLE,
    ),
    Mutant(
        "the largest divisor may be above its limit",
        "run/geometry.py",
        "range(min(number, limit), 0, -1)",
        "range(min(number, limit + 1), 0, -1)",
        GEOMETRY,
        TABLE,
    ),
    Mutant(
        "a gap at the end of the metrics is not noticed",
        "run/metric_store.py",
        "pairwise([0, *inside, update + 1])",
        "pairwise([0, *inside])",
        REPAIR,
        LINES,
    ),
    Mutant(
        "a gap is told one line too long",
        "run/metric_store.py",
        "yield before + 1, after - 1",
        "yield before, after - 1",
        REPAIR,
        LINES,
    ),
    Mutant(
        "lines of the table replace those on file",
        "run/metric_store.py",
        "restored = {number: row for number, row in table.items() if number not in rows}",
        "restored = dict(table)",
        REPAIR,
        LINES,
    ),
    Mutant(
        "lines after the checkpoint come back from the table",
        "run/metric_store.py",
        'if 1 <= row["update"] <= update}',
        'if 1 <= row["update"]}',
        REPAIR,
        LINES,
    ),
    Mutant(
        "checksums are not compared",
        "run/checkpoint.py",
        'if _sha256(data) != entry["sha256"]:',
        'if _sha256(data) == "":',
        CHECKPOINT,
    ),
    Mutant(
        "the oldest checkpoint is the first choice",
        "run/checkpoint.py",
        "newest_first = [path for _, path in sorted(numbered, reverse=True)]",
        "newest_first = [path for _, path in sorted(numbered)]",
        CHECKPOINT,
    ),
    Mutant(
        "the best checkpoint is pruned with the old ones",
        "run/checkpoint.py",
        "if path.name != BEST][keep:]",
        "][keep:]",
        CHECKPOINT,
    ),
    Mutant(
        "weights that are not finite are written",
        "run/checkpoint.py",
        "    _check_finite(policy_tensors, Path(folder) / POLICY_TENSORS, POLICY_TENSORS)\n",
        "",
        CHECKPOINT,
    ),
    Mutant(
        "a stored array comes back as a tensor",
        "run/checkpoint.py",
        'return tensors[name].numpy() if value.get("numpy") else tensors[name]',
        "return tensors[name]",
        CHECKPOINT,
    ),
    Mutant(
        "tensors of another dtype are accepted",
        "run/checkpoint.py",
        "if got.shape != tensor.shape or got.dtype != tensor.dtype:",
        "if got.shape != tensor.shape:",
        CHECKPOINT,
    ),
    Mutant(
        "the hidden state before a rollout is that after it",
        "run/collector.py",
        "first_state = self.state.clone()",
        "first_state = decisions.state",
        COLLECTOR,
        "rounding or carried",
    ),
    Mutant(
        "a final observation is encoded as the start of an episode",
        "run/collector.py",
        "before, torch.zeros(len(rows), dtype=torch.bool))",
        "before, torch.ones(len(rows), dtype=torch.bool))",
        COLLECTOR,
        "truncation",
    ),
    Mutant(
        "final observations are encoded where the episode was terminated",
        "run/collector.py",
        "ended = (step.truncated & ~step.terminated & step.valid).nonzero()[0]",
        "ended = (step.terminated & step.valid).nonzero()[0]",
        COLLECTOR,
        "truncation",
    ),
    Mutant(
        "the rewards before a rollout are those of the first one for ever",
        "run/collector.py",
        "            self.past = past_after(rollout, self.past)\n",
        "            past_after(rollout, self.past)\n",
        CONTINUATION,
        "rewards_of_running",
    ),
    Mutant(
        "a refused update moves the step size",
        "run/controllers.py",
        "        if not (report.committed or report.went_too_far):\n            return\n",
        "",
        TRAINER,
        "controllers_do_not_move",
    ),
    Mutant(
        "steps count rows that only reset",
        "run/trainer.py",
        "taken = int(np.count_nonzero(rollout.valid.numpy()))",
        "taken = int(rollout.valid.numel())",
        TRAINER,
        "steps_count",
    ),
    Mutant(
        "an improvement does not reset the patience",
        "run/trainer.py",
        "self.evaluations_without_gain = 0 if better else self.evaluations_without_gain + 1",
        "self.evaluations_without_gain += 0 if better else 1",
        EARLY,
    ),
    Mutant(
        "the best policy is chosen while the limit is broken",
        "run/trainer.py",
        "if not self.risk.selectable:",
        "if False:",
        EARLY,
    ),
    Mutant(
        "a return that is not finite enters the mean of episodes",
        "run/trainer.py",
        "for r, n in self.driver.pop_episodes() if np.isfinite(r))",
        "for r, n in self.driver.pop_episodes())",
        TRAINER,
        "broken_reward",
    ),
    Mutant(
        "the lock of a living process is taken",
        "run/lock.py",
        "(self._is_touched(owner) if (alive := owner.alive()) is None else alive)",
        "(self._is_touched(owner) if (alive := owner.alive()) is None else not alive)",
        LOCK,
        "without_locks or another_computer",
    ),
    Mutant(
        "a forked process keeps the lock",
        "run/lock.py",
        "lambda: None if (lock := this()) is None else lock._leave())",
        "lambda: None)",
        LOCK,
        "forked",
    ),
    Mutant(
        "the owner never touches its file",
        "run/lock.py",
        "                os.utime(descriptor)\n",
        "                pass\n",
        LOCK,
        "touches",
    ),
)
