"""Mistakes in the fused kernels, which their plain twins must tell apart. Each compiles kernels again."""

from __future__ import annotations

from benchmarks.mutant import Mutant

ADAM = ("tests/fused/test_adam.py",)
PARTICLE_LOSS = ("tests/fused/test_critic_loss.py",)
POLICY_LOSS = ("tests/fused/test_policy_loss.py",)
TARGETS = ("tests/fused/test_targets.py",)
GRADIENTS = ("tests/fused/test_gradients.py",)
UPDATE = ("tests/fused/test_update.py",)
EQUAL = "parameters_after"
CREDIT = ("tests/learner/test_credit.py",)

MUTANTS = (
    Mutant(
        "the average of gradients is not corrected for its start",
        "fused/adam.py",
        "size = np.float32(learning_rate / (1.0 - beta1**step))",
        "size = np.float32(learning_rate)",
        UPDATE,
        EQUAL,
    ),
    Mutant(
        "gradients below the clip are stretched to it",
        "fused/adam.py",
        "scale = clip / before if before > clip else 1.0",
        "scale = clip / before",
        ADAM,
    ),
    Mutant(
        "a gradient that is not finite is applied",
        "fused/adam.py",
        "    if not before < np.inf:\n        return before, before\n",
        "",
        ADAM,
    ),
    Mutant(
        "the norm after clipping is that before",
        "fused/adam.py",
        "shorter += _squares(g, factor)",
        "shorter += _squares(g, np.float32(1.0))",
        ADAM,
    ),
    Mutant(
        "a sign is swapped in the shortfall of credit",
        "fused/credit.py",
        "credit -= weights[m] * share * short",
        "credit += weights[m] * share * short",
        CREDIT,
    ),
    Mutant(
        "the threshold of credit is not brought to the size of the lag",
        "fused/credit.py",
        "c = (knots[m] - before[t]) / decay[k]",
        "c = knots[m] - before[t]",
        CREDIT,
    ),
    Mutant(
        "rewards before an action are not discounted in the kernel",
        "fused/credit.py",
        "before[t] = rewards[first + t] + gamma * before[t]",
        "before[t] = rewards[first + t] + before[t]",
        CREDIT,
    ),
    Mutant(
        "credit crosses the start of an episode in the kernel",
        "fused/credit.py",
        "if old[t] >= lag[k]:",
        "if old[t] >= 0.0:",
        CREDIT,
    ),
    Mutant(
        "a law wholly below the knot gets no credit",
        "fused/credit.py",
        "credit += weights[m] * gain[t]",
        "credit += 0.0 * gain[t]",
        CREDIT,
    ),
    Mutant(
        "the quantile loss leans the other way",
        "fused/critic_loss.py",
        "p = v.multiply_add(slope, v.absolute(c), c)",
        "p = v.multiply_add(slope, v.absolute(c), builder.fsub(zero, c))",
        PARTICLE_LOSS,
    ),
    Mutant(
        "the gradient of quantiles is not averaged over particles",
        "fused/critic_loss.py",
        "np.float32(-weight / (2.0 * kappa * particles.shape[0]))",
        "np.float32(-weight / (2.0 * kappa))",
        PARTICLE_LOSS,
    ),
    Mutant(
        "the quadratic part of the Huber loss is not halved",
        "fused/critic_loss.py",
        "half = v.spread(kappa), v.spread(scale), v.constant(-0.5)",
        "half = v.spread(kappa), v.spread(scale), v.constant(0.0)",
        PARTICLE_LOSS,
    ),
    Mutant(
        "the dual clip has no end in the kernel",
        "fused/policy_loss.py",
        "dual = advantage < 0.0 and ratio > dual_clip",
        "dual = advantage > 0.0 and ratio > dual_clip",
        GRADIENTS,
    ),
    Mutant(
        "the gradient flows where the clip decides",
        "fused/policy_loss.py",
        "if clip_active or dual or clamped:",
        "if dual or clamped:",
        GRADIENTS,
    ),
    Mutant(
        "the entropy bonus has the wrong sign",
        "fused/policy_loss.py",
        "g += bonus * share * (np.float64(log_p[k]) + entropy)",
        "g -= bonus * share * (np.float64(log_p[k]) + entropy)",
        GRADIENTS,
    ),
    Mutant(
        "forbidden choices keep their logits in the kernel",
        "fused/policy_loss.py",
        "logit = logits[at + k] if not masked or mask[index[i], k] else FORBIDDEN",
        "logit = logits[at + k]",
        POLICY_LOSS,
    ),
    Mutant(
        "the Jacobian of a squashed action is added",
        "fused/policy_loss.py",
        "new -= log_jacobian(done)",
        "new += log_jacobian(done)",
        GRADIENTS,
    ),
    Mutant(
        "the mean head of the second critic is trained with half of its error",
        "fused/critic_loss.py",
        "grad[place] = 2.0 * per_row * error",
        "grad[place] = per_row * error",
        GRADIENTS,
    ),
    Mutant(
        "particles go on after termination",
        "fused/targets.py",
        "                for j in range(count):\n                    carry[j] = gain\n"
        "                copy(carry, result[t, b])",
        "                for j in range(count):\n                    carry[j] = gain + discount * carry[j]\n"
        "                copy(carry, result[t, b])",
        TARGETS,
    ),
    Mutant(
        "rewards of particles are not discounted",
        "fused/targets.py",
        "                carry[j] = gain + discount * carry[j]\n            copy(carry, result[t, b])",
        "                carry[j] = gain + carry[j]\n            copy(carry, result[t, b])",
        TARGETS,
    ),
    Mutant(
        "equal bits decide a bootstrap without the rest",
        "fused/targets.py",
        "some[j] = pieces[j] >= whole and not _follows(drawn, j, lam)",
        "some[j] = pieces[j] >= whole",
        TARGETS,
    ),
    Mutant(
        "the cell of an LSTM is not carried back",
        "fused/recurrent.py",
        "at.write(v.product(by_c, forget_gate), carry_c)",
        "at.write(v.product(by_c, input_gate), carry_c)",
        GRADIENTS,
    ),
    Mutant(
        "a GRU mixes state and proposal the wrong way round",
        "fused/recurrent.py",
        "new_h = v.multiply_add(update, v.minus(at.read(before_h), candidate), candidate)",
        "new_h = v.multiply_add(update, v.minus(candidate, at.read(before_h)), at.read(before_h))",
        GRADIENTS,
    ),
    Mutant(
        "the gradient of a rectifier passes below 0",
        "fused/dense.py",
        "g[j] = g[j] if y[j] > _ZERO else _ZERO",
        "g[j] = g[j]",
        GRADIENTS,
    ),
    Mutant(
        "rows that only reset are counted as transitions",
        "core/loops/rollouts.py",
        "if components == 0 or not valid[i]:",
        "if components == 0:",
        ("tests/core/test_loops_rollouts.py",),
    ),
    Mutant(
        "a row without a choice counts for the share of an action",
        "core/loops/rollouts.py",
        "chooses = components > 1 or allowed > 1",
        "chooses = True",
        ("tests/core/test_loops_rollouts.py",),
    ),
    Mutant(
        "the spread of the observations forgets how far their mean moved",
        "core/loops/rollouts.py",
        " + rate * (1 - rate) * (shift * shift)",
        "",
        ("tests/run/health/test_signals.py",),
    ),
    Mutant(
        "an entry that never varied is compared",
        "core/loops/rollouts.py",
        "if not spread <= smallest * (np.abs(mean[i]) + 1e-12):",
        "if not spread < 0.0:",
        ("tests/run/health/test_signals.py",),
    ),
)
