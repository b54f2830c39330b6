"""Walk-forward: what all folds and seeds come to. `OUT/walk_forward.json` has this layout (format 1):

    format            1
    name              name of the configuration
    label             "real", or what synthetic bars are
    symbols           names of the accounts, one for each symbol (one for all of them in a portfolio)
    kind              "anchored" (training grows from the first bar) or "rolling" (it keeps its length)
    folds, seeds      number of folds; list of seeds
    purge, embargo    bars left out between train, select and test; look_back and label_horizon: what purge must cover
    clock_bars        bars of all symbols' common clock; periods_per_year: bars per year
    alpha, gamma, horizon    of the tails: probability, discount per bar, bars
    data_hash, config_hash   of all bars; of the configuration without seed and split
    config            the whole configuration, as JSON; `data.split` of it is not used
    facts             sentences: what was trained on what
    windows           [{fold, train, select, test}]: each {first_close, last_close, bars}; select null without selection.
                      Times are UTC, ISO 8601; a bar closes one step after it opens. bars: of the common clock
    rows              one per fold, seed and account; seed null: the seeds of the fold deciding together (see ensemble)
        fold, seed, account
        folder        of the run, relative to OUT (null for the ensemble)
        evaluation    folder with equity.parquet, decisions.parquet, trades.parquet, summary.json, relative to OUT
        checkpoint    that was tested: "best" by the select window, or the newest (null for the ensemble)
        steps, ended, refused    of the training (null for the ensemble); refused: it ended by refused updates
        windows       train, select, test as above, bars of this account
        statistics    {"policy": {...}, "buy and hold": {...}, ...}: all of PathStatistics by name, after costs
        cvar_return   realised, of the policy (null: the test window is shorter than the horizon)
        limit         null without a limit, else {limit, realised, kept, sentence}
    ensemble          null with one seed, else {how: "vote" or "average", seeds}
    stitched          one per account and seed (null: the ensemble): the test windows of all folds one after the other
        account, seed, first_close, last_close, bars, ruined
        statistics    as in rows
        limit         as in rows
        evidence      {mean_return, sharpe, volatility, cvar_bar: {estimate, low, high, level, above_zero, block},
                      verdict: "above zero" | "below zero" | "no evidence",
                      deflated: null or {probabilistic, deflated, expected_best, trials}}
        against       {baseline: {mean_return: interval, sharpe: interval, verdict: "better" | "worse" | "no evidence"}}
        file          parquet with the path: columns close_time_utc, fold, and wealth (a multiple of the start) by name
                      of policy and baselines, relative to OUT
    across_seeds      {sharpe, mean_return}: null or {iqm, low, high, level, seeds, tasks}; tasks are folds x accounts
    overfitting       null, or {probability, loss_probability, trials, bars}: PBO over the seeds (and the configurations
                      tried before on these data with the same folds)
    overfitting_reason    why it is null, a sentence; null otherwise
    trials            {counted, known_sharpes, file}: configurations and seeds that were trained on these bars so far
    headline          which stitched path speaks: {account, seed}; the ensemble, or the only seed
    verdict           sentences, the most important first
"""
