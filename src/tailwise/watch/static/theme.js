"use strict";
// Before the page is drawn, so that it never flashes in the wrong colours.
(function () {
  const order = ["auto", "light", "dark"];
  const stored = function () {
    try { return localStorage.getItem("tailwise-theme") || "auto"; } catch (error) { return "auto"; }
  };
  const apply = function (name) {
    if (name === "auto") { delete document.documentElement.dataset.theme; }
    else { document.documentElement.dataset.theme = name; }
  };
  apply(stored());
  document.addEventListener("DOMContentLoaded", function () {
    const button = document.getElementById("theme");
    const label = function (name) { button.textContent = name[0].toUpperCase() + name.slice(1); };
    const changed = function () { document.dispatchEvent(new Event("tailwise-theme")); };
    label(stored());
    button.addEventListener("click", function () {
      const next = order[(order.indexOf(stored()) + 1) % order.length];
      try { localStorage.setItem("tailwise-theme", next); } catch (error) { /* private window: for this page only */ }
      apply(next);
      label(next);
      changed();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  });
})();
